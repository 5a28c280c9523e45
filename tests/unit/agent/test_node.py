"""The agent's life, against a service made by hand."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from attestation.errors import DeviceError
from attestation.evidence import ek_key_attestation
from attestation.keys import key_set_sha256, thumbprints
from attestation.tpm import parse_attest
from attestation.wire import b64decode, b64encode
from attestation_agent import files
from attestation_agent.commands import Outcome
from attestation_agent.exits import Exit
from tests.fixtures.over_httpx import answering
from tests.unit.agent.world import CONFIG, MACHINE_ID, OTHER_ID, URL, Machine, World, signer


def problem(status: int, code: str, **headers: str) -> httpx.Response:
    body = {
        "type": f"urn:itl:problem:{code}",
        "title": code,
        "status": status,
        "detail": "no",
        "instance": "r1",
    }
    return httpx.Response(status, json=body, headers=headers)


def attested(world: World) -> World:
    """Bring *world* to where the machine is attested and configured."""
    world.service.status, world.service.action = "attested", "apply-config"
    assert world.run() is Exit.OK
    world.service.requests.clear()
    world.events.entries.clear()
    return world


# From nothing to an applied configuration


def test_from_nothing_to_an_applied_configuration(tmp_path: Path) -> None:
    """Introduce, activate, attest, fetch, open, apply, acknowledge; in this order."""
    world = World(tmp_path, apply_command="apply --now")
    world.service.status, world.service.action = "attested", "apply-config"
    assert world.run() is Exit.OK
    assert world.service.paths() == [
        "/self-register",
        "/machines/ID/ak-activate",
        "/attest/challenge",
        "/attest",
        "/config/t0ken",
        "/machines/ID/ack",
    ]
    assert world.config_path.read_bytes() == CONFIG
    assert stat.S_IMODE(world.config_path.stat().st_mode) == 0o600
    assert world.commands == [("apply", "--now", str(world.config_path))]
    assert world.service.acks[0]["outcome"] == "done"
    assert world.machine.ended == ["shutdown", "close"]


def test_the_second_run_changes_nothing(tmp_path: Path) -> None:
    """One quote, no introduction, no delivery."""
    world = attested(World(tmp_path))
    world.config_path.unlink()
    assert world.run() is Exit.OK
    assert world.service.paths() == ["/attest/challenge", "/attest"]
    assert not world.config_path.exists()


def test_steady_state_is_one_request_a_round(tmp_path: Path) -> None:
    """The challenge of the last answer is used while it is good."""
    world = attested(World(tmp_path, once=False))
    assert world.run(rounds=3) is Exit.OK
    assert world.service.paths() == ["/attest/challenge", "/attest", "/attest", "/attest"]
    assert world.waits == [0, 45, 45, 45]


def test_a_challenge_that_ran_out_is_replaced(tmp_path: Path) -> None:
    """With a longer pause than a challenge lives, each round fetches its own."""
    world = attested(World(tmp_path, once=False))
    world.service.reattest_after_seconds = 58
    world.run(rounds=2)
    assert world.service.paths() == ["/attest/challenge", "/attest", "/attest/challenge", "/attest"]


def test_nothing_secret_is_kept_or_logged(tmp_path: Path) -> None:
    """Neither configuration, nor tokens, nor proofs, in no file of the state and no event."""
    token_file = tmp_path / "token"
    token_file.write_text("r3g-t0ken\n")
    world = World(tmp_path, registration_token_file=str(token_file))
    world.service.status, world.service.action = "attested", "apply-config"
    world.run()
    proof = next(body["proof"] for path, body in world.service.requests if path.endswith("ak-activate"))
    kept = b"".join(p.read_bytes() for p in world.settings.state_dir.rglob("*") if p.is_file())
    said = repr(world.events.entries).encode()
    for secret in (b"canary-5f1c", b"r3g-t0ken", b"t0ken", proof.encode()):
        assert secret not in kept
        assert secret not in said
    assert sorted(p.name for p in world.settings.state_dir.iterdir()) == [
        "applied.json",
        "machine.json",
        "newest.json",
        "service-keys.json",
        "status",
    ]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("pending_approval", Exit.PENDING_APPROVAL),
        ("registered", Exit.NOT_AFFIRMED),
        ("attested", Exit.OK),
        ("locked", Exit.LOCKED),
        ("revoked", Exit.REVOKED),
    ],
)
def test_once_ends_with_the_code_of_the_status(tmp_path: Path, status: str, code: Exit) -> None:
    """Scripts at boot can tell them apart."""
    world = World(tmp_path)
    world.service.status = status
    assert world.run() is code
    # Kept for others on the node where the welcome said it; to be locked or revoked is an order, and none came.
    assert world.state.status() == (status if status not in ("locked", "revoked") else None)


def test_a_rejected_machine_ends_once_with_its_code(tmp_path: Path) -> None:
    """`403 machine-rejected` is an answer, too."""
    world = World(tmp_path)
    world.service.before = lambda path, body: problem(403, "machine-rejected") if path == "/attest" else None
    assert world.run() is Exit.REJECTED


def test_a_registration_token_is_presented_at_the_first_introduction_only(tmp_path: Path) -> None:
    """Later introductions of a known machine do not spend it again."""
    token_file = tmp_path / "token"
    token_file.write_text("r3g-t0ken\n")
    world = World(tmp_path, registration_token_file=str(token_file))
    world.run()
    assert world.service.requests[0][0] == "/register"
    assert world.service.requests[0][1]["registration_token"] == "r3g-t0ken"
    world.service.requests.clear()
    forgotten = iter([problem(403, "ak-not-activated")])
    world.service.before = lambda path, body: next(forgotten, None) if path == "/attest" else None
    world.run()
    assert "/self-register" in world.service.paths()


def test_a_refused_registration_token_leaves_a_machine_that_waits_for_approval(tmp_path: Path) -> None:
    """Better seen as pending than not at all; the log says why."""
    token_file = tmp_path / "token"
    token_file.write_text("spent")
    world = World(tmp_path, registration_token_file=str(token_file))
    world.service.before = lambda path, body: (
        problem(403, "registration-token-invalid") if path == "/register" else None
    )
    assert world.run() is Exit.PENDING_APPROVAL
    assert "registration_token.refused" in world.events.names()


@pytest.mark.parametrize("content", [None, b"", b"\xff", b"x" * 300])
def test_a_token_file_that_cannot_be_used_is_a_usage_error(tmp_path: Path, content: bytes | None) -> None:
    """The administrator asked for it; nothing happens without it."""
    token_file = tmp_path / "token"
    if content is not None:
        token_file.write_bytes(content)
    world = World(tmp_path, registration_token_file=str(token_file))
    assert world.run() is Exit.USAGE
    assert world.service.requests == []


@pytest.mark.parametrize("code", ["ak-not-activated", "machine-unknown"])
def test_a_service_that_forgot_the_key_is_introduced_to_again(tmp_path: Path, code: str) -> None:
    """After an ak-reset or a restored backup, the machine proves itself by itself."""
    world = attested(World(tmp_path))
    forgotten = iter([problem(403 if code.startswith("ak") else 404, code)])
    world.service.before = lambda path, body: next(forgotten, None) if path == "/attest" else None
    assert world.run() is Exit.OK
    assert world.service.paths() == [
        "/attest/challenge",
        "/attest",
        "/self-register",
        "/machines/ID/ak-activate",
        "/attest/challenge",
        "/attest",
    ]


def test_a_service_that_always_forgets_is_not_asked_for_ever(tmp_path: Path) -> None:
    """One repair per attempt."""
    world = World(tmp_path)
    world.service.before = lambda path, body: problem(403, "ak-not-activated") if path == "/attest" else None
    assert world.run() is Exit.REFUSED
    assert world.service.paths().count("/attest") == 2


@pytest.mark.parametrize(
    ("status", "code"), [(410, "challenge-expired"), (409, "challenge-used"), (404, "challenge-unknown")]
)
def test_a_challenge_that_the_service_no_longer_takes_is_replaced_at_once(
    tmp_path: Path, status: int, code: str
) -> None:
    """Clocks that disagree, and lost answers, cost one request and no pause."""
    world = attested(World(tmp_path, once=False))
    refused = iter([None, problem(status, code)])
    world.service.before = lambda path, body: next(refused, None) if path == "/attest" else None
    world.run(rounds=2)
    assert world.service.paths() == [
        "/attest/challenge",
        "/attest",
        "/attest",
        "/attest/challenge",
        "/attest",
    ]


def test_another_tpm_is_another_machine(tmp_path: Path) -> None:
    """A disk that moved to another box does not attest as the old machine, and takes nothing along."""
    world = attested(World(tmp_path))
    world.machine = Machine(seed=2)
    world.service.status = "pending_approval"
    assert world.run() is Exit.PENDING_APPROVAL
    assert world.service.paths()[:2] == ["/self-register", "/machines/ID/ak-activate"]
    known = world.state.known_as()
    assert known is not None
    assert known.ek_fingerprint == world.machine.ek.public.fingerprint()


@pytest.mark.parametrize(
    "alter",
    [
        lambda body: {**body, "machine_id": OTHER_ID},
        lambda body: {**body, "next_challenge": {**body["next_challenge"], "nonce": "AAAA"}},
    ],
)
def test_answers_about_another_machine_or_with_a_short_nonce_are_refused(tmp_path: Path, alter: Any) -> None:
    """What contradicts the question is no answer."""
    world = attested(World(tmp_path, once=False))
    world.service.alter = lambda path, body: alter(body) if path == "/attest" else body
    world.run(rounds=2)
    assert "attempt.failed" in world.events.names()


def test_the_quote_is_over_the_nonce_just_received(tmp_path: Path) -> None:
    """QualifyingData is the nonce, all 32 bytes of it."""
    world = World(tmp_path)
    world.run()
    _, sent = next(r for r in world.service.requests if r[0] == "/attest")
    quoted = parse_attest(b64decode(sent["pcr_quote"], "quote"))
    assert quoted.extra_data == world.machine.quotes[0]
    assert sorted(sent["pcr_values"]["sha256"]) == ["0", "7"]


def test_logs_are_sent_where_they_are_asked_for(tmp_path: Path) -> None:
    """The event log unasked once by a process, and whenever it is demanded; the IMA list where it is listed."""
    log, ima = tmp_path / "log", tmp_path / "ima"
    log.write_bytes(b"events")
    ima.write_bytes(b"list")
    world = World(tmp_path, event_log=str(log), ima_log=str(ima), once=False)
    world.run(rounds=3)
    assert [body.get("event_log") for body in _attested(world)] == ["ZXZlbnRz", None, None]
    assert not any(body.get("evidence") for body in _attested(world))
    world.service.requests.clear()

    def require(path: str, body: dict[str, Any]) -> dict[str, Any]:
        asked = {"event_log": "required", "evidence": ["tpm-quote", "ima-log"]}
        if path == "/attest":
            return {**body, "next_challenge": body["next_challenge"] | asked}
        return {**body, **asked} if path == "/attest/challenge" else body

    world.service.alter = require
    world.run(rounds=2)
    assert [body["event_log"] for body in _attested(world)] == ["ZXZlbnRz"] * 2
    assert [item["value"] for body in _attested(world) for item in body["evidence"]] == ["bGlzdA=="] * 2
    log.unlink()
    world.service.requests.clear()
    world.run(rounds=1)
    assert "event_log" not in _attested(world)[0]
    assert "event_log.unreadable" in world.events.names()


def test_a_log_that_nobody_needs_keeps_no_machine_away(tmp_path: Path) -> None:
    """Where the service cannot read it, the machine attests without; a demanded one is another matter."""
    log = tmp_path / "log"
    log.write_bytes(b"events")
    world = World(tmp_path, event_log=str(log), once=False)

    def malformed(path: str, body: dict[str, Any]) -> httpx.Response | None:
        return problem(400, "malformed-evidence") if path == "/attest" and body.get("event_log") else None

    world.service.before = malformed
    world.run(rounds=2)
    assert ["event_log" in body for body in _attested(world)] == [True, False, False]
    assert "event_log.refused" in world.events.names()
    assert "attempt.failed" not in world.events.names()
    world.service.alter = lambda path, body: (
        {**body, "event_log": "required"} if path == "/attest/challenge" else body
    )
    world.service.requests.clear()
    again = World(tmp_path / "again", event_log=str(log))
    again.service.before, again.service.alter = malformed, world.service.alter
    assert again.run() is not Exit.PENDING_APPROVAL
    assert "event_log.refused" not in again.events.names()


# Whom it believes


def test_service_keys_are_pinned_and_a_change_is_refused(tmp_path: Path) -> None:
    """Whoever shows other keys later is not the service; nothing of theirs is kept or obeyed."""
    world = attested(World(tmp_path))
    pinned = world.state.service_keys()
    world.service.signer = signer(tmp_path, "another")
    (world.settings.state_dir / "machine.json").unlink()
    assert world.run() is Exit.NOT_AUTHENTIC
    assert world.state.service_keys() == pinned
    assert world.state.known_as() is None
    assert "other keys" in str(world.events.entries[-1])


def test_damaged_pins_are_not_replaced_by_whatever_is_offered(tmp_path: Path) -> None:
    """Whoever can damage a file must not thereby choose whom we obey."""
    world = attested(World(tmp_path))
    pins = world.settings.state_dir / "service-keys.json"
    for damaged in ("", "{}", '{"keys": []}', "[1]"):
        pins.write_text(damaged)
        world.service.action = "lock"
        assert world.run() is Exit.NOT_AUTHENTIC
        assert pins.read_text() == damaged


def test_keys_in_another_order_or_with_other_remarks_are_the_same_keys(tmp_path: Path) -> None:
    """What counts are the members that RFC 7638 hashes."""
    world = attested(World(tmp_path))
    (world.settings.state_dir / "machine.json").unlink()
    world.service.alter = lambda path, body: (
        {**body, "service_keys": {"keys": [{**k, "use": "sig2"} for k in body["service_keys"]["keys"]]}}
        if path.endswith("ak-activate")
        else body
    )
    assert world.run() is Exit.OK


def test_without_pins_nobody_is_obeyed(tmp_path: Path) -> None:
    """Pins that were removed come back with an activation, never with an order."""
    world = attested(World(tmp_path, lock_command="lock"))
    (world.settings.state_dir / "service-keys.json").unlink()
    world.service.action = "lock"
    assert world.run() is Exit.NOT_AUTHENTIC
    assert world.commands == []


@pytest.mark.threat("T131")
def test_an_activation_of_another_machine_is_refused(tmp_path: Path) -> None:
    """Nothing is pinned or remembered."""
    world = World(tmp_path)

    def mislead(claims: dict[str, Any]) -> str:
        other = {**claims["binding"], "machine_id": OTHER_ID}
        return world.service.sign({**claims, "binding": other}, typ="itl-welcome+jwt")

    world.service.welcome = mislead
    assert world.run() is Exit.NOT_AUTHENTIC
    assert world.state.known_as() is None
    assert world.state.service_keys() is None


# What it obeys


@pytest.mark.threat("T19", "T131")
@pytest.mark.parametrize("action", ["lock", "wipe", "apply-config"])
@pytest.mark.parametrize(
    "fault",
    [
        "unsigned",
        "another-key",
        "another-machine",
        "another-ek",
        "another-ak",
        "protocol-1",
        "another-nonce",
        "another-request",
        "another-type",
        "another-action",
        "another-word",
        "garbage",
    ],
)
def test_an_order_that_is_not_proven_is_not_obeyed(tmp_path: Path, action: str, fault: str) -> None:
    """Forged, replayed, misdirected, stale: no command runs, no file is written, nothing is acknowledged."""
    world = attested(World(tmp_path, lock_command="lock", wipe_command="wipe", apply_command="apply"))
    world.config_path.unlink()
    world.commands.clear()
    world.service.acks.clear()

    def forge(claims: dict[str, Any]) -> str | None:
        match fault:
            case "unsigned":
                return None
            case "another-key":
                return signer(tmp_path, "another").sign_jwt(claims, typ="itl-directive+jwt")
            case "another-machine":
                claims["binding"]["machine_id"] = OTHER_ID
            case "another-ek":
                claims["binding"]["ek_fingerprint"] = "0" * 96
            case "another-ak":
                claims["binding"]["ak_name"] = "000b" + "0" * 64
            case "protocol-1":
                claims["machine_id"] = claims.pop("binding")["machine_id"]
                del claims["node_nonce"]
            case "another-nonce":
                claims["nonce"] = "A" * 43 + "="
            case "another-request":
                claims["node_nonce"] = "A" * 43 + "="
            case "another-type":
                return world.service.sign(claims, typ="JWT")
            case "another-action":
                claims["action"] = "lock" if action != "lock" else "wipe"
            case "another-word":
                claims["action"] = "none"
            case "garbage":
                return "a.b.c"
        return world.service.sign(claims)

    world.service.action, world.service.directive = action, forge
    assert world.run() is Exit.NOT_AUTHENTIC
    assert world.commands == []
    assert world.service.acks == []
    assert not world.config_path.exists()
    assert world.state.status() == "attested"
    assert world.state.wipe_order() is None


@pytest.mark.threat("T19")
@pytest.mark.parametrize("action", ["lock", "wipe"])
def test_a_replayed_order_is_not_obeyed(tmp_path: Path, action: str) -> None:
    """Yesterday's genuine directive is worth nothing today."""
    world = attested(World(tmp_path, lock_command="lock", wipe_command="wipe"))
    world.service.node_nonce = "A" * 43 + "="
    old = world.service.claims(action=action)
    # Even if the challenge of then is handed out again, and whatever the clock of the machine says.
    world.service.action = action
    world.service.directive = lambda claims: world.service.sign({**old, "nonce": claims["nonce"]})
    assert world.run() is Exit.NOT_AUTHENTIC
    assert world.commands == []
    world.service.directive = None
    world.clock.at -= timedelta(days=9000)
    assert world.run() in (Exit.LOCKED, Exit.REVOKED)
    assert len(world.commands) == 1


def test_a_resident_agent_ignores_a_forged_order_and_goes_on(tmp_path: Path) -> None:
    """No network answer ends it; the genuine order that follows is obeyed."""
    world = attested(World(tmp_path, once=False, lock_command="lock"))
    world.service.action, world.service.directive = "lock", lambda claims: None

    def repair(passed: int) -> None:
        if passed == 2:
            world.service.directive = None

    world.during = repair
    assert world.run(rounds=3) is Exit.OK
    assert world.events.names().count("attempt.failed") == 2
    assert world.commands == [("lock",)]


def test_a_lock_is_obeyed_once_and_acknowledged_once(tmp_path: Path) -> None:
    """The directive comes with every answer while the machine is locked."""
    world = attested(World(tmp_path, once=False, lock_command="lock --hard"))
    world.service.acks.clear()
    world.service.status, world.service.action = "locked", "lock"
    world.run(rounds=3)
    assert world.commands == [("lock", "--hard")]
    assert [ack["outcome"] for ack in world.service.acks] == ["done"]
    assert world.state.status() == "locked"
    world.service.status, world.service.action = "attested", "none"
    world.run(rounds=1)
    assert world.state.status() == "locked"


def test_an_unlock_is_an_order_and_acknowledged_until_the_service_heard_it(tmp_path: Path) -> None:
    """The command runs once; the acknowledgement goes out for every order, because the service repeats it."""
    world = attested(World(tmp_path, once=False, lock_command="lock", unlock_command="unlock --now"))
    world.service.status, world.service.action = "locked", "lock"
    world.run(rounds=1)
    world.service.status, world.service.action = "attested", "unlock"
    world.command = Outcome(ok=False, text="exit status 1")
    world.run(rounds=1)
    assert world.state.status() == "unlock_failed"
    world.command = Outcome(ok=True, text="exit status 0")
    world.run(rounds=2)
    assert world.commands == [("lock",), ("unlock", "--now"), ("unlock", "--now")]
    assert [ack["outcome"] for ack in world.service.acks[-3:]] == ["failed", "done", "done"]
    assert world.state.status() == "attested"


def test_a_lock_command_that_failed_is_tried_again(tmp_path: Path) -> None:
    """And the service hears of the failure."""
    world = attested(World(tmp_path, once=False, lock_command="lock"))
    world.service.acks.clear()
    world.service.status, world.service.action = "locked", "lock"
    world.command = Outcome(ok=False, text="exit status 1")
    world.run(rounds=1)
    assert world.service.acks[0]["outcome"] == "failed"
    world.command = Outcome(ok=True, text="exit status 0")
    world.run(rounds=1)
    assert world.commands == [("lock",), ("lock",)]
    assert world.state.status() == "locked"


# Wiping


def wiping(tmp_path: Path) -> World:
    world = attested(World(tmp_path, wipe_command="wipe --all"))
    world.service.acks.clear()
    world.service.status, world.service.action = "revoked", "wipe"
    return world


def test_a_wipe_is_acknowledged_before_it_begins(tmp_path: Path) -> None:
    """Afterwards there is nobody left to say so; the acknowledgement carries the right quote."""
    world = wiping(tmp_path)
    order: list[str] = []
    original = world._run
    world.service.before = lambda path, body: order.append(path) if path.endswith("/ack") else None

    def run(command: tuple[str, ...]) -> Outcome:
        order.append("wipe")
        return original(command)

    world._run = run  # type: ignore[method-assign]  # watched
    assert world.run() is Exit.REVOKED
    assert [o.rsplit("/", 1)[-1] for o in order] == ["ack", "wipe"]
    ack = world.service.acks[0]
    assert world.service.last_directive is not None
    assert ack["directive_sha256"] == hashlib.sha256(world.service.last_directive.encode()).hexdigest()
    assert parse_attest(b64decode(ack["pcr_quote"], "q")).extra_data == ack["qualifying_data"]
    assert world.state.wipe_order() is None


def test_no_acknowledgement_no_wipe(tmp_path: Path) -> None:
    """While the service cannot record it, nothing is erased; the order comes again."""
    world = wiping(tmp_path)
    world.service.before = lambda path, body: problem(503, "unavailable") if path.endswith("/ack") else None
    assert world.run(rounds=99) is Exit.UNREACHABLE
    assert world.commands == []
    world.service.before = lambda path, body: None
    assert world.run() is Exit.REVOKED
    assert world.commands == [("wipe", "--all")]


def test_power_lost_between_acknowledgement_and_wipe_does_not_save_the_disks(tmp_path: Path) -> None:
    """The service says no more after the acknowledgement; the order was kept, and needs no network."""
    world = wiping(tmp_path)

    def power_cut(command: tuple[str, ...]) -> Outcome:
        raise KeyboardInterrupt

    world._run = power_cut  # type: ignore[method-assign]  # the power goes
    with pytest.raises(KeyboardInterrupt):
        world.run()
    assert len(world.service.acks) == 1
    del world._run
    world.service.before = lambda path, body: problem(503, "unavailable")
    assert world.run() is Exit.REVOKED
    assert world.commands == [("wipe", "--all")]


def test_an_acknowledgement_whose_answer_was_lost_still_leads_to_the_wipe(tmp_path: Path) -> None:
    """The service recorded it and orders nothing any more."""
    world = wiping(tmp_path)

    def lose(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path.endswith("/ack"):
            raise httpx.ReadTimeout("lost")
        return body

    world.service.alter = lose
    world.run()
    assert world.commands == []
    world.service.alter, world.service.action = (lambda path, body: body), "none"
    assert world.run() is Exit.REVOKED
    assert world.commands == [("wipe", "--all")]


def test_without_a_wipe_command_no_wipe_is_claimed(tmp_path: Path) -> None:
    """`done` would be a lie."""
    world = attested(World(tmp_path))
    world.service.acks.clear()
    world.service.status, world.service.action = "revoked", "wipe"
    assert world.run() is Exit.REVOKED
    assert [ack["outcome"] for ack in world.service.acks] == ["failed"]


def test_a_wipe_command_that_fails_is_tried_again(tmp_path: Path) -> None:
    """Until the disks are gone, whatever the service says meanwhile."""
    world = wiping(tmp_path)
    world.command = Outcome(ok=False, text="exit status 1")
    assert world.run() is Exit.WIPE_FAILED
    world.service.action = "none"
    world.command = Outcome(ok=True, text="exit status 0")
    assert world.run() is Exit.REVOKED
    assert world.commands == [("wipe", "--all")] * 2


def test_a_kept_order_does_not_wipe_another_machine(tmp_path: Path) -> None:
    """The disk sits in another box now: its TPM is not the one that was ordered to."""
    world = wiping(tmp_path)
    world.command = Outcome(ok=False, text="exit status 1")
    world.run()
    world.commands.clear()
    world.command = Outcome(ok=True, text="exit status 0")
    world.machine = Machine(seed=2)
    world.service.status, world.service.action = "pending_approval", "none"
    world.service.machine_id = OTHER_ID
    assert world.run() is Exit.PENDING_APPROVAL
    assert world.commands == []


def test_an_order_planted_in_the_state_is_not_obeyed(tmp_path: Path) -> None:
    """What was kept must still verify under the pinned keys, and for this very TPM."""
    world = attested(World(tmp_path, wipe_command="wipe"))
    order = world.service.claims(action="wipe", nonce="")
    another_ak = {**order, "binding": {**order["binding"], "ak_name": "000b" + "0" * 64}}
    forged = signer(tmp_path, "another").sign_jwt(order, typ="itl-directive+jwt")
    lock = world.service.sign({**order, "action": "lock"})
    for token in (forged, "a.b.c", lock, world.service.sign(another_ak)):
        (world.settings.state_dir / "wipe.json").write_text(
            json.dumps({"directive": token, "acknowledged": True})
        )
        assert world.run() is Exit.NOT_AUTHENTIC
        assert world.commands == []


# Configurations that do not apply


Forgery = Callable[[World, dict[str, Any]], str | None]

FORGED_DELIVERIES: dict[str, Forgery] = {
    "none at all": lambda world, claims: None,
    "no signature": lambda world, claims: "a.b.c",
    "by another key": lambda world, claims: signer(world.tmp_path, "another").sign_jwt(
        claims, typ="itl-config+jwt"
    ),
    "a directive": lambda world, claims: world.service.sign(claims),
    "another machine": lambda world, claims: world.service.sign(
        {**claims, "binding": {**claims["binding"], "machine_id": OTHER_ID}}, typ="itl-config+jwt"
    ),
    "another token": lambda world, claims: world.service.sign(
        {**claims, "token_id": "f" * 16}, typ="itl-config+jwt"
    ),
    "another configuration": lambda world, claims: world.service.sign(
        {**claims, "config_sha256": "0" * 64}, typ="itl-config+jwt"
    ),
    "an old one": lambda world, claims: world.service.sign(
        {**claims, "node_nonce": "A" * 43 + "="}, typ="itl-config+jwt"
    ),
    "at no time": lambda world, claims: world.service.sign(
        {name: value for name, value in claims.items() if name != "iat"}, typ="itl-config+jwt"
    ),
    "of protocol 1": lambda world, claims: world.service.sign(
        {"machine_id": MACHINE_ID, **{k: v for k, v in claims.items() if k not in ("binding", "node_nonce")}},
        typ="itl-config+jwt",
    ),
}


@pytest.mark.threat("T17")
@pytest.mark.parametrize("forgery", FORGED_DELIVERIES.values(), ids=FORGED_DELIVERIES.keys())
def test_a_configuration_that_the_service_did_not_sign_is_not_applied(
    tmp_path: Path, forgery: Forgery
) -> None:
    """Anybody can seal to public keys: the seal opens, and still nothing is written, run or kept."""
    world = World(tmp_path, apply_command="apply")
    world.service.status, world.service.action = "attested", "apply-config"
    world.service.config_signature = lambda claims: forgery(world, claims)
    assert world.run() is Exit.NOT_AUTHENTIC
    assert not world.config_path.exists()
    assert world.commands == []
    assert world.state.pending_config() is None


@pytest.mark.parametrize("member", ["config_sha256", "token_id"])
def test_an_envelope_with_another_name_than_was_signed_is_not_opened(tmp_path: Path, member: str) -> None:
    """Token and digest are covered by the signature."""
    world = World(tmp_path)
    world.service.status, world.service.action = "attested", "apply-config"

    def change(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path.startswith("/config/"):
            body[member] = ("1" if body[member][0] != "1" else "2") + body[member][1:]
        return body

    world.service.alter = change
    assert world.run() is Exit.NOT_AUTHENTIC
    assert not world.config_path.exists()


@pytest.mark.threat("T15")
@pytest.mark.parametrize("member", ["ciphertext", "iv", "credential_blob", "machine_id"])
def test_an_envelope_that_was_changed_leaves_no_trace_of_a_config(tmp_path: Path, member: str) -> None:
    """Nothing is written before tag and digest were checked; the service hears `failed`."""
    world = World(tmp_path, apply_command="apply")
    world.service.status, world.service.action = "attested", "apply-config"

    def change(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path.startswith("/config/"):
            changed = "1" if body[member][-3] != "1" else "2"
            body[member] = f"{body[member][:-3]}{changed}{body[member][-2:]}"
        return body

    world.service.alter = change
    assert world.run() is Exit.CONFIG_NOT_OPENED
    assert not world.config_path.exists()
    assert world.commands == []
    assert [ack["outcome"] for ack in world.service.acks] == ["failed"]


def test_an_apply_command_that_fails_is_reported_and_tried_again_later(tmp_path: Path) -> None:
    """The configuration is kept sealed, the attestations go on at their pace, and each pause doubles."""
    world = World(tmp_path, once=False, apply_command="apply")
    world.service.status, world.service.action = "attested", "apply-config"
    world.command = Outcome(ok=False, text="exit status 3")
    world.run(rounds=10)
    assert world.waits == [0, *[45.0] * 10]
    assert len(world.commands) == 3
    assert [ack["outcome"] for ack in world.service.acks] == ["failed"]
    assert b"canary" not in (world.settings.state_dir / "pending-config.json").read_bytes()
    world.command = Outcome(ok=True, text="exit status 0")
    world.clock.at += timedelta(hours=1)
    world.run(rounds=1)
    assert len(world.commands) == 4
    assert world.state.pending_config() is None


def test_words_of_any_length_are_reported(tmp_path: Path) -> None:
    """Of a failure the service hears as much as an acknowledgement holds, and nothing that deceives its readers."""
    world = World(tmp_path, apply_command="apply")
    world.service.status, world.service.action = "attested", "apply-config"
    world.command = Outcome(ok=False, text="cannot\n" + 2000 * "é")
    assert world.run() is Exit.APPLY_FAILED
    said = "apply command: cannot\ufffd"
    assert [ack["detail"] for ack in world.service.acks] == [said + (1024 - len(said)) * "é"]


def owed(world: World) -> World:
    """Let the service of *world* owe the machine its configuration until it is applied."""
    world.service.status, world.service.action, world.service.owes = "attested", "apply-config", True
    return world


def test_what_is_offered_until_it_is_applied_is_fetched_anew_with_growing_pauses(tmp_path: Path) -> None:
    """It may be the configuration that is wrong; other programs read `not_configured`, the service hears why."""
    world = owed(World(tmp_path, once=False, apply_command="apply"))
    world.command = Outcome(ok=False, text="exit status 3")
    world.run(rounds=100)
    # After 1, 2, 4, 8 and then every 15 minutes, at the rounds of 45 s.
    assert len(world.commands) == len(world.service.acks) == 8
    assert world.service.paths().count("/config/t0ken") == 8
    assert {(ack["outcome"], ack["detail"]) for ack in world.service.acks} == {
        ("failed", "apply command: exit status 3")
    }
    assert world.state.status() == "not_configured"
    world.command, world.service.config = Outcome(ok=True, text="exit status 0"), b"mended"
    world.run(rounds=3)
    assert (world.config_path.read_bytes(), len(world.commands)) == (b"mended", 9)
    assert world.state.status() == "attested"


def test_a_clock_that_is_set_back_delays_no_configuration(tmp_path: Path) -> None:
    """It was hours ahead when the delivery failed, as at many a first boot."""
    world = owed(World(tmp_path, once=False, apply_command="apply"))
    world.command = Outcome(ok=False, text="exit status 3")

    def set_back(passed: int) -> None:
        if passed == 1:
            world.clock.at -= timedelta(hours=5)
            world.command = Outcome(ok=True, text="exit status 0")

    world.during = set_back
    world.run(rounds=2)
    assert len(world.commands) == 2
    assert world.config_path.exists()
    assert world.state.status() == "attested"


def test_a_service_without_a_configuration_is_asked_at_each_round(tmp_path: Path) -> None:
    """Attested, and not configured: code 15; who stays has it in the first round in which the service has it."""
    told: list[int] = []
    world = owed(World(tmp_path))
    missing = problem(503, "base-config-missing")
    world.attested = lambda: told.append(1)
    world.service.before = lambda path, body: missing if path.startswith("/config/") else None
    assert world.run() is Exit.NOT_DELIVERED
    assert len(told) == 1  # its certificates are asked for, as of those who stay
    assert "attempt.failed" not in world.events.names()  # said once, by `config.not_delivered`
    assert world.state.status() == "not_configured"
    (tmp_path / "stays").mkdir()
    world = owed(World(tmp_path / "stays", once=False))
    world.attested = lambda: told.append(1)
    world.service.before = lambda path, body: missing if path.startswith("/config/") else None
    world.run(rounds=3)
    assert world.waits == [0, 45, 45, 45]
    assert len(told) == 1 + 3
    world.service.before = lambda path, body: None
    world.run(rounds=1)
    assert world.config_path.read_bytes() == CONFIG
    assert world.state.status() == "attested"


@pytest.mark.threat("T173")
@pytest.mark.parametrize("file", ["newest.json", "pending-config.json", "applied.json", "status"])
def test_a_state_directory_that_is_full_is_said_and_heals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """No crash: the service hears why, and what is not kept as applied is offered until it is."""
    world = owed(World(tmp_path))
    write, full = files.write_atomically, True

    def one_is_full(path: Path, data: bytes) -> None:
        if full and path.name == file and (file != "status" or b"attested" in data):
            raise OSError(28, "No space left on device")
        write(path, data)

    world.service.status, world.service.action = "registered", "none"
    assert world.run() is Exit.NOT_AFFIRMED
    owed(world)
    monkeypatch.setattr("attestation_agent.state.write_atomically", one_is_full)
    assert world.run() is Exit.STATE_NOT_KEPT
    said = f"state directory {world.state.directory}: No space left on device"
    assert [(ack["outcome"], ack["detail"]) for ack in world.service.acks] == [("failed", said)]
    full, world.service.token_id = False, "f" * 16
    assert world.run() is Exit.OK
    assert world.config_path.read_bytes() == CONFIG


def test_power_lost_between_fetch_and_apply_does_not_lose_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token is spent; the sealed envelope is not, and the acknowledgement follows."""
    world = World(tmp_path)
    world.service.status, world.service.action = "attested", "apply-config"
    activate, calls = world.machine.activate, []

    def power_cut(credential_blob: bytes, encrypted_secret: bytes) -> bytes:
        calls.append(1)
        if len(calls) == 2:  # the first was the activation
            raise KeyboardInterrupt
        return activate(credential_blob, encrypted_secret)

    monkeypatch.setattr(world.machine, "activate", power_cut)
    with pytest.raises(KeyboardInterrupt):
        world.run()
    assert not world.config_path.exists()
    assert world.run() is Exit.OK
    assert world.config_path.read_bytes() == CONFIG
    assert [ack["outcome"] for ack in world.service.acks] == ["done"]


@pytest.mark.parametrize(("status", "action"), [("locked", "lock"), ("revoked", "wipe"), ("revoked", "none")])
def test_a_machine_that_lost_its_standing_applies_nothing_kept(
    tmp_path: Path, status: str, action: str
) -> None:
    """An order throws away what was waiting; a status by itself only delays it."""
    world = World(tmp_path, once=False, apply_command="apply")
    world.service.status, world.service.action = "attested", "apply-config"
    world.command = Outcome(ok=False, text="exit status 3")
    world.run(rounds=1)
    world.service.status, world.service.action = status, action
    world.clock.at += timedelta(hours=1)
    world.run(rounds=1)
    assert len(world.commands) == 1
    assert (world.state.pending_config() is None) is (action != "none")


def test_a_configuration_is_applied_once(tmp_path: Path) -> None:
    """The same token id again, however well it is signed: nothing is fetched or run."""
    world = attested(World(tmp_path, apply_command="apply"))
    world.commands.clear()
    world.service.action = "apply-config"
    assert world.run() is Exit.REFUSED
    assert not any(path.startswith("/config/") for path in world.service.paths())
    assert world.commands == []
    world.service.token_id = "f" * 16
    assert world.run() is Exit.OK
    assert len(world.commands) == 1


@pytest.mark.threat("T17")
def test_only_the_configuration_that_was_ordered_is_applied(tmp_path: Path) -> None:
    """Signed, fresh, for this machine, and another than the directive names."""
    world = World(tmp_path, apply_command="apply")
    world.service.status, world.service.action = "attested", "apply-config"
    world.service.directive = lambda claims: world.service.sign({**claims, "token_id": "f" * 16})
    assert world.run() is Exit.NOT_AUTHENTIC
    assert world.commands == []
    world.service.action = "apply-config"
    world.service.directive = lambda claims: world.service.sign(
        {name: value for name, value in claims.items() if name != "token_id"}
    )
    assert world.run() is Exit.NOT_AUTHENTIC


@pytest.mark.parametrize("answer", ["no token", "pending answer"])
def test_an_order_without_a_configuration_is_a_refusal(tmp_path: Path, answer: str) -> None:
    """apply-config, but nothing to apply."""
    world = World(tmp_path)
    world.service.status, world.service.action = "attested", "apply-config"
    if answer == "no token":
        world.service.alter = lambda path, body: {**body, "config_token": None} if path == "/attest" else body
    else:
        yaml = httpx.Response(200, content=b"a: b", headers={"Content-Type": "application/yaml"})
        world.service.before = lambda path, body: yaml if path.startswith("/config/") else None
    assert world.run() is Exit.REFUSED
    assert not world.config_path.exists()


def test_a_path_that_cannot_be_written_is_an_apply_failure(tmp_path: Path) -> None:
    """A full or read-only disk is told as such."""
    (tmp_path / "file").write_text("")
    world = World(tmp_path, config_path=str(tmp_path / "file" / "config.yaml"))
    world.service.status, world.service.action = "attested", "apply-config"
    assert world.run() is Exit.APPLY_FAILED


# When things fail


def test_failures_are_answered_with_growing_pauses(tmp_path: Path) -> None:
    """Exponential, bounded, and back to the pace of the service after the first success."""
    world = attested(World(tmp_path, once=False))
    world.service.before = lambda path, body: problem(500, "internal")
    world.during = lambda passed: (
        setattr(world.service, "before", lambda path, body: None) if passed == 10 else None
    )
    world.run(rounds=11)
    assert world.waits == [0, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 45]


def test_retry_after_is_a_lower_bound_and_spread_out(tmp_path: Path) -> None:
    """Not before the service said, and not all at the same second."""
    world = attested(World(tmp_path, once=False))
    world.service.before = lambda path, body: problem(429, "rate-limited", **{"Retry-After": "100"})
    world.run(rounds=1)
    assert world.waits == [0, 125]


@pytest.mark.parametrize(("asked", "waits"), [(0, 1), (10**9, 3600)])
def test_the_pace_of_the_service_has_bounds(tmp_path: Path, asked: int, waits: float) -> None:
    """Neither a busy loop, nor never again."""
    world = World(tmp_path, once=False)
    world.service.reattest_after_seconds = asked
    world.run(rounds=1)
    assert world.waits == [0, waits]


def test_once_gives_an_unreachable_service_a_few_attempts(tmp_path: Path) -> None:
    """A network that is not up yet; then 21."""
    world = World(tmp_path, attempts="3")

    def refuse(path: str, body: dict[str, Any]) -> httpx.Response:
        raise httpx.ConnectError("no")

    world.service.before = refuse
    world.rounds = 99
    edge_waits = world.run(rounds=99)
    assert edge_waits is Exit.UNREACHABLE
    assert world.waits == [2, 4]


def test_a_stop_between_rounds_ends_cleanly(tmp_path: Path) -> None:
    """TPM2_Shutdown, then close; exit 0."""
    world = attested(World(tmp_path, once=False))
    world.machine.ended.clear()
    assert world.run(rounds=1) is Exit.OK
    assert world.machine.ended == ["shutdown", "close"]
    assert world.events.names()[-1] == "agent.stopping"


def test_a_tpm_that_fails_is_opened_again(tmp_path: Path) -> None:
    """A resource manager that restarts does not end a resident agent."""
    world = attested(World(tmp_path, once=False))
    world.machine.failures = 2
    world.machine.ended.clear()
    assert world.run(rounds=3) is Exit.OK
    assert world.machine.ended == ["close", "close", "shutdown", "close"]


@pytest.mark.parametrize(
    ("tpm", "ended"),
    [
        ("device:/dev/tpmrm0", ["shutdown", "close"]),
        ("unix:/run/tpm.sock", ["close", "close", "close", "shutdown", "close"]),
        ("tcp:localhost:2321", ["close", "close", "close", "shutdown", "close"]),
    ],
)
def test_a_tpm_that_serves_one_program_is_let_go_between_rounds(
    tmp_path: Path, tpm: str, ended: list[str]
) -> None:
    """Else no command of the agent could be used beside one that runs; the kernel's is shared anyway."""
    world = attested(World(tmp_path, once=False, tpm=tpm))
    world.machine.ended.clear()
    assert world.run(rounds=3) is Exit.OK
    assert world.machine.ended == ended


def test_without_a_tpm_there_is_no_agent(tmp_path: Path) -> None:
    """At the start it is a reason to end, whatever the mode."""
    world = World(tmp_path, once=False)

    def absent() -> Machine:
        raise DeviceError("TPM /dev/tpmrm0: No such file or directory")

    from attestation.client import NodeClient
    from attestation_agent.edge import Edge
    from attestation_agent.node import Agent
    from attestation_agent.rhythm import Rhythm

    edge = Edge(
        clock=world.clock,
        wait=world._wait,
        open_tpm=absent,
        run=world._run,
        rhythm=Rhythm(),
        log=world.events,
    )
    with NodeClient(URL, carrier=answering(world.service)) as client, pytest.raises(DeviceError):
        Agent(world.settings, state=world.state, client=client, edge=edge).run()
    assert world.service.requests == []


# The second protocol


def _offers(world: World, *, kinds: tuple[str, ...] = ("tpm-quote", "tpm-ek-certify")) -> bytes:
    """Let every challenge that is fetched carry a key sealed to the EK; return the secret of the offers."""
    secret = bytes(range(64))

    def change(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path != "/attest/challenge":
            return body
        offered = ek_key_attestation.offer(world.machine.ek.public, secret)
        members = ("object_public", "duplicate", "in_sym_seed")
        sealed = {name: b64encode(getattr(offered, name)) for name in members}
        return {**body, "evidence": list(kinds), "ek_challenge": sealed}

    world.service.alter = change
    return secret


def _attested(world: World) -> list[dict[str, Any]]:
    return [body for path, body in world.service.requests if path == "/attest"]


def test_the_ek_vouches_where_a_key_is_offered(tmp_path: Path) -> None:
    """An offer is answered with a certification of the AK over the nonce of the challenge."""
    world = World(tmp_path)
    secret = _offers(world)
    issued: dict[str, bytes] = {}
    nonces = world.service.nonces
    original = world.service.alter

    def remember(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path == "/attest/challenge":
            issued[body["nonce_id"]] = nonces[body["nonce_id"]]
        return original(path, body)

    world.service.alter = remember
    world.run()
    (body,) = _attested(world)
    (item,) = body["evidence"]
    assert item["media_type"] == ek_key_attestation.MEDIA_TYPE
    claims = ek_key_attestation.verify(
        ek_key_attestation.parse(
            *(b64decode(item["value"][name], name) for name in ("certify_info", "signature"))
        ),
        secret=secret,
        challenge=issued[body["nonce_id"]],
        ek=world.machine.ek.public,
        ak=world.machine.ak.public,
    )
    assert claims.ak_name == world.machine.ak.public.name


def test_nothing_is_certified_unasked(tmp_path: Path) -> None:
    """Without an offer, or with one that the challenge does not list, no key is imported."""
    plain = World(tmp_path / "a")
    plain.run()
    unlisted = World(tmp_path / "b")
    _offers(unlisted, kinds=("tpm-quote",))
    unlisted.run()
    for world in (plain, unlisted):
        assert not _attested(world)[0].get("evidence")


@pytest.mark.parametrize("broken", ["!", "AAAA"])
def test_an_offer_that_cannot_be_opened_is_passed_over(tmp_path: Path, broken: str) -> None:
    """A key for another TPM, or rubbish: the machine attests without, and says so in its log."""
    world = World(tmp_path)
    _offers(world)
    good = world.service.alter

    def spoil(path: str, body: dict[str, Any]) -> dict[str, Any]:
        body = good(path, body)
        if "ek_challenge" in body:
            body["ek_challenge"]["duplicate"] = broken
        return body

    world.service.alter = spoil
    assert world.run() is Exit.PENDING_APPROVAL
    assert not _attested(world)[0].get("evidence")
    assert "key_certification.failed" in world.events.names()


def test_a_tpm_that_is_too_slow_attests_without(tmp_path: Path) -> None:
    """Where the challenge ends while the EK is derived, the next attempt leaves the certification out."""
    world = World(tmp_path)
    _offers(world)
    refused: list[str] = []

    def once(path: str, _body: dict[str, Any]) -> httpx.Response | None:
        if path == "/attest" and not refused:
            refused.append("once")
            return problem(410, "challenge-expired")
        return None

    world.service.before = once
    assert world.run() is Exit.PENDING_APPROVAL
    assert "key_certification.too_slow" in world.events.names()
    assert not _attested(world)[-1].get("evidence")


# Old services, and keys that somebody gave


def recorded(name: str) -> httpx.Response:
    """Return an answer of a service of protocol 1, as it was recorded."""
    found = json.loads((Path(__file__).parent / "answers_of_protocol_1.json").read_text())[name]
    return httpx.Response(found["status"], headers=found["headers"], json=found["body"])


@pytest.mark.threat("T134")
@pytest.mark.parametrize("known", [False, True])
def test_a_service_that_is_too_old_is_told_so_and_changes_nothing(tmp_path: Path, known: bool) -> None:
    """Its `422` names node_nonce; the agent says what that means, and stays as it is."""
    world = World(tmp_path)
    if known:
        attested(world)
    state = world.settings.state_dir
    before = {p.name: p.read_bytes() for p in state.iterdir()}
    refused = "/attest" if known else f"/machines/{MACHINE_ID}/ak-activate"
    world.service.before = lambda path, body: recorded("node_nonce") if path == refused else None
    assert world.run() is Exit.REFUSED
    assert {p.name: p.read_bytes() for p in state.iterdir()} == before
    assert "too old for this agent" in str(world.events.entries[-1])
    assert world.events.entries[-1][1]["code"] == "service-too-old"


def test_an_activation_without_a_welcome_changes_nothing(tmp_path: Path) -> None:
    """As a service answers that leaves the nonce out of account, or somebody who took the welcome away."""
    world = World(tmp_path)
    world.service.welcome = lambda claims: None
    assert world.run() is Exit.NOT_AUTHENTIC
    assert list(world.settings.state_dir.iterdir()) == []


@pytest.mark.parametrize("member", ["challenge_id", "node_nonce", "status"])
def test_a_welcome_for_another_activation_changes_nothing(tmp_path: Path, member: str) -> None:
    """Each of its claims counts."""
    world = World(tmp_path)
    other = {"challenge_id": "0" * 32, "node_nonce": "A" * 43 + "=", "status": "king"}
    world.service.welcome = lambda claims: world.service.sign(
        {**claims, member: other[member]}, typ="itl-welcome+jwt"
    )
    assert world.run() is Exit.NOT_AUTHENTIC
    assert list(world.settings.state_dir.iterdir()) == []


def _given(tmp_path: Path, jwks: dict[str, Any]) -> str:
    digest = key_set_sha256(thumbprints(jwks)).hex()
    (tmp_path / "token").write_text(f"r3g-t0ken\n{digest}\n")
    return str(tmp_path / "token")


@pytest.mark.threat("T135")
def test_keys_given_beside_the_token_are_the_only_ones_believed(tmp_path: Path) -> None:
    """Others are refused before anything is kept; of a set that grew since, those are pinned that were given."""
    world = World(tmp_path)
    token = _given(tmp_path, world.service.signer.jwks())
    world = World(tmp_path, registration_token_file=token)
    honest, world.service.signer = world.service.signer, signer(tmp_path, "in-between")
    assert world.run() is Exit.NOT_AUTHENTIC
    assert list(world.settings.state_dir.iterdir()) == []
    world.service.signer = honest
    more = {"keys": [*signer(tmp_path, "next").jwks()["keys"], *honest.jwks()["keys"]]}
    world.service.alter = lambda path, body: (
        {**body, "service_keys": more} if path.endswith("ak-activate") else body
    )
    assert world.run() is Exit.PENDING_APPROVAL
    assert world.state.service_keys() == honest.jwks()
    assert ("service_keys.pinned", "digest") in [(e, f.get("by")) for e, f in world.events.entries]


def test_keys_given_beside_the_token_are_believed_again_after_the_pin_was_removed(tmp_path: Path) -> None:
    """The service was rebuilt, the pin removed as the agent advises: whoever is in between is not "first use"."""
    world = World(tmp_path)
    token = _given(tmp_path, world.service.signer.jwks())
    world = World(tmp_path, registration_token_file=token)
    assert world.run() is Exit.PENDING_APPROVAL
    (world.settings.state_dir / "service-keys.json").unlink()
    honest, world.service.signer = world.service.signer, signer(tmp_path, "in-between")
    world.service.before = lambda path, body: problem(404, "machine-unknown") if path == "/attest" else None
    assert world.run() is Exit.NOT_AUTHENTIC
    assert world.state.service_keys() is None
    forgotten = iter([problem(404, "machine-unknown")])
    world.service.signer = honest
    world.service.before = lambda path, body: next(forgotten, None) if path == "/attest" else None
    assert world.run() is Exit.PENDING_APPROVAL
    assert world.state.service_keys() == honest.jwks()


@pytest.mark.threat("T135")
def test_keys_in_a_file_are_the_only_ones_believed(tmp_path: Path) -> None:
    """Of the image, for example; the file is read at the first activation only."""
    keys = tmp_path / "keys.json"
    world = World(tmp_path, service_keys_file=str(keys))
    for wrong in (None, "", "[]", '{"keys": []}', "[" * 60_000):
        if wrong is not None:
            keys.write_text(wrong)
        assert world.run() is Exit.USAGE
        assert list(world.settings.state_dir.iterdir()) == []
    keys.write_text(json.dumps(signer(tmp_path, "another").jwks()))
    assert world.run() is Exit.NOT_AUTHENTIC
    keys.write_text(json.dumps(world.service.signer.jwks()))
    assert world.run() is Exit.PENDING_APPROVAL
    keys.unlink()
    assert world.run() is Exit.PENDING_APPROVAL


def test_first_use_is_warned_of_once(tmp_path: Path) -> None:
    """Nobody vouched for these keys; the log says so, with what an operator can compare."""
    world = World(tmp_path)
    world.run()
    world.run()
    pinned = [fields for event, fields in world.events.entries if event == "service_keys.pinned"]
    assert pinned == [
        {"by": "first use", "sha256": key_set_sha256(thumbprints(world.service.signer.jwks())).hex()}
    ]


Change = Callable[[World, dict[str, Any]], str]

FORGED_CHANGES: dict[str, Change] = {
    "by the new key": lambda world, claims: signer(world.tmp_path, "another").sign_jwt(
        claims, typ="itl-keys+jwt"
    ),
    "a directive": lambda world, claims: world.service.sign(claims),
    "another TPM": lambda world, claims: world.service.sign(
        {**claims, "binding": {**claims["binding"], "ek_fingerprint": "0" * 96}}, typ="itl-keys+jwt"
    ),
    "an old one": lambda world, claims: world.service.sign(
        {**claims, "node_nonce": "A" * 43 + "="}, typ="itl-keys+jwt"
    ),
    "no keys": lambda world, claims: world.service.sign({**claims, "keys": {"keys": []}}, typ="itl-keys+jwt"),
    "no set": lambda world, claims: world.service.sign({**claims, "keys": "none"}, typ="itl-keys+jwt"),
    "garbage": lambda world, claims: "a.b.c",
}


def changing(world: World, make: Change) -> dict[str, Any]:
    """Let each answer name another set of keys; return the set."""
    keys = {"keys": [*world.service.signer.jwks()["keys"], *signer(world.tmp_path, "another").jwks()["keys"]]}

    def offer(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path == "/attest" or path.endswith("ak-activate"):
            return {**body, "next_keys": make(world, world.service.claims(keys=keys))}
        return body

    world.service.alter = offer
    return keys


@pytest.mark.threat("T141")
@pytest.mark.parametrize("forgery", FORGED_CHANGES.values(), ids=FORGED_CHANGES.keys())
@pytest.mark.parametrize("activates", [False, True])
def test_a_change_of_keys_that_is_not_proven_changes_nothing(
    tmp_path: Path, forgery: Change, activates: bool
) -> None:
    """The pins stay as they are, and so does the machine: what came beside it is judged by itself."""
    world = attested(World(tmp_path))
    if activates:
        (world.settings.state_dir / "machine.json").unlink()
    pins = world.settings.state_dir / "service-keys.json"
    before = pins.read_bytes()
    acks = len(world.service.acks)
    changing(world, forgery)
    assert world.run() is Exit.OK
    assert pins.read_bytes() == before
    assert len(world.service.acks) == acks
    assert "service_keys.refused" in world.events.names()


def test_a_change_of_keys_is_pinned_and_acknowledged_by_its_digest(tmp_path: Path) -> None:
    """From then on the new key gives orders, in the very same answer too."""
    world = attested(World(tmp_path, lock_command="lock"))
    keys = changing(world, lambda world, claims: world.service.sign(claims, typ="itl-keys+jwt"))
    world.service.action = "lock"
    world.service.directive = lambda claims: signer(tmp_path, "another").sign_jwt(
        claims, typ="itl-directive+jwt"
    )
    assert world.run() is Exit.LOCKED
    assert world.commands == [("lock",)]
    pinned = world.state.service_keys()
    assert pinned is not None
    assert thumbprints(pinned) == thumbprints(keys)
    digest = key_set_sha256(thumbprints(keys))
    ack = world.service.acks[-2]
    assert (ack["directive_sha256"], ack["outcome"]) == (digest.hex(), "done")
    assert parse_attest(b64decode(ack["pcr_quote"], "q")).extra_data == ack["qualifying_data"]
