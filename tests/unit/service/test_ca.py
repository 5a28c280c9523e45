"""The CAs in the hands of operators: shown, tried, rotated under dual control; certificates listed and revoked."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509

from attestation.errors import IssuerUnknown, SignerUnavailable
from attestation.keys.uri import parse_key_uri
from attestation_service.authority import Authority, Issued, creation, issuance
from attestation_service.ca import handlers as ca_handlers
from attestation_service.resources import Resources
from tests.unit.service import people
from tests.unit.service.ca_world import no_more, nothing, operators, wanted
from tests.unit.service.conftest import Service, Starter

pytestmark = pytest.mark.anyio

DAY = 86_400
MACHINE = "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"


async def with_ca(start: Starter, **changed: Any) -> Service:
    """Start a service with a CA whose keys are not encrypted."""
    return await start(**({"enrollment_ca_unencrypted": True} | changed))


def ca_of(service: Service) -> Authority:
    """Return the CAs of the service."""
    found = service.resources.authority
    assert found is not None
    return found


async def issue(service: Service, machine_id: str | None = None) -> Issued:
    """Issue a certificate to a machine."""
    at = service.clock.now()
    (issued,) = await ca_of(service).issue(wanted(machine_id), at=at, admit=nothing, conclude=no_more)
    return issued


async def step(
    service: Service, name: str, *, headers: Mapping[str, str] | None = None, **members: Any
) -> httpx.Response:
    """Ask for one step of a rotation."""
    body = {"step": name, "reason": "the year is over"} | members
    return await service.operator("POST", "/ca/rotation", body, headers=dict(headers or {}))


async def steps(service: Service, *names: str) -> dict[str, Any]:
    """Take steps that must be taken, forced where it is too early; return the keys after them."""
    answer = None
    for name in names:
        answer = await step(service, name, force=True)
        assert answer.status_code == 200, answer.text
    assert answer is not None
    found: dict[str, Any] = answer.json()
    return found


async def states(service: Service) -> list[str]:
    """Return the states of every key, oldest first."""
    return [each["state"] for each in (await service.operator("GET", "/ca")).json()["issuers"]]


def lose(key_uri: str) -> None:
    """Delete a key."""
    Path(parse_key_uri(key_uri).shown.removeprefix("file:")).unlink()


# Shown


async def test_every_key_is_shown_without_secrets(start: Starter, tmp_path: Path) -> None:
    """Where it is, what it is, since when; the source of its passphrase is nobody's business."""
    (tmp_path / "pass").write_text("correct horse\n")
    where = f"file:{tmp_path}/keys?passphrase-source=file:{tmp_path}/pass"
    service = await start(enrollment_ca_key=where, operator_certificates=True)
    answer = await service.operator("GET", "/ca")
    assert answer.status_code == 200
    machine, person = answer.json()["issuers"]
    assert machine["subject"] == "CN=ITL Machine Enrollment CA,O=ITL Usions,C=NL"
    assert (machine["state"], machine["algorithm"], machine["key_origin"]) == ("active", "ecdsa-p384", "file")
    assert machine["key_uri"].startswith(f"file:{tmp_path}/keys/itl-enrollment-ca-")
    assert person["purpose"] == "operator"
    assert "passphrase" not in answer.text
    (stored, _) = await service.store.read(lambda tx: tx.issuers.all())
    assert "passphrase-source" in stored.key_uri


async def test_keys_prove_themselves_when_asked(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """What signs, what does not, and what lies there in plaintext."""
    service = await with_ca(start)
    found = (await service.operator("GET", "/ca/check")).json()
    assert found["ok"] is True
    (key,) = found["issuers"]
    assert (key["signs"], key["exportable"], key["encrypted"]) == (True, True, False)
    assert key["warnings"] == ["the key lies on disk in plaintext"]

    def gone(*_: object) -> None:
        raise SignerUnavailable("away")

    monkeypatch.setattr("attestation_service.authority.authority.check", gone)
    found = (await service.operator("GET", "/ca/check")).json()
    assert (found["ok"], found["issuers"][0]["problem"]) == (False, "signer-unavailable")


async def test_a_backup_needs_file_and_passphrase(start: Starter, tmp_path: Path) -> None:
    """An encrypted file is exportable, a file that is gone is unknown, a key that was brought in is told of."""
    (tmp_path / "pass").write_text("correct horse\n")
    service = await start(enrollment_ca_passphrase_file=tmp_path / "pass")
    (key,) = (await service.operator("GET", "/ca/check")).json()["issuers"]
    assert (key["encrypted"], key["warnings"]) == (True, [])
    (stored,) = await service.store.read(lambda tx: tx.issuers.all())
    lose(stored.key_uri)
    (key,) = (await service.operator("GET", "/ca/check")).json()["issuers"]
    assert key["encrypted"] is None


# Rotation


@pytest.mark.threat("T102")
async def test_a_rotation_from_beginning_to_end(start: Starter) -> None:
    """Each step does one thing, waits for what depends on it, and is an audit entry."""
    service = await with_ca(start)
    old_leaf = await issue(service)
    assert (await step(service, "prepare")).status_code == 200
    assert await states(service) == ["active", "next"]
    # Published, and signs nothing: both keys certify each other.
    assert len(await ca_of(service).bundle()) == 4
    assert (await issue(service)).issuer_id == old_leaf.issuer_id
    early = await step(service, "activate")
    assert (early.status_code, early.json()["type"]) == (409, "urn:itl:problem:ca-rotation-forbidden")
    assert "wait until" in early.json()["detail"]
    service.clock.advance(DAY)
    assert (await step(service, "activate")).status_code == 200
    assert await states(service) == ["retiring", "active"]
    new_leaf = await issue(service)
    assert new_leaf.issuer_id != old_leaf.issuer_id
    assert len(new_leaf.chain) == 1
    assert (await step(service, "retire")).status_code == 409
    service.clock.advance(2 * DAY - 1)
    assert (await step(service, "retire")).status_code == 409
    service.clock.advance(1)
    assert (await step(service, "retire")).status_code == 200
    assert await states(service) == ["retired", "active"]
    assert len(await ca_of(service).bundle()) == 1
    entries = await service.audit(action="ca_rotate")
    assert [entry["detail"].split()[0].strip(",:") for entry in reversed(entries)] == [
        "prepare",
        "prepared",
        "activate",
        "retire",
    ]


async def test_the_last_certificate_counts(start: Starter) -> None:
    """Where the lifetime was longer when it was issued, the old key is kept until that one ends."""
    service = await with_ca(start, enrollment_cert_days=30)
    await issue(service)
    (detail, _) = (await steps(service, "prepare", "activate"))["issuers"]
    assert detail["retire_from"] == "2026-12-22T12:00:00Z"
    service.app.state.resources = changed(service.resources, enrollment_cert_days=None)
    (detail, _) = (await service.operator("GET", "/ca")).json()["issuers"]
    assert detail["retire_from"] == "2026-12-22T12:00:00Z"


def changed(resources: Resources, **settings: Any) -> Resources:
    """Return *resources* with other settings."""
    return replace(resources, settings=resources.settings.model_copy(update=settings))


async def test_forcing_is_written_down(start: Starter) -> None:
    """Nobody waits in an emergency, and everybody sees that nobody waited."""
    service = await with_ca(start)
    await steps(service, "prepare", "activate", "retire")
    assert await states(service) == ["retired", "active"]
    told = [entry["detail"] for entry in await service.audit(action="ca_rotate")]
    assert [detail.startswith(("retire (forced)", "activate (forced)")) for detail in told[:2]] == [
        True,
        True,
    ]


async def test_a_step_back_before_the_switch(start: Starter) -> None:
    """The next key is given up: out of the bundle, its cross certificate revoked, another one may follow."""
    service = await with_ca(start)
    prepared = (await steps(service, "prepare"))["issuers"]
    await steps(service, "rollback")
    assert await states(service) == ["active", "abandoned"]
    assert len(await ca_of(service).bundle()) == 1
    cross = x509.load_der_x509_certificate(b64decode(prepared[1]["cross_certificates"][0]))
    row = (await service.operator("GET", f"/ca/certificates/{cross.serial_number:040x}")).json()
    assert (row["state"], row["profile"], row["issuer_id"]) == (
        "revoked",
        "ca-cross",
        prepared[0]["issuer_id"],
    )
    await steps(service, "prepare", "activate")
    assert await states(service) == ["retiring", "abandoned", "active"]


async def test_a_step_back_after_the_switch(start: Starter) -> None:
    """The old key signs again, the new one answers for what it signed; and forward again."""
    service = await with_ca(start)
    old = await issue(service)
    await steps(service, "prepare", "activate")
    new = await issue(service)
    await steps(service, "rollback")
    assert await states(service) == ["active", "retiring"]
    assert (await issue(service)).issuer_id == old.issuer_id
    await steps(service, "rollback")
    assert await states(service) == ["retiring", "active"]
    assert (await issue(service)).issuer_id == new.issuer_id


@pytest.mark.parametrize(
    ("before", "refused"),
    [
        ((), "activate"),
        ((), "rollback"),
        ((), "retire"),
        (("prepare",), "prepare"),
        (("prepare",), "retire"),
        (("prepare", "activate"), "prepare"),
        (("prepare", "activate"), "activate"),
        (("prepare", "activate", "retire"), "rollback"),
        (("prepare", "activate", "retire"), "retire"),
        (("prepare", "rollback"), "activate"),
    ],
)
async def test_every_other_step_is_refused(start: Starter, before: tuple[str, ...], refused: str) -> None:
    """Whatever is not the next step is forbidden, forced or not, and the refusal is in the audit."""
    service = await with_ca(start)
    if before:
        await steps(service, *before)
    held = await states(service)
    answer = await step(service, refused, force=True)
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:itl:problem:ca-rotation-forbidden")
    assert await states(service) == held
    assert "ca-rotation-forbidden" in (await service.audit(action="denied"))[0]["detail"]


@pytest.mark.threat("T102")
async def test_a_rotation_needs_two(start: Starter) -> None:
    """Every step, of this key, forced or not: one vote is not enough, break-glass is none."""
    service = await with_ca(start, dual_control_roles=("worker-app",))
    service.app.state.resources, known = people.introduce(service.resources)
    anna, bob = known.headers("anna"), known.headers("bob")
    refused = await step(service, "prepare")
    assert (refused.status_code, refused.json()["type"]) == (403, "urn:itl:problem:break-glass-cannot-vote")
    for name, more in (
        ("prepare", {}),
        ("activate", {"force": True}),
        ("rollback", {}),
        ("retire", {"force": True}),
    ):
        held = await states(service)
        assert (await step(service, name, headers=anna, **more)).status_code == 202
        if more:
            # Who agreed to force it did not thereby agree with who waits, not even where nobody need wait any more.
            assert (await step(service, name, headers=bob)).status_code == 409
            service.clock.advance(2 * DAY)
            assert (await step(service, name, headers=anna, **more)).status_code == 202
            assert (await step(service, name, headers=bob)).json()["type"].endswith(":proposal-rival")
        assert await states(service) == held
        assert (await step(service, name, headers=bob, **more)).status_code == 200
    entries = await service.audit(action="ca_rotate")
    assert sum("agreed by anna, bob" in entry["detail"] for entry in entries) == 4


@pytest.mark.threat("T149")
async def test_a_key_that_was_not_tried_does_not_begin_to_sign(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who takes the next key back, while somebody lets it sign, brings back the one before, which nobody tried."""
    service = await with_ca(start)
    assert (await step(service, "prepare")).status_code == 200
    prove = ca_handlers._prove

    async def meanwhile(*arguments: Any) -> str | None:
        tried = await prove(*arguments)
        monkeypatch.setattr(ca_handlers, "_prove", prove)
        assert (await step(service, "activate", force=True)).status_code == 200
        return tried

    monkeypatch.setattr(ca_handlers, "_prove", meanwhile)
    refused = await step(service, "rollback")
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:itl:problem:ca-rotation-forbidden")
    assert sorted(each["state"] for each in (await service.operator("GET", "/ca")).json()["issuers"]) == [
        "active",
        "retiring",
    ]
    newest = (await service.audit(action="ca_rotate"))[0]
    assert newest["detail"].startswith("activate")


async def test_two_keys_are_rotated_one_by_one(start: Starter) -> None:
    """Hybrid: the request names which; the other goes on as it was."""
    service = await with_ca(start, enrollment_ca_algorithm="hybrid")
    assert (await step(service, "prepare")).status_code == 422
    assert (await step(service, "prepare", algorithm="ml-dsa-87")).status_code == 200
    assert (await step(service, "activate", algorithm="ml-dsa-87", force=True)).status_code == 200
    found = (await service.operator("GET", "/ca")).json()["issuers"]
    assert [(each["algorithm"], each["state"]) for each in found] == [
        ("ecdsa-p384", "active"),
        ("ml-dsa-87", "retiring"),
        ("ml-dsa-87", "active"),
    ]


async def test_an_algorithm_is_left(start: Starter) -> None:
    """From ECDSA over hybrid to ML-DSA: the first key is retired once nobody has a certificate of it."""
    first = await with_ca(start)
    await issue(first)
    hybrid = await with_ca(start, enrollment_ca_algorithm="hybrid")
    assert len(await ca_of(hybrid).bundle()) == 2
    assert (await step(hybrid, "retire", algorithm="ecdsa-p384", force=True)).status_code == 409
    last = await with_ca(start, enrollment_ca_algorithm="ml-dsa-87")
    assert (await issue(last)).algorithm == "ml-dsa-87"
    (old, new) = (await last.operator("GET", "/ca")).json()["issuers"]
    assert (old["state"], old["retire_from"], new["retire_from"]) == ("active", "2026-11-23T12:00:00Z", None)
    assert (await step(last, "prepare", algorithm="ecdsa-p384")).status_code == 409
    assert (await step(last, "retire", algorithm="ecdsa-p384")).status_code == 409
    last.clock.advance(2 * DAY)
    assert (await step(last, "retire", algorithm="ecdsa-p384")).status_code == 200
    assert await states(last) == ["retired", "active"]
    assert len(await ca_of(last).bundle()) == 1


async def test_the_ca_of_operators_rotates_too(start: Starter) -> None:
    """With the lifetime of their certificates; a CA that there is not cannot."""
    service = await with_ca(start, operator_certificates=True)
    answer = await step(service, "prepare", purpose="operator")
    assert [each["state"] for each in answer.json()["issuers"]] == ["active", "active", "next"]
    assert answer.json()["issuers"][2]["activate_from"] == "2026-11-22T12:00:00Z"
    at = service.clock.now()
    await ca_of(service).issue(operators(), at=at, admit=nothing, conclude=no_more)
    answer = await step(service, "activate", purpose="operator", force=True)
    assert answer.json()["issuers"][1]["retire_from"] == "2026-12-22T12:00:00Z"
    refused = await step(service, "prepare", algorithm="rsa-4096")
    assert refused.status_code == 409


async def test_a_key_that_cannot_sign_is_not_switched_to(start: Starter) -> None:
    """It is tried before the switch: afterwards it would be too late."""
    service = await with_ca(start)
    (_, coming) = (await steps(service, "prepare"))["issuers"]
    lose(coming["key_uri"])
    ca_of(service).maker.keyring.close()
    answer = await step(service, "activate", force=True)
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:itl:problem:key-not-found")
    assert await states(service) == ["active", "next"]


async def test_what_died_in_the_middle_of_a_preparation_goes_on(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is agreed on; the key is made by whoever finds it, and nobody agrees twice."""
    service = await with_ca(start)

    def dies(*_: object) -> None:
        raise SignerUnavailable("the token went away")

    with monkeypatch.context() as patched:
        patched.setattr(creation, "create_key", dies)
        answer = await step(service, "prepare")
        assert answer.status_code == 503
    assert await states(service) == ["active", "reserved"]
    assert (await step(service, "activate", force=True)).status_code == 409
    await ca_of(service).maintain()
    assert await states(service) == ["active", "next"]


async def test_a_preparation_that_cannot_be_finished_is_given_up(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that makes no keys holds up nothing."""
    service = await with_ca(start)

    def dies(*_: object) -> None:
        raise SignerUnavailable("the token went away")

    monkeypatch.setattr(creation, "create_key", dies)
    assert (await step(service, "prepare")).status_code == 503
    assert (await step(service, "rollback")).status_code == 200
    assert await states(service) == ["active", "abandoned"]


@pytest.mark.threat("T103")
async def test_a_switch_in_the_middle_of_an_issuance(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the old key signed reaches nobody; the machine gets one of the new key, and spends one challenge."""
    service = await with_ca(start)
    await steps(service, "prepare")
    admitted: list[str] = []
    real = issuance.sign_content

    def switch(*parts: Any) -> bytes:
        if len(admitted) == 1:
            admitted.append("switched")
            keys = service.store.read_sync(lambda tx: tx.issuers.all())

            def work(tx: Any) -> None:
                tx.issuers.move(keys[0].issuer_id, "active", "retiring", service.clock.now())
                tx.issuers.move(keys[1].issuer_id, "next", "active", service.clock.now())

            service.store.write_sync(work)
        return real(*parts)

    monkeypatch.setattr(issuance, "sign_content", switch)
    (issued,) = await ca_of(service).issue(
        wanted(), at=service.clock.now(), admit=lambda _tx: admitted.append("admitted"), conclude=no_more
    )
    assert admitted == ["admitted", "switched"]
    after = (await service.operator("GET", "/ca")).json()["issuers"]
    assert issued.issuer_id == after[1]["issuer_id"]
    rows = (await service.operator("GET", "/ca/certificates", params={"profile": "node-client"})).json()[
        "items"
    ]
    assert [(row["state"], row["issuer_id"]) for row in rows] == [
        ("issued", after[1]["issuer_id"]),
        ("void", after[0]["issuer_id"]),
    ]


async def test_other_workers_notice(start: Starter) -> None:
    """A worker that knows only the old key signs with the new one in its next issuance."""
    first = await with_ca(start)
    second = await with_ca(start)
    await issue(second)
    await steps(first, "prepare", "activate")
    assert (await issue(second)).issuer_id == (await issue(first)).issuer_id
    assert await states(second) == ["retiring", "active"]


async def test_lists_are_signed_by_who_is_retiring(start: Starter) -> None:
    """Until it is retired."""
    service = await with_ca(start)
    (old,) = (await service.operator("GET", "/ca")).json()["issuers"]
    await steps(service, "prepare", "activate")
    ca = ca_of(service)
    key = await ca.in_thread(lambda: ca.signing_key(old["issuer_id"]))
    assert key.algorithm == "ecdsa-p384"
    await steps(service, "retire")
    for issuer_id in (old["issuer_id"], "ff" * 8):
        with pytest.raises(IssuerUnknown):
            await ca.in_thread(lambda issuer_id=issuer_id: ca.signing_key(issuer_id))  # type: ignore[misc]


# The issuance log


async def test_the_log_is_listed_and_shown(start: Starter) -> None:
    """By machine, state and profile, newest first; the certificate itself only where one is asked for."""
    service = await with_ca(start)
    issued = [await issue(service, MACHINE), await issue(service), await issue(service, MACHINE)]
    page = (await service.operator("GET", "/ca/certificates", params={"machine_id": MACHINE})).json()
    assert [row["serial"] for row in page["items"]] == [issued[2].serial, issued[0].serial]
    assert [row["certificate"] for row in page["items"]] == [None, None]
    first = (await service.operator("GET", "/ca/certificates", params={"limit": "2"})).json()
    rest = await service.operator(
        "GET", "/ca/certificates", params={"limit": "2", "cursor": first["next_cursor"]}
    )
    of_machine, of_responder = rest.json()["items"]  # the key that answers OCSP is certified at the start
    assert (of_machine["serial"], of_responder["profile"]) == (issued[0].serial, "ocsp-signing")
    shown = (await service.operator("GET", f"/ca/certificates/{issued[0].serial}")).json()
    assert (shown["machine_id"], shown["no_rev_avail"]) == (MACHINE, False)
    assert b64decode(shown["certificate"]) == issued[0].certificate
    assert (await service.operator("GET", f"/ca/certificates/{'0' * 40}")).status_code == 404
    assert (await service.operator("GET", "/ca/certificates", params={"state": "good"})).status_code == 422


async def test_it_is_told_that_a_revocation_is_not_seen(start: Starter) -> None:
    """Of a certificate with noRevAvail; who revokes it must stop its holder elsewhere."""
    service = await with_ca(start, no_rev_avail=("node-client",))
    issued = await issue(service, MACHINE)
    answer = await service.operator("POST", f"/ca/certificates/{issued.serial}/revoke", {})
    assert (answer.json()["state"], answer.json()["no_rev_avail"]) == ("revoked", True)


async def test_one_certificate_is_revoked(start: Starter) -> None:
    """For good and at once, by one operator; a second time there is nothing to revoke."""
    service = await with_ca(start)
    issued = await issue(service, MACHINE)
    revisions = await service.store.read(lambda tx: tx.issuers.revisions())
    path = f"/ca/certificates/{issued.serial}/revoke"
    answer = await service.operator("POST", path, {"reason": "keyCompromise", "note": "stolen"})
    assert answer.status_code == 200
    assert (answer.json()["state"], answer.json()["reason"]) == ("revoked", "keyCompromise")
    assert (await service.store.read(lambda tx: tx.issuers.revisions())) != revisions
    again = await service.operator("POST", path, {})
    assert (again.status_code, again.json()["type"]) == (409, "urn:itl:problem:transition-forbidden")
    (entry,) = await service.audit(action="cert_revoked")
    assert entry["machine_id"] == MACHINE
    assert entry["detail"].endswith("keyCompromise: stolen")
    unknown = await service.operator("POST", f"/ca/certificates/{'1' * 40}/revoke", {})
    assert unknown.status_code == 404
    hold = await service.operator("POST", path, {"reason": "certificateHold"})
    assert hold.status_code == 422
