"""QuoteAttestations: judged for the question that was asked, written down once; a nonce is one bundle's."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import httpx
import pytest

from attestation.quote import Envelope, QuoteCase, QuoteResult
from attestation.results import Check, Outcome, Verdict
from attestation.wire import b64decode, b64encode
from attestation_service.hsm import quotes
from tests.unit.service import hsm_requests as hsm
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.realm import a_key as cluster_key
from tests.unit.service.test_policies import a_policy
from tests.unit.service.test_service_accounts import cluster, jwks

pytestmark = pytest.mark.anyio

SIGNER = "signer-uid"
CHECK = Check(name="sgx-measurement")


class Judge:
    """Judges as it is told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.verdict = Verdict.VERIFIED
        self.cases: list[QuoteCase] = []

    def __call__(self, envelope: Envelope, case: QuoteCase, at: Any) -> QuoteResult:
        """Return the verdict."""
        self.cases.append(case)
        outcomes: dict[Verdict, Outcome] = {
            Verdict.VERIFIED: CHECK.passed(),
            Verdict.FAILED: CHECK.failed("one value", "another"),
            Verdict.INDETERMINATE: CHECK.undecided("no collateral"),
        }
        return QuoteResult(
            verdict=self.verdict,
            outcomes=(outcomes[self.verdict],),
            claims={"mrenclave": "ab"},
            evidence_digest=b"\1" * 48,
            bound_key_fingerprint=b"\2" * 48,
            tier="hardware",
        )


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Judge:
    """The judgement itself has tests of its own."""
    made = Judge()
    monkeypatch.setattr(quotes, "appraise_quote", made)
    return made


@pytest.fixture
async def service(start: Starter) -> Service:
    """A service that knows one cluster."""
    return await hsm.serving(start)


async def nonce(service: Service, **changes: Any) -> str:
    """Return a fresh nonce."""
    said = {
        "purpose": "KeyProvisioning",
        "signer_uid": SIGNER,
        "evidence_type": "sgx",
        "policy": "enclaves@1",
        "valid_for_seconds": 86_400,
    } | changes
    found = await hsm.good(service, "POST", "/nonces", said)
    assert len(b64decode(found["nonce"], "nonce")) == 32
    return str(found["nonce"])


def envelope(service: Service, nonce: str, **changes: Any) -> dict[str, Any]:
    """Return the `spec` of a QuoteAttestation."""
    said: dict[str, Any] = {
        "purpose": "KeyProvisioning",
        "evidence": {"type": "sgx", "format": "sgx-dcap-v3", "data": b64encode(b"quote")},
        "binding": {"scheme": "itl-qa-v1", "hash": "sha512", "nonce": nonce},
        "publicKey": b64encode(hsm.spki_of(hsm.Issuer(service.clock.at).key)),
        "signerRef": {"group": "attestation.itl.io", "kind": "HsmIssuer", "name": "ca", "uid": SIGNER},
        "policyRef": "enclaves@1",
        "wrap": {"kekAlg": "rsa-3072", "oaepHash": "sha256", "keyWrap": "aes-kwp"},
        "expiresAt": (service.clock.at + timedelta(hours=12)).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return said | changes


async def put(service: Service, spec: dict[str, Any], uid: str = "qa-1", key: Any = None) -> httpx.Response:
    """Have it judged."""
    body = {"namespace": "seed", "name": uid, "spec": spec}
    return await hsm.ask(service, "PUT", f"/quote-attestations/{uid}", body, key)


async def stepped(service: Service, step: str, uid: str = "qa-1", **members: Any) -> httpx.Response:
    """Tell of a step."""
    return await hsm.ask(service, "POST", f"/quote-attestations/{uid}/steps", {"step": step} | members)


def bundle(number: int = 1) -> dict[str, Any]:
    """Return what names a bundle."""
    return {"bundle_sha256": f"{number:02x}" * 32, "signers": ["ff" * 32]}


async def verified(service: Service) -> dict[str, Any]:
    """Have evidence judged good."""
    answer = await put(service, envelope(service, await nonce(service)))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert found["verdict"] == "verified"
    return found


async def test_a_verdict_is_written_down_once(service: Service, judge: Judge) -> None:
    """The same again is the same answer, without another look; something else under the UID is refused."""
    spec = envelope(service, await nonce(service))
    first, again = await put(service, spec), await put(service, spec)
    assert first.json() == again.json()
    assert len(judge.cases) == 1
    (told,) = await service.audit(action="hsm_quote_judged")
    assert first.json()["audit_entry_hash"] == told["entry_hash"]
    assert (first.json()["evidence_digest"], first.json()["tier"]) == ("01" * 48, "hardware")
    assert first.json()["checks"] == [{"name": "sgx-measurement", "outcome": "pass", "detail": ""}]
    other = await put(service, spec | {"policyRef": "others@1"})
    assert (other.status_code, hsm.code(other)) == (409, "hsm-differs")
    (listed,) = (await service.operator("GET", "/hsm/quote-attestations")).json()["items"]
    assert (listed["uid"], listed["signer_uid"], listed["verdict"]) == ("qa-1", SIGNER, "verified")


@pytest.mark.threat("T290")
async def test_the_question_is_the_service_s_word(service: Service, judge: Judge) -> None:
    """Issuer, purpose, type and policy are those of the nonce, whatever the envelope says; the audit says the same."""
    await put(service, envelope(service, await nonce(service, evidence_type="tdx")))
    (case,) = judge.cases
    assert (case.signer_uid, case.purpose, case.evidence_type) == (SIGNER, "KeyProvisioning", "tdx")
    assert case.policy is None  # there is none of this name: the judge leaves it open
    (told,) = await service.audit(action="hsm_quote_judged")
    assert f"for {SIGNER}: verified by no policy, tdx evidence" in told["detail"]
    (listed,) = (await service.operator("GET", "/hsm/quote-attestations")).json()["items"]
    assert (listed["signer_uid"], listed["evidence_type"]) == (SIGNER, "tdx")


@pytest.mark.threat("T290")
async def test_the_policy_that_judged_is_named(service: Service, judge: Judge) -> None:
    """By its version and digest, in the verdict and in the audit; the envelope names the one that was asked for."""
    assert (await service.operator("POST", "/policies", a_policy(name="enclaves"))).status_code == 201
    spec = envelope(service, await nonce(service, policy="enclaves"), policyRef={"name": "enclaves"})
    found = (await put(service, spec)).json()
    (case,) = judge.cases
    assert case.policy is not None
    assert (found["policy"], found["policy_sha256"]) == ("enclaves@1", case.policy.sha256)
    (told,) = await service.audit(action="hsm_quote_judged")
    assert f"policy enclaves@1 sha256 {case.policy.sha256}," in told["detail"]
    for other in ("others@1", None):
        answer = await put(service, envelope(service, await nonce(service), policyRef=other), "qa-2")
        assert (answer.status_code, hsm.code(answer)) == (409, "hsm-differs"), other


@pytest.mark.threat("T290")
@pytest.mark.usefixtures("judge")
async def test_a_nonce_lives_as_long_as_its_issuer_waits(service: Service) -> None:
    """Its end is that of the QuoteAttestation, at most seven days away; nothing is judged that would end later."""
    said = {"purpose": "KeyProvisioning", "signer_uid": SIGNER, "evidence_type": "sgx", "policy": None}
    for seconds in (59, 7 * 86_400 + 1):
        answer = await hsm.ask(service, "POST", "/nonces", said | {"valid_for_seconds": seconds})
        assert answer.status_code == 422, seconds
    found = await hsm.good(service, "POST", "/nonces", said | {"valid_for_seconds": 7 * 86_400})
    late = envelope(service, found["nonce"], policyRef=None, expiresAt="2027-01-01T00:00:00Z")
    refused = await put(service, late)
    assert (refused.status_code, hsm.code(refused)) == (422, "request-invalid")
    service.clock.advance(3 * 86_400)
    assert (await put(service, late | {"expiresAt": found["expires_at"]})).status_code == 200
    service.clock.advance(3 * 86_400)
    assert (await stepped(service, "bundle-accepted", **bundle())).status_code == 200


@pytest.mark.threat("T290")
@pytest.mark.usefixtures("judge")
async def test_who_has_seen_a_nonce_does_not_take_it_away(service: Service) -> None:
    """For another purpose or issuer it is refused before it is anybody's; then it is still that of its own question."""
    given = await nonce(service)
    of_another = {"group": "attestation.itl.io", "kind": "HsmIssuer", "name": "ca", "uid": "another"}
    for change in ({"purpose": "CsrAttestation"}, {"signerRef": of_another}):
        answer = await put(service, envelope(service, given, **change), "theirs")
        assert (answer.status_code, hsm.code(answer)) == (409, "hsm-differs"), change
    assert (await service.operator("GET", "/hsm/quote-attestations")).json()["items"] == []
    assert (await put(service, envelope(service, given))).json()["verdict"] == "verified"


@pytest.mark.threat("T290")
@pytest.mark.usefixtures("judge")
async def test_a_nonce_is_of_this_service_and_fresh(start: Starter, service: Service) -> None:
    """Nobody's, of yesterday, of another QuoteAttestation."""
    del start
    spec = envelope(service, b64encode(b"\7" * 32))
    answer = await put(service, spec)
    assert (answer.status_code, hsm.code(answer)) == (404, "challenge-unknown")
    late = envelope(service, await nonce(service))
    taken = envelope(service, await nonce(service))
    assert (await put(service, taken)).status_code == 200
    answer = await put(service, taken, "qa-2")
    assert (answer.status_code, hsm.code(answer)) == (409, "challenge-used")
    service.clock.advance(86_400)
    answer = await put(service, late, "qa-3")
    assert (answer.status_code, hsm.code(answer)) == (410, "challenge-expired")


@pytest.mark.threat("T290")
@pytest.mark.usefixtures("judge")
async def test_a_nonce_of_another_cluster_is_unknown(start: Starter) -> None:
    """Evidence for one cluster is none for another; neither are its QuoteAttestations."""
    key = cluster_key(number=1)
    service = await hsm.serving(start, clusters=[cluster(), cluster(cluster_id="other", jwks=jwks(key))])
    spec = envelope(service, await nonce(service))
    answer = await put(service, spec, key=key)
    assert (answer.status_code, hsm.code(answer)) == (404, "challenge-unknown")
    await put(service, spec)
    answer = await hsm.ask(service, "POST", "/quote-attestations/qa-1/steps", {"step": "accepted"}, key)
    assert (answer.status_code, hsm.code(answer)) == (404, "hsm-quote-unknown")


async def test_what_is_open_is_judged_again(service: Service, judge: Judge) -> None:
    """Until it is decided; each verdict stands in the audit once. Open delivers nothing."""
    spec = envelope(service, await nonce(service))
    judge.verdict = Verdict.INDETERMINATE
    first, second = [(await put(service, spec)).json() for _ in range(2)]
    assert (first["verdict"], first["audit_entry_hash"]) == ("indeterminate", second["audit_entry_hash"])
    answer = await stepped(service, "bundle-accepted", **bundle())
    assert (answer.status_code, hsm.code(answer)) == (409, "hsm-differs")
    judge.verdict = Verdict.VERIFIED
    third = (await put(service, spec)).json()
    assert third["verdict"] == "verified"
    judge.verdict = Verdict.FAILED
    assert (await put(service, spec)).json() == third
    assert len(await service.audit(action="hsm_quote_judged")) == 2


@pytest.mark.threat("T291")
async def test_failed_evidence_gets_no_bundle(service: Service, judge: Judge) -> None:
    """And no second judgement."""
    spec = envelope(service, await nonce(service))
    judge.verdict = Verdict.FAILED
    assert (await put(service, spec)).json()["reason"] == "EvidenceFailed"
    assert (await stepped(service, "bundle-accepted", **bundle())).status_code == 409
    judge.verdict = Verdict.VERIFIED
    assert (await put(service, spec)).json()["verdict"] == "failed"


@pytest.mark.usefixtures("judge")
async def test_a_key_goes_its_way_step_by_step(service: Service) -> None:
    """Each step once in the audit; asked again it has the same entry; nothing follows an end."""
    await verified(service)
    for step, members in (
        ("accepted", {}),
        ("bundle-rejected", {"detail": "signature"}),
        ("bundle-accepted", bundle()),
        ("loaded", bundle()),
    ):
        first, again = [await stepped(service, step, **members) for _ in range(2)]
        assert (first.status_code, first.json()) == (200, again.json()), step
    for late in ("failed", "expired", "bundle-rejected"):
        answer = await stepped(service, late, detail="late")
        assert (answer.status_code, hsm.code(answer)) == (409, "hsm-differs"), late
    told = await service.audit(action="hsm_key_step")
    assert len(told) == 4
    assert "signature" in told[2]["detail"]
    (listed,) = (await service.operator("GET", "/hsm/quote-attestations")).json()["items"]
    assert listed["last_step"] == "loaded"


@pytest.mark.usefixtures("judge")
async def test_of_two_bundles_one_is_accepted(service: Service) -> None:
    """At the same moment, by two controllers: the nonce is one bundle's."""
    await verified(service)
    answers = await asyncio.gather(
        *(stepped(service, "bundle-accepted", **bundle(number)) for number in (1, 2, 3, 4))
    )
    assert sorted(each.status_code for each in answers) == [200, 409, 409, 409]
    assert len(await service.audit(action="hsm_key_step")) == 1


@pytest.mark.threat("T291")
@pytest.mark.usefixtures("judge")
async def test_a_spent_nonce_is_spent(service: Service) -> None:
    """Rejected after it was accepted, a bundle leaves no room for another one."""
    await verified(service)
    await stepped(service, "bundle-accepted", **bundle(1))
    await stepped(service, "bundle-rejected", detail="another certificate", **bundle(1))
    answer = await stepped(service, "bundle-accepted", **bundle(2))
    assert (answer.status_code, hsm.code(answer)) == (409, "challenge-used")


@pytest.mark.usefixtures("judge")
async def test_a_bundle_comes_in_time_and_signed(service: Service) -> None:
    """Not without its signers, not twice the same, not when the QuoteAttestation is over, never before it is judged."""
    unknown = await stepped(service, "accepted", "nobody")
    assert (unknown.status_code, hsm.code(unknown)) == (404, "hsm-quote-unknown")
    await verified(service)
    for members in ({}, {"bundle_sha256": "01" * 32}, bundle() | {"signers": ["ff" * 32] * 2}):
        assert (await stepped(service, "bundle-accepted", **members)).status_code == 422
    assert (await stepped(service, "loaded", **bundle())).status_code == 409
    service.clock.advance(12 * 3_600)
    answer = await stepped(service, "bundle-accepted", **bundle())
    assert (answer.status_code, hsm.code(answer)) == (410, "challenge-expired")


async def test_an_envelope_is_judged_for_anybody_who_may_ask(service: Service) -> None:
    """Without Kubernetes, by the real judge; nothing is kept or told in the audit."""
    spec = envelope(service, b64encode(b"\7" * 32))
    answer = await service.operator("POST", "/quote-attestations/judge", {"spec": spec})
    assert (answer.status_code, answer.json()["verdict"]) == (200, "failed")
    assert answer.json()["checks"][-1]["name"] == "quote-freshness"
    assert answer.json()["audit_entry_hash"] is None
    assert (await service.operator("GET", "/hsm/quote-attestations")).json()["items"] == []
    assert await service.audit(action="hsm_quote_judged") == []


@pytest.mark.parametrize(
    "fault",
    [{"purpose": "Other"}, {"more": 1}, {"expiresAt": 1e400}, {"publicKey": "?"}],
    ids=["purpose", "member", "number", "key"],
)
async def test_what_is_no_envelope_is_malformed(service: Service, fault: dict[str, Any]) -> None:
    """For the controller and for operators alike."""
    spec = envelope(service, await nonce(service)) | fault
    if fault.get("expiresAt"):
        body = '{"namespace": "seed", "name": "x", "spec": {"expiresAt": 1e400}}'
        answer = await service.http.put(
            "/api/v1/hsm/quote-attestations/qa-1",
            content=body,
            headers=hsm.bearer(service) | {"Content-Type": "application/json"},
        )
    else:
        answer = await put(service, spec)
    assert (answer.status_code, hsm.code(answer)) == (400, "malformed-evidence"), answer.text
