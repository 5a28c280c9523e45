"""Challenge, attestation, acknowledgement over HTTP (PROTOCOL §§3, 4, 6)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from attestation.keys import verify_jwt
from attestation.machines import Status, Transition
from attestation.wire import b64decode, b64encode
from attestation_service.attest import acknowledgement
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_registration import code

pytestmark = pytest.mark.anyio

ATTEST = "/api/v1/attest"


def policy(node: SoftwareNode, *, version: int = 1, good: bool = True) -> dict[str, Any]:
    """Return a policy on PCR 7 that *node* meets, or not."""
    value = node.pcrs[7].hex() if good else "00" * 32
    return {
        "format": "itl-tpm-policy/1",
        "name": "boot",
        "version": version,
        "bank": "sha256",
        "pcrs": {"7": {"any_of": [value]}},
        "max_age_seconds": 120,
    }


async def assign(
    service: Service, document: dict[str, Any], scope: str = "fleet", subject: str = "*"
) -> None:
    """Create a policy and assign it."""
    created = await service.operator("POST", "/policies", document)
    assert created.status_code == 201, created.text
    ref = {"policy": f"{document['name']}@{document['version']}"}
    assigned = await service.operator("PUT", f"/policies/assignments/{scope}/{subject}", ref)
    assert assigned.status_code == 200, assigned.text


async def test_challenge_says_what_to_quote(service: Service) -> None:
    """32 fresh bytes, the PCRs of the policy in force, 60 seconds; unknown machines get none."""
    node = SoftwareNode()
    await service.introduce(node)
    one, two = await service.challenge(node), await service.challenge(node)
    assert one["nonce_id"] != two["nonce_id"]
    assert one["nonce"] != two["nonce"]
    assert len(b64decode(one["nonce"], "nonce")) == 32
    assert one["pcr_selection"] == {"sha256": [*range(10), 11, 12, 14]}
    assert (one["event_log"], one["evidence"]) == ("accepted", ["tpm-quote", "tpm-ek-certify"])
    assert one["expires_at"] == "2026-11-21T12:01:00Z"
    await assign(service, policy(node))
    assert (await service.challenge(node))["pcr_selection"] == {"sha256": [7]}
    nobody = await service.get(
        "/api/v1/attest/challenge", params={"machine_id": "00000000-0000-4000-8000-000000000000"}
    )
    assert (nobody.status_code, code(nobody)) == (404, "machine-unknown")


async def test_a_challenge_is_redeemed_once(service: Service) -> None:
    """Of many racers exactly one gets an answer; the others learn that it was used."""
    node = SoftwareNode()
    await service.introduce(node)
    body = node.attestation(await service.challenge(node))
    answers = await asyncio.gather(*(service.post(ATTEST, body) for _ in range(20)))
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [200] + [409] * 19
    assert {code(answer) for answer in answers if answer.status_code == 409} == {"challenge-used"}


def flipped(text: str) -> str:
    """Flip one bit in the middle of base64."""
    data = bytearray(b64decode(text, "text"))
    data[len(data) // 2] ^= 1
    return b64encode(bytes(data))


MUTATIONS: dict[str, tuple[Any, int, str]] = {
    "quote": (lambda b: b | {"pcr_quote": flipped(b["pcr_quote"])}, 403, "evidence-rejected"),
    "signature": (lambda b: b | {"pcr_signature": flipped(b["pcr_signature"])}, 403, "evidence-rejected"),
    "values": (
        lambda b: b | {"pcr_values": {"sha256": b["pcr_values"]["sha256"] | {"0": "00" * 32}}},
        403,
        "evidence-rejected",
    ),
    "fewer values": (lambda b: b | {"pcr_values": {"sha256": {"0": "00" * 32}}}, 403, "evidence-rejected"),
    "not base64": (lambda b: b | {"pcr_quote": "!!"}, 400, "malformed-evidence"),
    "truncated": (
        lambda b: b | {"pcr_quote": b64encode(b64decode(b["pcr_quote"], "q")[:-1])},
        400,
        "malformed-evidence",
    ),
    "bank": (lambda b: b | {"pcr_values": {"md5": {}}}, 400, "malformed-evidence"),
    "another ek": (lambda b: b | {"ek_fingerprint": "0" * 96}, 422, "ek-fingerprint-mismatch"),
}


@pytest.mark.parametrize("fault", MUTATIONS)
async def test_refused_evidence_spends_its_challenge_and_changes_nothing(
    service: Service, fault: str
) -> None:
    """Whatever is wrong, trust, status, tokens and history stay; the challenge is gone (ADR 5)."""
    mutate, status, expected = MUTATIONS[fault]
    node = SoftwareNode()
    token = (await service.admitted(node))["config_token"]
    before = await service.detail(node)
    results = (await service.operator("GET", f"/machines/{node.machine_id}/results")).json()["items"]
    good = node.attestation(await service.challenge(node))
    answer = await service.post(ATTEST, mutate(good))
    assert (answer.status_code, code(answer)) == (status, expected), answer.text
    if status == 403:
        assert answer.json()["detail"] == "the evidence was refused"
    assert code(await service.post(ATTEST, good)) == "challenge-used"
    assert await service.detail(node) == before
    after = (await service.operator("GET", f"/machines/{node.machine_id}/results")).json()["items"]
    assert after == results
    assert (await service.audit())[0]["action"] == "denied"
    assert (await service.fetch(token)).status_code == 200


async def test_the_sub_code_is_for_operators(service: Service) -> None:
    """The wire says `evidence-rejected`; the audit says which check."""
    node = SoftwareNode()
    await service.introduce(node)
    body = node.attestation(await service.challenge(node))
    await service.post(ATTEST, body | {"pcr_signature": flipped(body["pcr_signature"])})
    assert (await service.audit())[0]["detail"] == "attest: signature-invalid"


@pytest.mark.threat("T25")
async def test_strangers_cannot_fill_the_audit_log(service: Service) -> None:
    """Refused evidence is recorded at a bounded rate."""
    node = SoftwareNode()
    await service.introduce(node)
    for _ in range(15):
        body = node.attestation(await service.challenge(node))
        service.clock.advance(1)
        await service.post(ATTEST, body | {"pcr_signature": flipped(body["pcr_signature"])})
    assert 1 <= len(await service.audit(action="denied")) <= 11


@pytest.mark.threat("T25")
async def test_machines_nobody_admitted_cannot_fill_the_audit_log(service: Service) -> None:
    """A software EK that quotes other PCRs each time, or activates again, writes a handful of entries."""
    node = SoftwareNode()
    await service.introduce(node)
    for number in range(12):
        node.pcrs[0] = bytes([number]) * 32
        await service.attest(node)
        await service.introduce(node)
        service.clock.advance(30)
    actions = [entry["action"] for entry in await service.audit(machine_id=node.machine_id)]
    assert actions.count("register") + actions.count("attest") == 1 + 5
    await service.act(node, "approve", {"role": "worker-app"})
    node.pcrs[0] = b"\xee" * 32
    await service.attest(node)
    assert (await service.audit(machine_id=node.machine_id))[0]["action"] == "attest"


async def test_somebody_elses_quote_proves_nothing(service: Service) -> None:
    """A quote by another machine's AK, and a replayed one, are refused."""
    node, other = SoftwareNode(), SoftwareNode()
    await service.introduce(node)
    await service.introduce(other)
    challenge = await service.challenge(node)
    other.machine_id, own = node.machine_id, other.machine_id
    stolen = other.attestation(challenge, ek_fingerprint=node.ek_fingerprint)
    assert code(await service.post(ATTEST, stolen)) == "evidence-rejected"
    other.machine_id = own
    first = node.attestation(await service.challenge(node))
    assert (await service.post(ATTEST, first)).status_code == 200
    fresh = await service.challenge(node)
    replay = first | {"nonce_id": fresh["nonce_id"]}
    assert code(await service.post(ATTEST, replay)) == "evidence-rejected"
    foreign = node.attestation(await service.challenge(other))
    assert code(await service.post(ATTEST, foreign)) == "challenge-unknown"


async def test_without_an_ak_nothing_can_be_signed(service: Service) -> None:
    """After a reset the machine must activate again; its trust is gone."""
    node = SoftwareNode()
    await service.admitted(node)
    await service.act(node, "ak-reset", {"reason": "board replaced"})
    answer = await service.try_attest(node)
    assert (answer.status_code, code(answer)) == (403, "ak-not-activated")
    detail = await service.detail(node)
    assert (detail["trust"], detail["last_result"]) == ("unknown", None)


async def test_failed_results_withdraw_trust_and_say_nothing(service: Service) -> None:
    """Authentic but unexpected: 200, `none`, tokens void, audit and event; the node does not learn which PCR."""
    node = SoftwareNode()
    token = (await service.admitted(node))["config_token"]
    await assign(service, policy(node, good=False))
    answer = await service.attest(node)
    assert (answer["status"], answer["action"]) == ("attested", "none")
    assert "pcr7" not in answer["message"]
    assert "config_token" not in answer
    detail = await service.detail(node)
    assert (detail["trust"], detail["last_result"]["failed"]) == ("failed", "pcr7")
    assert (await service.audit())[0]["action"] == "attest_failed"
    assert (await service.fetch(token)).status_code == 410
    checks = (await service.operator("GET", f"/machines/{node.machine_id}/results")).json()["items"][0][
        "checks"
    ]
    failed = next(check for check in checks if check["outcome"] == "failed")
    assert (failed["check"], failed["expected"], failed["found"]) == ("pcr7", "00" * 32, node.pcrs[7].hex())
    # The same failure again is nothing new.
    entries = len(await service.audit())
    await service.attest(node)
    assert len(await service.audit()) == entries
    # A good one restores trust.
    await assign(service, policy(node, version=2))
    await service.attest(node)
    assert (await service.detail(node))["trust"] == "verified"


async def test_a_registered_machine_that_fails_stays_registered(service: Service) -> None:
    """No token, no status, but the operator sees why."""
    node = SoftwareNode()
    await service.introduce(node)
    await service.act(node, "approve", {"role": "worker-app"})
    await assign(service, policy(node, good=False))
    answer = await service.attest(node)
    assert (answer["status"], answer["action"]) == ("registered", "none")
    assert (await service.audit())[0]["action"] == "attest_failed"


async def test_a_policy_that_changed_meanwhile_decides_nothing(service: Service) -> None:
    """Indeterminate: nothing is stored as trust, nothing released; the next challenge is under the new policy."""
    node = SoftwareNode()
    await service.introduce(node)
    await service.act(node, "approve", {"role": "worker-app"})
    challenge = await service.challenge(node)
    await assign(service, policy(node))
    answer = (await service.post(ATTEST, node.attestation(challenge))).json()
    assert (answer["status"], answer["action"]) == ("registered", "none")
    assert answer["reattest_after_seconds"] == 1
    assert answer["next_challenge"]["pcr_selection"] == {"sha256": [7]}
    assert (await service.detail(node))["trust"] == "unknown"
    answer = (await service.post(ATTEST, node.attestation(answer["next_challenge"]))).json()
    assert (answer["status"], answer["action"]) == ("attested", "apply-config")


async def test_where_a_result_came_from_is_kept_until_an_act_ends_it(service: Service) -> None:
    """What is released to a machine at once goes to the address that its newest evidence came from."""

    async def source() -> str | None:
        return (await service.store.read(lambda tx: tx.machines.require(node.machine_id))).last_result_from

    node = SoftwareNode()
    await service.introduce(node)
    await service.act(node, "approve", {"role": "worker-app"})
    assert await source() is None
    await service.attest(node)
    assert await source() == "192.0.2.7"
    await service.store.write(
        lambda tx: tx.machines.update(tx.machines.require(node.machine_id), last_result_from="192.0.2.8")
    )
    await service.attest(node)
    assert await source() == "192.0.2.7"
    await service.act(node, "ak-reset", {"reason": "TPM cleared"})
    assert await source() is None


async def test_trust_ends_with_its_lease(service: Service) -> None:
    """Without a new result a verified machine becomes stale, and a token gets the pending answer."""
    node = SoftwareNode()
    token = (await service.admitted(node))["config_token"]
    service.clock.advance(180)
    assert (await service.detail(node))["trust"] == "stale"
    answer = await service.fetch(token)
    assert answer.headers["content-type"].startswith("text/plain")


async def confirm(service: Service, ids: list[str]) -> None:
    """Mark events as handled."""
    await service.store.write(lambda tx: tx.outbox.done(ids, service.clock.now()))


async def test_clock_that_went_back_fails(service: Service) -> None:
    """An earlier state of the TPM is authentic and not as expected; a reboot is an event."""
    node = SoftwareNode()
    await service.admitted(node)
    node.reset_count += 1
    await service.attest(node)
    assert (await service.detail(node))["reset_count"] == 4
    events: set[str] = set()
    while claimed := await service.store.write(lambda tx: tx.outbox.claim(50, service.clock.now())):
        events |= {event.event.value for event in claimed}
        await confirm(service, [event.id for event in claimed])
    assert "node.rebooted" in events
    node.reset_count = 1
    await service.attest(node)
    assert (await service.detail(node))["trust"] == "failed"


async def test_result_tokens(service: Service) -> None:
    """An EAR comes when asked for and when the verdict changed; it verifies under the service's keys."""
    node = SoftwareNode()
    await service.introduce(node)
    keys = (await service.get("/api/v1/service-keys")).json()
    first = await service.attest(node)
    claims = verify_jwt(first["attestation_result"], keys, typ="eat+jwt")
    assert claims["sub"] == node.machine_id
    assert claims["submods"]["tpm"]["ear_verifier_claims"] == {
        "verdict": "Verified",
        "assurance": "tofu",
        "boot_state_appraised": [],
    }
    assert "attestation_result" not in await service.attest(node)
    assert "attestation_result" in await service.attest(node, want_result=True)


async def test_redeliver_until_applied(service: Service) -> None:
    """An operator's wish is repeated with every good attestation until the machine says that it is applied."""
    node = SoftwareNode()
    await service.configured(node, await service.admitted(node))
    assert (await service.attest(node))["action"] == "none"
    await service.act(node, "redeliver")
    second = (await service.attest(node))["config_token"]
    third = await service.attest(node)
    assert (await service.fetch(second)).status_code == 410
    await service.configured(node, third)
    assert (await service.attest(node))["action"] == "none"


async def test_an_acknowledgement_meets_an_operator(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine was changed between judgement and unit: judged again, and the machine hears of nothing."""
    node = SoftwareNode()
    await service.admitted(node)
    await service.act(node, "lock")
    lock = await service.attest(node)
    body = node.acknowledgement(await service.challenge(node), lock["directive"])
    real = acknowledgement._judge
    judged: list[int] = []

    def meanwhile(tx: Any, *rest: Any) -> Any:
        found = real(tx, *rest)
        judged.append(found.machine.version)
        if len(judged) == 1:
            service.store.write_sync(lambda tx: tx.machines.update(found.machine, alarm="meanwhile"))
        return found

    monkeypatch.setattr(acknowledgement, "_judge", meanwhile)
    answer = await service.post(f"/api/v1/machines/{node.machine_id}/ack", body)
    assert answer.status_code == 200, answer.text
    assert judged == [judged[0], judged[0] + 1]


async def test_acknowledgements_that_prove_nothing(service: Service) -> None:
    """Forged, replayed, for another directive or outcome: the wipe stays due."""
    node = SoftwareNode()
    await service.admitted(node)
    await service.act(node, "lock")
    lock = await service.attest(node)
    await service.act(node, "revoke", {"wipe": True})
    wipe = await service.attest(node)
    url = f"/api/v1/machines/{node.machine_id}/ack"
    outcome = node.acknowledgement(await service.challenge(node), wipe["directive"], "failed") | {
        "outcome": "done"
    }
    assert code(await service.post(url, outcome)) == "evidence-rejected"
    old = node.acknowledgement(await service.challenge(node), lock["directive"])
    answer = await service.post(url, old)
    assert (answer.status_code, code(answer)) == (409, "transition-forbidden")
    assert code(await service.post(url, old)) == "challenge-used"
    plain = node.attestation(await service.challenge(node))
    quote = {name: plain[name] for name in ("pcr_quote", "pcr_signature", "nonce_id")}
    forged = node.acknowledgement(await service.challenge(node), wipe["directive"]) | quote
    assert code(await service.post(url, forged)) == "evidence-rejected"
    failed = node.acknowledgement(
        await service.challenge(node), wipe["directive"], "failed", detail="no disk"
    )
    assert (await service.post(url, failed)).status_code == 200
    assert (await service.detail(node))["wipe_pending"] is True
    assert (await service.audit(action="wipe_ack"))[0]["detail"] == "failed: no disk"
    # Told again, and the answer counts once.
    service.clock.advance(30)
    wipe = await service.attest(node)
    done = node.acknowledgement(await service.challenge(node), wipe["directive"])
    assert (await service.post(url, done)).status_code == 200
    twice = node.acknowledgement(await service.challenge(node), wipe["directive"])
    assert code(await service.post(url, twice)) == "transition-forbidden"


async def test_acts_between_judging_and_writing_are_judged_anew(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that comes after the case was read still reaches this very answer."""
    from attestation_service.attest import handlers

    node = SoftwareNode()
    await service.admitted(node)
    body = node.attestation(await service.challenge(node))
    sign = handlers._sign
    calls: list[int] = []

    async def lock_first(*arguments: Any) -> Any:
        if not calls:
            await service.act(node, "lock")
        calls.append(1)
        return await sign(*arguments)

    monkeypatch.setattr(handlers, "_sign", lock_first)
    answer = (await service.post(ATTEST, body)).json()
    assert (answer["status"], answer["action"], len(calls)) == ("locked", "lock", 2)


# Every (status, operation) pair

PAIRS: dict[Status, dict[Transition, int]] = {
    Status.PENDING_APPROVAL: {
        Transition.ACTIVATE: 200, Transition.ATTEST: 200, Transition.APPROVE: 200, Transition.REJECT: 200,
        Transition.LOCK: 409, Transition.UNLOCK: 409, Transition.REVOKE: 409, Transition.AK_RESET: 200,
        Transition.REDELIVER: 409, Transition.ROLE_CHANGE: 409,
    },
    Status.REGISTERED: {
        Transition.ACTIVATE: 200, Transition.ATTEST: 200, Transition.APPROVE: 409, Transition.REJECT: 409,
        Transition.LOCK: 409, Transition.UNLOCK: 409, Transition.REVOKE: 200, Transition.AK_RESET: 200,
        Transition.REDELIVER: 409, Transition.ROLE_CHANGE: 200,
    },
    Status.ATTESTED: {
        Transition.ACTIVATE: 200, Transition.ATTEST: 200, Transition.APPROVE: 409, Transition.REJECT: 409,
        Transition.LOCK: 200, Transition.UNLOCK: 409, Transition.REVOKE: 200, Transition.AK_RESET: 200,
        Transition.REDELIVER: 200, Transition.ROLE_CHANGE: 200,
    },
    Status.LOCKED: {
        Transition.ACTIVATE: 200, Transition.ATTEST: 200, Transition.APPROVE: 409, Transition.REJECT: 409,
        Transition.LOCK: 409, Transition.UNLOCK: 200, Transition.REVOKE: 200, Transition.AK_RESET: 200,
        Transition.REDELIVER: 409, Transition.ROLE_CHANGE: 200,
    },
    Status.REVOKED: {
        Transition.ACTIVATE: 200, Transition.ATTEST: 200, Transition.APPROVE: 409, Transition.REJECT: 409,
        Transition.LOCK: 409, Transition.UNLOCK: 409, Transition.REVOKE: 409, Transition.AK_RESET: 409,
        Transition.REDELIVER: 409, Transition.ROLE_CHANGE: 409,
    },
    Status.REJECTED: {
        Transition.ACTIVATE: 200, Transition.ATTEST: 403, Transition.APPROVE: 409, Transition.REJECT: 409,
        Transition.LOCK: 409, Transition.UNLOCK: 409, Transition.REVOKE: 409, Transition.AK_RESET: 409,
        Transition.REDELIVER: 409, Transition.ROLE_CHANGE: 409,
    },
}  # fmt: skip
AFTER = {
    (Status.PENDING_APPROVAL, Transition.APPROVE): Status.REGISTERED,
    (Status.PENDING_APPROVAL, Transition.REJECT): Status.REJECTED,
    (Status.REGISTERED, Transition.ATTEST): Status.ATTESTED,
    (Status.REGISTERED, Transition.REVOKE): Status.REVOKED,
    (Status.ATTESTED, Transition.LOCK): Status.LOCKED,
    (Status.ATTESTED, Transition.REVOKE): Status.REVOKED,
    (Status.LOCKED, Transition.UNLOCK): Status.ATTESTED,
    (Status.LOCKED, Transition.REVOKE): Status.REVOKED,
}
WAY: dict[Status, list[str]] = {
    Status.PENDING_APPROVAL: [],
    Status.REGISTERED: ["approve"],
    Status.ATTESTED: ["approve", "attest"],
    Status.LOCKED: ["approve", "attest", "lock"],
    Status.REVOKED: ["approve", "attest", "revoke"],
    Status.REJECTED: ["reject"],
}
BODIES: dict[str, dict[str, Any] | None] = {
    "approve": {"role": "worker-app"},
    "reject": {"reason": "unknown"},
    "ak-reset": {"reason": "test"},
    "role": {"role": "linux", "reason": "test"},
}
PATHS = {Transition.ROLE_CHANGE: "role"}


async def perform(service: Service, node: SoftwareNode, operation: str) -> Any:
    """Do one operation as whoever may do it."""
    if operation == "attest":
        return await service.try_attest(node)
    if operation == "activate":
        answer = await service.post("/api/v1/self-register", node.introduction())
        if answer.status_code != 200:
            return answer
        return await service.post(
            f"/api/v1/machines/{node.machine_id}/ak-activate", node.activation(answer.json())
        )
    return await service.operator("POST", f"/machines/{node.machine_id}/{operation}", BODIES.get(operation))


def test_the_table_is_complete() -> None:
    """Every status meets every operation; the acknowledgement, and hardware, have tests of their own."""
    assert set(PAIRS) == set(Status)
    assert all(
        set(row) == set(Transition) - {Transition.ACKNOWLEDGE, Transition.APPROVE_HARDWARE}
        for row in PAIRS.values()
    )


@pytest.mark.threat("T24")
@pytest.mark.parametrize(("status", "operation"), [(s, o) for s, row in PAIRS.items() for o in row])
async def test_every_status_meets_every_operation(
    service: Service, status: Status, operation: Transition
) -> None:
    """What is not in the table is refused and changes nothing; nothing but an operator leaves where it must not."""
    node = SoftwareNode()
    await service.introduce(node)
    for step in WAY[status]:
        assert (await perform(service, node, step)).status_code == 200
    before = await service.detail(node)
    assert before["status"] == status
    entries = len(await service.audit(machine_id=node.machine_id))
    answer = await perform(service, node, PATHS.get(operation, operation.value.replace("_", "-")))
    assert answer.status_code == PAIRS[status][operation], answer.text
    after = await service.detail(node)
    assert after["status"] == AFTER.get((status, operation), status)
    if answer.status_code == 409:
        assert code(answer) == "transition-forbidden"
        assert after == before
        # The try itself is on record, and nothing else.
        first, *rest = await service.audit(machine_id=node.machine_id)
        assert (first["action"], len(rest)) == ("denied", entries)
    if answer.status_code == 403:
        assert code(answer) == "machine-rejected"
    if operation is Transition.ATTEST and answer.status_code == 200:
        token = answer.json().get("config_token")
        # Of the first good attestation, and until it was fetched, which nobody did here.
        assert (token is not None) == (status in (Status.REGISTERED, Status.ATTESTED))


async def test_limits_per_machine(start: Starter) -> None:
    """A machine that asks too often waits; nobody else does."""
    service = await start(rate_limit_machine_burst=4, rate_limit_machine_per_second=0.1)
    node, other = SoftwareNode(), SoftwareNode()
    await service.introduce(node)
    await service.introduce(other)
    statuses = [
        (await service.get("/api/v1/attest/challenge", params={"machine_id": node.machine_id})).status_code
        for _ in range(5)
    ]
    assert statuses == [200, 200, 200, 429, 429]
    await service.challenge(other)


@pytest.mark.parametrize("path", ["/api/v1/attest", "/api/v1/self-register"])
async def test_requests_without_form_are_limited_too(start: Starter, path: str) -> None:
    """What the schema refuses costs its sender as much as what a handler refuses."""
    service = await start(rate_limit_address_burst=5, rate_limit_address_per_second=1)
    answers = [await service.post(path, {"nonsense": 1}) for _ in range(7)]
    assert [answer.status_code for answer in answers] == [422] * 5 + [429] * 2
    assert int(answers[-1].headers["retry-after"]) >= 1
