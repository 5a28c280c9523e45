"""The second protocol over HTTP: offered where it helps, judged with everything else, its key gone after one use."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest

from attestation.wire import b64encode
from tests.unit.service.conftest import Service
from tests.unit.service.node import SoftwareNode

pytestmark = pytest.mark.anyio

ATTEST = "/api/v1/attest"
MEDIA_TYPE = "application/vnd.itl.tpm-ek-certify"
NEWER = 0x2019102300163637


def kept(service: Service) -> list[bytes | None]:
    """Return the secrets of offers that the database holds."""
    with closing(sqlite3.connect(service.directory / "machines.db")) as db:
        return [
            row[0] for row in db.execute("select ek_challenge from challenges where ek_challenge is not null")
        ]


async def demand(service: Service, word: str = "required") -> None:
    """Assign a policy with the second protocol to the fleet; it compares nothing else."""
    document = {
        "format": "itl-tpm-policy/1",
        "name": "vouched",
        "version": 1,
        "bank": "sha256",
        "pcrs": {"7": {"any_of": [SoftwareNode().pcrs[7].hex()]}},
        "event_log": "accepted",
        "clock": {"safe": "flag"},
        "ek_key_attestation": word,
        "max_age_seconds": 180,
    }
    created = await service.operator("POST", "/policies", document)
    assert created.status_code == 201, created.text
    assigned = await service.operator("PUT", "/policies/assignments/fleet/*", {"policy": "vouched@1"})
    assert assigned.status_code == 200, assigned.text


async def checks(service: Service, node: SoftwareNode) -> dict[str, str]:
    """Return the newest result's checks, name -> outcome."""
    newest = (await service.operator("GET", f"/machines/{node.machine_id}/results")).json()["items"][0]
    return {check["check"]: check["outcome"] for check in newest["checks"]}


async def test_a_node_that_comes_is_offered_a_key(service: Service) -> None:
    """The challenge lists the kind and carries the key; that of an answer does not, where no policy needs it."""
    node = SoftwareNode()
    await service.introduce(node)
    challenge = await service.challenge(node)
    assert challenge["evidence"] == ["tpm-quote", "tpm-ek-certify"]
    assert set(challenge["ek_challenge"]) == {"object_public", "duplicate", "in_sym_seed"}
    answer = (await service.post(ATTEST, node.attestation(challenge))).json()
    assert answer["next_challenge"]["evidence"] == ["tpm-quote"]
    assert "ek_challenge" not in answer["next_challenge"]


@pytest.mark.parametrize("rsa_ek", [False, True])
async def test_what_the_ek_vouched_for_is_kept(service: Service, rsa_ek: bool) -> None:
    """The firmware is proven; the next challenge offers nothing until another firmware is quoted."""
    node = SoftwareNode(rsa_ek=rsa_ek)
    await service.introduce(node)
    assert (await service.detail(node))["firmware_attested"] is None
    challenge = await service.challenge(node)
    answer = await service.post(ATTEST, node.attestation(challenge, evidence=[node.certification(challenge)]))
    assert answer.status_code == 200, answer.text
    assert (await service.detail(node))["firmware_attested"] == "8217.4131.22.13878"
    machine_id = node.machine_id
    newest = (await service.store.read(lambda tx: tx.results.page(machine_id, None, 1))).items[0]
    assert newest.evidence.ek_key_attested is True
    assert "ek_challenge" not in await service.challenge(node)
    node.firmware_version = NEWER
    await service.attest(node)
    assert (await service.detail(node))["firmware_attested"] == "8217.4131.22.13878"
    challenge = await service.challenge(node)
    await service.post(ATTEST, node.attestation(challenge, evidence=[node.certification(challenge)]))
    assert (await service.detail(node))["firmware_attested"] == "8217.4131.22.13879"


@pytest.mark.threat("T78")
async def test_the_key_is_gone_after_one_use(service: Service) -> None:
    """Whatever came of the attestation, no secret stays in the database; unanswered ones go with their challenge."""
    node = SoftwareNode()
    await service.introduce(node)
    good, bad, unused = [await service.challenge(node) for _ in range(3)]
    assert len(kept(service)) == 3
    await service.post(ATTEST, node.attestation(good, evidence=[node.certification(good)]))
    spoilt = node.certification(bad, extra_data=b"x" * 32)
    assert (await service.post(ATTEST, node.attestation(bad, evidence=[spoilt]))).status_code == 403
    assert len(kept(service)) == 1
    service.clock.advance(661)
    await service.store.write(lambda tx: tx.purge(service.clock.now(), 100))
    assert kept(service) == []
    again = await service.post(ATTEST, node.attestation(unused, evidence=[node.certification(unused)]))
    assert again.status_code in (404, 410)


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"extra_data": b"x" * 32}, 403, "evidence-rejected"),
        ({"magic": 0xFF544346}, 403, "evidence-rejected"),
        ({"qualified_signer": b"\x00\x0b" + bytes(32)}, 403, "evidence-rejected"),
    ],
)
async def test_a_certification_that_does_not_verify(
    service: Service, changes: dict[str, Any], status: int, code: str
) -> None:
    """It refuses the whole attestation, like a bad quote: the challenge is spent, nothing else changes."""
    node = SoftwareNode()
    await service.admitted(node)
    before = await service.detail(node)
    challenge = await service.challenge(node)
    refused = await service.post(
        ATTEST, node.attestation(challenge, evidence=[node.certification(challenge, **changes)])
    )
    assert (refused.status_code, refused.json()["type"]) == (status, f"urn:itl:problem:{code}")
    again = await service.post(ATTEST, node.attestation(challenge, evidence=[node.certification(challenge)]))
    assert again.status_code == 409
    assert await service.detail(node) == before
    (entry, *_) = await service.audit(action="denied")
    assert entry["machine_id"] == node.machine_id


async def test_the_key_of_another_challenge(service: Service) -> None:
    """N77: a certification with the key of another offer of the same machine proves nothing."""
    node = SoftwareNode()
    await service.introduce(node)
    one, two = await service.challenge(node), await service.challenge(node)
    swapped = node.certification({**two, "nonce": one["nonce"]})
    refused = await service.post(ATTEST, node.attestation(one, evidence=[swapped]))
    assert refused.status_code == 403


async def test_answers_of_no_form(service: Service) -> None:
    """Twice, unasked, in parts or as one text: malformed, and the challenge is spent."""
    node = SoftwareNode()
    await service.introduce(node)
    for spoil in (
        lambda item: [item, item],
        lambda item: [{**item, "value": "AAAA"}],
        lambda item: [{**item, "value": {"certify_info": item["value"]["certify_info"]}}],
        lambda item: [{**item, "value": {**item["value"], "more": "AAAA"}}],
        lambda item: [{**item, "value": {**item["value"], "signature": "!"}}],
        lambda item: [{**item, "value": {**item["value"], "certify_info": "AAAA"}}],
        lambda item: [{**item, "value": {**item["value"], "signature": b64encode(bytes(5000))}}],
    ):
        challenge = await service.challenge(node)
        body = node.attestation(challenge, evidence=spoil(node.certification(challenge)))
        refused = await service.post(ATTEST, body)
        assert (refused.status_code, refused.json()["type"]) == (400, "urn:itl:problem:malformed-evidence")
    challenge = await service.challenge(node)
    answer = (await service.post(ATTEST, node.attestation(challenge))).json()
    unasked = node.attestation(answer["next_challenge"], evidence=[node.certification(challenge)])
    assert (await service.post(ATTEST, unasked)).status_code == 400


async def test_a_policy_may_need_it(service: Service) -> None:
    """Required: without an answer the machine fails; with one it is verified, and not asked again."""
    await demand(service)
    node = SoftwareNode()
    await service.introduce(node)
    answer = await service.attest(node)
    assert (await checks(service, node))["ek-key-attestation"] == "failed"
    following = answer["next_challenge"]
    assert following["evidence"][-1] == "tpm-ek-certify"
    body = node.attestation(following, evidence=[node.certification(following)])
    answer = (await service.post(ATTEST, body)).json()
    assert (await checks(service, node))["ek-key-attestation"] == "passed"
    assert (await service.detail(node))["trust"] == "verified"
    assert "ek_challenge" not in answer["next_challenge"]
    steady = (await service.post(ATTEST, node.attestation(answer["next_challenge"]))).json()
    assert (await service.detail(node))["trust"] == "verified"
    # Another firmware: it is asked for again, and until the answer nothing is verified.
    node.firmware_version = NEWER
    answer = (await service.post(ATTEST, node.attestation(steady["next_challenge"]))).json()
    assert answer["reattest_after_seconds"] == 1
    following = answer["next_challenge"]
    body = node.attestation(following, evidence=[node.certification(following)])
    assert (await service.post(ATTEST, body)).json()["message"] != ""
    assert (await service.detail(node))["last_result"]["verdict"] == "Verified"
    assert (await checks(service, node))["ek-key-attestation"] == "passed"


async def test_firmware_that_the_ek_does_not_confirm(service: Service) -> None:
    """The quote and the EK's statement name different firmware: not as expected, and nothing is kept."""
    await demand(service)
    node = SoftwareNode()
    await service.introduce(node)
    challenge = await service.challenge(node)
    told = node.certification(challenge, firmware_version=NEWER)
    assert (await service.post(ATTEST, node.attestation(challenge, evidence=[told]))).status_code == 200
    assert (await checks(service, node))["ek-key-attestation"] == "failed"
    assert (await service.detail(node))["firmware_attested"] is None
