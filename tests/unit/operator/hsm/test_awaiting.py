"""Issuers whose key is handed over: what they ask, and what they say meanwhile (HSM-AND-KUBERNETES §14)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from attestation.api.hsm import HSMNonce, HSMNonceRequest
from attestation.errors import AttestationError, KeyNotFound, KeyUnsupported, SignerUnavailable
from attestation.wire import b64decode, b64encode
from attestation_operator.actions import Create, Delete, SetFinalizers
from attestation_operator.errors import EvidenceUnavailable, ServiceAway
from attestation_operator.hsm.evidence import Collected
from attestation_operator.hsm.issuers import Ask, Case, Looked, Quotes, reconcile
from attestation_operator.hsm.objects import read_issuer
from attestation_operator.hsm.offering import Offering
from attestation_operator.hsm.offers import secret_name
from attestation_operator.objects import HSM_CLUSTER_ISSUER, HSM_ISSUER
from tests.fixtures.hsm_quotes import provisioning
from tests.unit.operator.hsm.test_issuers import state, status_of
from tests.unit.operator.hsm.world import AT, UID, issuer, issuer_raw, key, module, ready

ASKS: dict[str, Any] = {"mode": "Provisioned", "subject": None, "provisioning": provisioning()}
NONE: dict[Ask, Any] = {Ask.FIND: KeyNotFound("none"), Ask.COUNT: 0}


def look(answers: Any, *, hsm: Any = None, **more: Any) -> Looked:
    """Return what follows for an issuer that waits for its key."""
    asked = issuer(more.pop("status", None), **(ASKS | more))
    return reconcile(Case(issuer=asked, module=hsm or module(), at=AT, answers=answers))


def quote(*conditions: dict[str, Any], deleting: bool = False) -> Quotes:
    """Return its QuoteAttestation."""
    metadata: dict[str, Any] = {"name": "q", "namespace": "default", "uid": "u-q", "resourceVersion": "2"}
    if deleting:
        metadata["deletionTimestamp"] = "2026-11-26T11:59:00Z"
    return Quotes(found=({"metadata": metadata, "spec": {}, "status": {"conditions": list(conditions)}},))


def condition(type_: str, status: str, reason: str) -> dict[str, Any]:
    """Return a condition."""
    return {"type": type_, "status": status, "reason": reason, "message": "said"}


def test_it_asks_once() -> None:
    """What is there is looked for before anything is made; what is made is read again."""
    assert look(NONE).ask is Ask.OFFERED
    assert look(NONE | {Ask.OFFERED: Quotes(found=())}).ask is Ask.OFFER
    made = {"metadata": {"name": "q", "namespace": "default"}}
    looked = look(NONE | {Ask.OFFERED: Quotes(found=()), Ask.OFFER: made})
    [action] = looked.actions
    assert isinstance(action, Create)
    assert (action.raw, looked.again) == (made, True)


@pytest.mark.parametrize(
    ("error", "reason", "after"),
    [
        (EvidenceUnavailable("no program"), "EvidenceUnavailable", 60),
        (KeyUnsupported("a TPM"), "KeyUnsupported", 10),
        (SignerUnavailable("away"), "KeyUnavailable", 10),
        (ServiceAway("away"), "Pending", 10),
    ],
)
def test_why_it_could_not_ask(error: AttestationError, reason: str, after: float) -> None:
    """And it is tried again by itself."""
    looked = look(NONE | {Ask.OFFERED: Quotes(found=()), Ask.OFFER: error})
    assert (state(looked), looked.after) == (("False", reason), after)


@pytest.mark.parametrize(
    ("conditions", "reason"),
    [
        ([], "AwaitingKey"),
        ([condition("Ready", "Unknown", "AwaitingKey")], "AwaitingKey"),
        (
            [condition("Ready", "Unknown", "AwaitingKey"), condition("KeyLoaded", "False", "BundleRejected")],
            "BundleRejected",
        ),
        ([condition("Ready", "False", "UnwrapFailed")], "UnwrapFailed"),
        ([condition("Ready", "False", "Expired")], "Expired"),
        ([condition("Ready", "False", "EvidenceFailed")], "EvidenceFailed"),
    ],
)
def test_it_says_what_its_question_says(conditions: list[dict[str, Any]], reason: str) -> None:
    """And which one it is."""
    looked = look(NONE | {Ask.OFFERED: quote(*conditions)})
    assert state(looked) == ("False", reason)
    assert status_of(looked)["qaRef"] == {"namespace": "default", "name": "q"}


def test_a_key_without_its_certificate_signs_nothing() -> None:
    """It is between token and status; where nobody brings it any more, that is said, and no second key is asked for."""
    there = {Ask.FIND: key()}
    assert look(there).ask is Ask.OFFERED
    assert state(look(there | {Ask.OFFERED: quote(condition("Ready", "Unknown", "Loaded"))})) == (
        "False",
        "AwaitingKey",
    )
    assert state(look(there | {Ask.OFFERED: Quotes(found=())})) == ("False", "CertificateMismatch")


def test_a_key_that_was_there_is_not_asked_for_again() -> None:
    """As of a key that is made here: another one would be another CA."""
    status = {"conditions": ready("True"), "keyFingerprint": "0f" * 32}
    assert state(look(NONE, status=status)) == ("False", "KeyUnavailable")


def test_deleted_it_takes_its_questions_and_keys_along() -> None:
    """First the questions, each of which destroys its key; then what nobody asked with; then it goes."""
    gone: dict[Ask, Any] = {}
    assert look(gone, deleting=True).ask is Ask.QUOTES
    first = look({Ask.QUOTES: quote()}, deleting=True)
    [action] = first.actions
    assert isinstance(action, Delete)
    assert first.after == 1
    waiting = look({Ask.QUOTES: quote(deleting=True)}, deleting=True)
    assert (waiting.actions, waiting.after) == ((), 1)
    gone = {Ask.QUOTES: Quotes(found=())}
    assert look(gone, deleting=True).ask is Ask.DESTROY_KEKS
    assert state(look(gone | {Ask.DESTROY_KEKS: SignerUnavailable("away")}, deleting=True)) == (
        "False",
        "KeyUnavailable",
    )
    [freed] = look(gone | {Ask.DESTROY_KEKS: True}, deleting=True).actions
    assert isinstance(freed, SetFinalizers)
    asked = look(gone | {Ask.DESTROY_KEKS: True}, deleting=True, deletionPolicy="Destroy")
    assert asked.ask is Ask.DESTROY
    assert state(look({Ask.QUOTES: ServiceAway("away")}, deleting=True)) == ("False", "Pending")


# ------------------------------------------------------------ what is asked with


class Nonces:
    """The service: gives nonces, each another one."""

    def __init__(self) -> None:
        self.asked: list[HSMNonceRequest] = []

    async def nonce(self, asked: HSMNonceRequest) -> HSMNonce:
        """Return a nonce."""
        self.asked.append(asked)
        until = AT + timedelta(seconds=asked.valid_for_seconds)
        return HSMNonce(nonce=b64encode(bytes([len(self.asked)]) * 32), expires_at=until)


class Evidence:
    """A collector that fails so often."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures

    def demand(self, asked: Any) -> None:
        """Have it."""

    async def collect(self, asked: Any, report_data: bytes) -> Collected:
        """Return evidence."""
        assert (asked.type, len(report_data)) == ("sgx", 64)
        if self.failures:
            self.failures -= 1
            raise EvidenceUnavailable("not now")
        return Collected(format="sgx-dcap-v3", data=b"quote")


async def _here(work: Any) -> Any:
    return work()


def offering(service: Nonces, evidence: Evidence, clock: Any) -> Offering:
    """Return what asks."""
    around: Any = SimpleNamespace(clock=clock, settings=SimpleNamespace(lease_namespace="attestation"))
    keks: Any = SimpleNamespace(make=lambda *_: b"spki")
    log: Any = service
    collectors: Any = evidence
    return Offering(around, log, keks, collectors, _here)


def test_a_nonce_that_nobody_took_is_used_again() -> None:
    """A program that makes no evidence would otherwise use up those of an hour; one that is nearly over is not."""
    service, clock = Nonces(), SimpleNamespace(now=lambda: AT)
    asks, token = offering(service, Evidence(failures=2), clock), module().spec
    asked = issuer(**ASKS)
    assert token is not None
    for _ in range(2):
        with pytest.raises(EvidenceUnavailable):
            asyncio.run(asks.answer(Ask.OFFER, asked, token))
    made: Any = asyncio.run(asks.answer(Ask.OFFER, asked, token))
    assert len(service.asked) == 1
    [said] = service.asked
    assert (said.signer_uid, said.evidence_type, said.policy, said.valid_for_seconds) == (
        UID,
        "sgx",
        "enclaves",
        86_400,
    )
    assert b64decode(made["spec"]["binding"]["nonce"], "nonce") == b"\x01" * 32
    assert made["spec"]["expiresAt"] == "2026-11-27T12:00:00.000000Z"
    again: Any = asyncio.run(asks.answer(Ask.OFFER, asked, token))
    assert b64decode(again["spec"]["binding"]["nonce"], "nonce") == b"\x02" * 32, "each question has its own"
    late = offering(service, Evidence(failures=1), clock)
    with pytest.raises(EvidenceUnavailable):
        asyncio.run(late.answer(Ask.OFFER, asked, token))
    clock.now = lambda: AT + timedelta(hours=13)
    asyncio.run(late.answer(Ask.OFFER, asked, token))
    assert len(service.asked) == 4


def test_a_question_is_tied_to_its_issuer() -> None:
    """Owner, labels, finalizer; of an issuer of the whole cluster it is in the controller's namespace."""
    asks = offering(Nonces(), Evidence(), SimpleNamespace(now=lambda: AT))
    token = module().spec
    assert token is not None
    raw = issuer_raw(**ASKS)
    raw["metadata"]["labels"] = {"team": "payments"}
    made: Any = asyncio.run(asks.answer(Ask.OFFER, read_issuer(HSM_ISSUER, raw), token))
    metadata = made["metadata"]
    assert (metadata["name"], metadata["namespace"]) == (f"payments-{UID[:8]}-1", "default")
    assert metadata["labels"] == {"team": "payments", "attestation.itl.io/issuer-uid": UID}
    assert metadata["finalizers"] == ["attestation.itl.io/key-material"]
    [owner] = metadata["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("HsmIssuer", UID, True)
    assert made["spec"]["secretRef"] == {"name": "payments-cacert"}
    del raw["metadata"]["namespace"]
    cluster: Any = asyncio.run(asks.answer(Ask.OFFER, read_issuer(HSM_CLUSTER_ISSUER, raw), token))
    assert cluster["metadata"]["namespace"] == "attestation"
    assert "namespace" not in cluster["spec"]["signerRef"]


def test_a_secret_may_have_a_name_of_its_own() -> None:
    """Without, it is called after the issuer."""
    assert secret_name(issuer(**ASKS)) == "payments-cacert"
    assert (
        secret_name(issuer(**(ASKS | {"provisioning": provisioning(secretRef={"name": "mine"})}))) == "mine"
    )
