"""Kubernetes' CertificateSigningRequests to cluster issuers, row by row (HSM-AND-KUBERNETES §16, §21)."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

import pytest

from attestation.clock import rfc3339
from attestation.errors import (
    CertificateNotConformant,
    Forbidden,
    HSMDiffers,
    IssuerUnknown,
    RequestRefused,
    SignerUnavailable,
)
from attestation.pki.leaf import judge_leaf
from attestation_operator.actions import Approve, Deny, EmitEvent, SetStatus
from attestation_operator.errors import ServiceAway
from attestation_operator.hsm import requests
from attestation_operator.hsm.requests import Issued
from attestation_operator.hsm.signing import Looked, Step, asked_of, reconcile
from attestation_operator.nodes.objects import read_csr
from tests.unit.operator.hsm.world import AT, authority, csr, issuer_raw, ready, request_raw

SIGNER = "hsmclusterissuers.attestation.itl.io/payments"
GOOD = issuer_raw({"conditions": ready()})
ISSUED = Issued(certificate="leaf", ca="ca")
OUTCOMES = (
    None,
    ISSUED,
    RequestRefused("malformed", "no request"),
    CertificateNotConformant("a rule"),
    SignerUnavailable("away"),
    IssuerUnknown("restored"),
    ServiceAway("away"),
    HSMDiffers("something else stands there"),
)


def csr_raw(
    *said: str,
    approved_for: timedelta = timedelta(),
    certificate: str | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Return a CertificateSigningRequest with these conditions, created three days ago."""
    asked = {
        "signerName": SIGNER,
        "request": base64.b64encode(csr("a.example")).decode(),
        "usages": ["digital signature", "server auth"],
        "username": "somebody",
        "groups": ["people"],
    }
    at = rfc3339(AT - approved_for)
    condition = {"status": "True", "reason": "tests", "lastUpdateTime": at, "lastTransitionTime": at}
    return {
        "metadata": {
            "name": "csr-1",
            "uid": "u-csr",
            "resourceVersion": "9",
            "creationTimestamp": rfc3339(AT - timedelta(days=3)),
            "annotations": annotations or {},
        },
        "spec": asked | spec,
        "status": {
            "conditions": [{"type": each, **condition} for each in said],
            **({"certificate": certificate} if certificate else {}),
        },
    }


def look(*said: str, issuer: Any = GOOD, outcome: Any = None, **more: Any) -> Looked:
    """Return what follows for a request."""
    return reconcile(read_csr(csr_raw(*said, **more)), issuer, at=AT, outcome=outcome)


def statuses(looked: Looked) -> list[SetStatus]:
    """Return what is said of the request."""
    return [each for each in looked.actions if isinstance(each, SetStatus)]


@pytest.mark.parametrize(
    "signer",
    [
        "attestation.itl.io/node-client",
        "kubernetes.io/kube-apiserver-client",
        "hsmissuers.attestation.itl.io/default.payments",
        "hsmclusterissuers.attestation.itl.io/",
        "hsmclusterissuers.attestation.itl.io.example/payments",
    ],
)
def test_only_cluster_issuers_have_a_signer(signer: str) -> None:
    """Nothing is said of another's request, nor of one to an issuer in a namespace: a request has none."""
    assert look("Approved", signerName=signer) == Looked(step=Step.NOT_OURS)


@pytest.mark.parametrize(
    ("said", "certificate"),
    [((), None), (("Denied",), None), (("Approved", "Failed"), None), (("Approved",), "bGVhZg==")],
    ids=["undecided", "denied", "failed", "answered"],
)
def test_the_approval_is_looked_at_and_an_end_stays(said: Any, certificate: str | None) -> None:
    """An API server would take a certificate for each of them; a denied request is left as its approver left it."""
    for outcome in (None, ISSUED):
        looked = look(*said, certificate=certificate, outcome=outcome)
        assert looked == Looked(step=Step.SKIPPED)


def test_an_approved_request_is_signed_and_the_certificate_written_if_it_is_as_it_was_judged() -> None:
    """By server-side apply with our own manager; the certificate alone, for the conditions are others'."""
    assert look("Approved") == Looked(step=Step.SIGN)
    looked = look("Approved", outcome=ISSUED)
    assert looked.step is Step.ISSUED
    [status] = statuses(looked)
    assert status.status == {"certificate": base64.b64encode(b"leaf").decode()}
    assert (status.manager, status.exact, status.target.resource_version) == (
        "attestation-operator-hsm",
        True,
        "9",
    )


@pytest.mark.parametrize(
    "issuer",
    [
        None,
        issuer_raw({}),
        issuer_raw({"conditions": ready(generation=0)}),
        issuer_raw({"conditions": ready("False")}),
    ],
    ids=["absent", "not-seen", "changed", "not-ready"],
)
def test_it_waits_for_its_issuer_later_and_later(issuer: Any) -> None:
    """Nothing is said in the request, however long that takes; an Event says why."""
    looked = look("Approved", issuer=issuer)
    for waited, after in ((0, 1.0), (7, 7.0), (3600, 30.0)):
        looked = look("Approved", issuer=issuer, approved_for=timedelta(seconds=waited))
        assert (looked.step, looked.after, statuses(looked)) == (Step.WAITING, after, [])
    assert [each.reason for each in looked.actions if isinstance(each, EmitEvent)] == ["Pending"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RequestRefused("malformed", "no request"), "SignerValidationFailure"),
        (RequestRefused("duration-forbidden", "too long"), "SignerValidationFailure"),
        (CertificateNotConformant("a rule"), "SignerValidationFailure"),
    ],
)
def test_what_is_refused_for_good_is_failed(error: Any, reason: str) -> None:
    """At the first try: condition Failed and nothing else, by server-side apply; the approval stays its approver's."""
    looked = look("Approved", outcome=error)
    [status] = statuses(looked)
    [condition] = status.status["conditions"]
    assert {**condition, "message": ""} == {
        "type": "Failed",
        "status": "True",
        "reason": reason,
        "message": "",
    }
    assert status.status.keys() == {"conditions"}
    assert (looked.step, looked.after, status.exact) == (Step.FAILED, None, True)


@pytest.mark.parametrize(
    ("error", "fails"),
    [
        (SignerUnavailable("away"), True),
        (IssuerUnknown("restored"), True),
        (ServiceAway("away"), False),
        (Forbidden("no duty"), False),
    ],
)
def test_what_may_pass_is_waited_for(error: Any, fails: bool) -> None:
    """For ever: the issuer says of itself that its key does not sign."""
    looked = look("Approved", outcome=error, approved_for=timedelta(days=1))
    assert (looked.step, looked.issuer_fails, statuses(looked)) == (Step.WAITING, fails, [])


def test_what_nobody_knows_is_tried_for_a_minute_after_the_approval() -> None:
    """Not after the creation: a person may take days to approve."""
    error = HSMDiffers("something else stands there")
    assert look("Approved", outcome=error).step is Step.WAITING
    looked = look("Approved", outcome=error, approved_for=timedelta(minutes=1))
    [status] = statuses(looked)
    assert status.status["conditions"][0]["reason"] == "IssuanceFailed"


def test_the_lifetime_is_what_was_asked_for_within_the_policy() -> None:
    """Beyond it the request is refused; without a word (an old API server drops it) the issuer's own holds (K4)."""
    ca = authority(policy={"maxDuration": "48h"})

    def lifetime(**spec: Any) -> timedelta:
        content = judge_leaf(asked_of(read_csr(csr_raw(**spec))), ca.policy, ca=ca.ca, at=AT)
        return content.not_after - AT

    assert lifetime(expirationSeconds=3600) == timedelta(hours=1)
    assert lifetime() == timedelta(hours=48)
    with pytest.raises(RequestRefused, match="certified"):
        lifetime(expirationSeconds=49 * 3600)


def test_annotations_are_never_read() -> None:
    """They can change after the approval: cert-manager's words for lifetime and CA mean nothing here."""
    said = {
        "experimental.cert-manager.io/request-duration": "1h",
        "experimental.cert-manager.io/request-is-ca": "true",
    }
    assert asked_of(read_csr(csr_raw(annotations=said))) == asked_of(read_csr(csr_raw()))
    assert asked_of(read_csr(csr_raw(annotations=said))).is_ca is False


def test_a_ca_is_not_asked_for() -> None:
    """`cert sign` for what is no CA is refused: the API has no word for a CA."""
    ca = authority(policy={"allowCA": True, "usages": ["cert sign"]}, pathLen=1)
    with pytest.raises(RequestRefused, match="usages of a CA"):
        judge_leaf(asked_of(read_csr(csr_raw(usages=["cert sign"]))), ca.policy, ca=ca.ca, at=AT)


def test_k6_nothing_here_approves_or_denies() -> None:
    """K6: whatever the request and the outcome are, of both kinds of requests; a denied one is left as it was left."""
    decided: list[Any] = []
    seen = 0
    for outcome in OUTCOMES:
        for issuer in (None, GOOD):
            for said in ((), ("Approved",), ("Denied",), ("Approved", "Failed"), ("Approved", "Denied")):
                looks: list[Any] = [look(*said, issuer=issuer, outcome=outcome)]
                conditions = [(each, "True", "tests") for each in said]
                for more in ([], [("Ready", "False", "Pending")]):
                    request = requests.read_request(request_raw(*conditions, *more))
                    looks.append(requests.reconcile(request, issuer, at=AT, outcome=outcome))
                if "Denied" in said or not said:
                    assert not statuses(looks[0])
                for each in (action for looked in looks for action in looked.actions):
                    seen += 1
                    if isinstance(each, Approve | Deny):
                        decided.append(each)
                    if isinstance(each, SetStatus):
                        types = {c["type"] for c in each.status.get("conditions", ())}
                        decided += types & {"Approved", "Denied"}
    assert seen
    assert decided == []
