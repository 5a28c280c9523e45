"""What our signer issues: only what was approved, and only what was asked for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from attestation.api.node_csr import KUBELET_CLIENT
from attestation.client import AnswerInvalid
from attestation.client.errors import api_error
from attestation.errors import AttestationError, CertificateUntrusted, Unavailable
from attestation_operator.actions import EmitEvent, Fail, PutCertificate
from attestation_operator.nodes.objects import read_csr
from attestation_operator.nodes.signer import Signed, certificate_for, is_final, reconcile
from tests.unit.operator.nodes.world import AT, CA, PKCS10, key, pem, pkcs10, raw_csr, subject

OUR_CA = CA()
ANCHORS = (OUR_CA.root,)
APPROVED = read_csr(raw_csr(conditions=["Approved"]))


@pytest.mark.parametrize(
    "changes",
    [
        {"conditions": []},
        {"conditions": ["Denied"]},
        {"conditions": ["Approved", "Denied"]},
        {"conditions": ["Approved", "Failed"]},
        {"conditions": ["Approved"], "certificate": "LS0t"},
    ],
)
def test_only_what_was_approved_and_not_answered_is_signed(changes: dict[str, Any]) -> None:
    """The API server would take a certificate for each of these but the last."""
    answer = OUR_CA.answer().certificate_pem
    for given in (None, answer):
        looked = reconcile(read_csr(raw_csr(**changes)), anchors=ANCHORS, at=AT, answer=given)
        assert (looked.outcome, looked.actions) == (Signed.SKIPPED, ())


def test_other_signers_are_not_signed() -> None:
    """Kubernetes' own signer has its own CA, and we have no right."""
    csr = read_csr(raw_csr(signer=KUBELET_CLIENT, conditions=["Approved"]))
    answer = OUR_CA.answer().certificate_pem
    assert reconcile(csr, anchors=ANCHORS, at=AT, answer=answer).outcome is Signed.NOT_OURS


def test_an_approved_request_is_asked_for_and_issued() -> None:
    """The leaf first, and nothing but certificates."""
    assert reconcile(APPROVED, anchors=ANCHORS, at=AT).ask
    answer = "text in front\n" + OUR_CA.answer().certificate_pem
    looked = reconcile(APPROVED, anchors=ANCHORS, at=AT, answer=answer)
    put, event = looked.actions
    assert isinstance(put, PutCertificate)
    assert isinstance(event, EmitEvent)
    assert put.certificate_pem.startswith("-----BEGIN CERTIFICATE-----\n")
    leaf, issuing = x509.load_pem_x509_certificates(put.certificate_pem.encode())
    assert leaf.public_key() == x509.load_pem_x509_csr(PKCS10).public_key()
    assert issuing == OUR_CA.issuing


def test_the_issuing_key_itself_may_be_the_anchor() -> None:
    """An API server may have only that one in its client CA file."""
    answer = pem(OUR_CA.leaf())
    assert certificate_for(APPROVED, answer, anchors=(OUR_CA.issuing,), at=AT) == answer


def wrong_answers() -> dict[str, str]:
    """Return answers that are no certificate for the request, by their fault."""
    leaf, ca = OUR_CA.leaf, OUR_CA
    other, node = CA(), CA()
    # A node's certificate for a client, under our CA, whose key signs another one.
    node.key = key()
    node.issuing = leaf(pkcs10(of=node.key))
    named = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "system:node:cp-1")])
    more = x509.Name([*subject(), x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "x")])
    masters = subject(groups=("system:nodes", "system:masters"))
    return {
        "empty": "",
        "no certificate": "ok",
        "not base64": "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n",
        "too long": "x" * (65 << 10) + "\n" + pem(leaf(), ca.issuing),
        "another key": pem(leaf(pkcs10(of=key())), ca.issuing),
        "another node": pem(leaf(name=subject("cp-2")), ca.issuing),
        "another group": pem(leaf(name=masters), ca.issuing),
        "no group": pem(leaf(name=named), ca.issuing),
        "more in the subject": pem(leaf(name=more), ca.issuing),
        "another ca": pem(other.leaf(), other.issuing, other.root),
        "another ca, with ours behind": pem(other.leaf(), other.issuing, ca.root),
        "issued by a node": pem(node.leaf(), node.issuing, ca.issuing),
        "issuer left out": pem(leaf()),
        "order": pem(ca.issuing, leaf()),
        "the ca itself": pem(ca.issuing, ca.root),
        "too many": pem(leaf(), *[ca.issuing] * 4),
        "server": pem(leaf(usage=[ExtendedKeyUsageOID.SERVER_AUTH]), ca.issuing),
        "client and server": pem(
            leaf(usage=[ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]), ca.issuing
        ),
        "a ca": pem(leaf(ca=True), ca.issuing),
        "expired": pem(leaf(begins=-timedelta(hours=24)), ca.issuing),
        "not yet": pem(leaf(begins=timedelta(hours=1), lifetime=timedelta(hours=1)), ca.issuing),
        "too long a life": pem(leaf(lifetime=timedelta(hours=25)), ca.issuing),
    }


@pytest.mark.threat("T188")
@pytest.mark.parametrize("fault", wrong_answers())
def test_an_answer_that_was_not_asked_for_is_not_issued(fault: str) -> None:
    """2xx without a certificate for this key under our CA: an Event, no certificate, no Failed (§24 i)."""
    looked = reconcile(APPROVED, anchors=ANCHORS, at=AT, answer=wrong_answers()[fault])
    assert looked.outcome is Signed.BAD_ANSWER
    assert [type(action) for action in looked.actions] == [EmitEvent]


@pytest.mark.parametrize(
    "name",
    [
        subject("cp-1", groups=("system:masters",)),
        subject("cp-1", groups=()),
        subject("admin", prefix=""),
    ],
)
def test_a_subject_that_is_no_node_is_not_issued(name: x509.Name) -> None:
    """Even if the request asks for it, somebody approved it, and our CA signed it."""
    request = pkcs10(name)
    csr = read_csr(raw_csr(request, conditions=["Approved"]))
    with pytest.raises(CertificateUntrusted):
        certificate_for(csr, pem(OUR_CA.leaf(request), OUR_CA.issuing), anchors=ANCHORS, at=AT)


def test_a_subject_that_is_only_taken_in_part_is_not_issued() -> None:
    """The request asked for something else than what came."""
    more = x509.Name([*subject(), x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "x")])
    csr = read_csr(raw_csr(pkcs10(more), conditions=["Approved"]))
    with pytest.raises(CertificateUntrusted, match="another subject"):
        certificate_for(csr, OUR_CA.answer().certificate_pem, anchors=ANCHORS, at=AT)


def test_the_administrator_may_want_shorter_lives() -> None:
    """And never longer ones than a day."""
    answer = OUR_CA.answer().certificate_pem
    with pytest.raises(CertificateUntrusted, match="longer"):
        certificate_for(APPROVED, answer, anchors=ANCHORS, at=AT, longest=timedelta(hours=8))
    two_days = pem(OUR_CA.leaf(lifetime=timedelta(hours=48)), OUR_CA.issuing)
    with pytest.raises(CertificateUntrusted, match="longer"):
        certificate_for(APPROVED, two_days, anchors=ANCHORS, at=AT, longest=timedelta(hours=72))


def test_without_anchors_nothing_is_issued() -> None:
    """An empty file of our CA is no permission."""
    with pytest.raises(CertificateUntrusted):
        certificate_for(APPROVED, OUR_CA.answer().certificate_pem, anchors=(), at=AT)


def test_an_expired_ca_signs_nothing() -> None:
    """A year later neither anchor nor leaf counts."""
    late = AT + timedelta(days=365)
    answer = pem(OUR_CA.leaf(at=late), OUR_CA.issuing)
    with pytest.raises(CertificateUntrusted, match="under our CA"):
        certificate_for(APPROVED, answer, anchors=ANCHORS, at=late)


def test_a_request_that_cannot_be_read_is_not_issued() -> None:
    """Whoever approved it."""
    for request in (b"", b"nothing", PKCS10.replace(b"M", b"N", 1), b"x" * (30 << 10) + PKCS10):
        csr = read_csr(raw_csr(request, conditions=["Approved"]))
        with pytest.raises(CertificateUntrusted):
            certificate_for(csr, OUR_CA.answer().certificate_pem, anchors=ANCHORS, at=AT)


def refusal(code: str, status: int) -> AttestationError:
    """Return what the client raises for a problem."""
    return api_error(code=code, title="", detail="secret", status=status)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("node-request-denied", 403),
        ("node-request-differs", 409),
        ("key-refused", 422),
        ("algorithm-forbidden", 422),
    ],
)
def test_what_the_service_refuses_for_good_fails(code: str, status: int) -> None:
    """Somebody approved what it judged bad: the node learns it at once."""
    error = refusal(code, status)
    assert is_final(error)
    looked = reconcile(APPROVED, anchors=ANCHORS, at=AT, answer=error)
    fail = looked.actions[0]
    assert isinstance(fail, Fail)
    assert code in fail.message
    assert "secret" not in fail.message
    assert len(fail.conditions) == 1


@pytest.mark.parametrize(
    "error",
    [
        refusal("http-404", 404),
        refusal("http-302", 302),
        refusal("http-500", 500),
        refusal("unauthenticated", 401),
        refusal("forbidden", 403),
        refusal("conflict", 409),
        refusal("request-invalid", 422),
        refusal("rate-limited", 429),
        refusal("ca-not-configured", 503),
        refusal("certificate-not-conformant", 503),
        AnswerInvalid("199"),
        Unavailable("x"),
    ],
)
def test_what_says_nothing_of_the_request_is_not_final(error: AttestationError) -> None:
    """A backend that is away, misrouted or that does not know us leaves the request as it is (§24 i)."""
    assert not is_final(error)
