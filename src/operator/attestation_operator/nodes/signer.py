"""What our own signer issues (HSM-AND-KUBERNETES §§21, 22): `attestation.itl.io/node-client`.

The service's CA signs. An API server takes a certificate for any request, an unapproved one too, so the approval is
looked at here; and what comes back is compared with the request before it is stored, because it cannot be taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, load_der_public_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from attestation.api.node_csr import NODE_CLIENT
from attestation.errors import AttestationError, CertificateUntrusted
from attestation.pki.names import NODES_GROUP
from attestation_operator.actions import Action, EmitEvent, Fail, PutCertificate
from attestation_operator.nodes.objects import (
    SigningRequest,
    Wanted,
    decoded,
    node_named,
    wanted,
)
from attestation_operator.objects import clipped

LONGEST: Final = timedelta(hours=24)
"""No certificate for longer, whoever asked for it: an API server reads no revocation list."""
CLOCK_SKEW: Final = timedelta(minutes=10)
FINAL: Final = frozenset(
    {"node-request-denied", "node-request-differs", "key-refused", "algorithm-forbidden"}
)
"""Codes with which the service refuses this request, and not us: it judged it bad, or judged another under its UID, or
certifies its key never again."""
MAX_PEM_BYTES: Final = 64 << 10
MAX_CHAIN: Final = 4


class Signed(StrEnum):
    """What became of a request at this look."""

    NOT_OURS = "not-ours"
    SKIPPED = "skipped"
    ASKED = "asked"
    BAD_ANSWER = "bad-answer"
    FAILED = "failed"
    ISSUED = "issued"


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What was found at one look: what is to be done, and whether the service must be asked first."""

    outcome: Signed
    actions: tuple[Action, ...] = ()
    said: str = ""

    @property
    def ask(self) -> bool:
        """Whether nothing follows before the service has answered."""
        return self.outcome is Signed.ASKED


def reconcile(
    csr: SigningRequest,
    *,
    anchors: Sequence[x509.Certificate],
    at: datetime,
    longest: timedelta = LONGEST,
    answer: str | AttestationError | None = None,
) -> Looked:
    """Return what is to be done about a request now.

    Args:
        csr: The request, as it is.
        anchors: Our CA, as the administrator of the cluster gave it: not what the answer says of itself.
        at: Now.
        longest: The longest lifetime that the administrator allows.
        answer: PEM of the service's answer, its refusal, or None before it was asked.
    """
    # 1. Ours alone: for other signers we have no right, and no CA.
    if csr.signer_name != NODE_CLIENT:
        return Looked(outcome=Signed.NOT_OURS)
    # 2. Approved, not denied, not failed, not answered. The API server would take a certificate all the same.
    if not csr.awaits_certificate:
        return Looked(outcome=Signed.SKIPPED)
    if answer is None:
        return Looked(outcome=Signed.ASKED)
    # 3. Refused for good: somebody approved what the service judged bad. The node need not wait for it.
    if isinstance(answer, AttestationError):
        return _fail(csr, answer)
    # 4. What came back is what was asked for. A certificate cannot be replaced: a wrong one is worse than none.
    try:
        pem = certificate_for(csr, answer, anchors=anchors, at=at, longest=longest)
    except CertificateUntrusted as e:
        return Looked(
            outcome=Signed.BAD_ANSWER,
            said=str(e),
            actions=(
                EmitEvent(
                    target=csr.target,
                    action="Sign",
                    reason="AnswerRefused",
                    note=clipped(f"what the service answered is not issued: {e}"),
                    type="Warning",
                ),
            ),
        )
    return Looked(
        outcome=Signed.ISSUED,
        actions=(
            PutCertificate(target=csr.target, certificate_pem=pem),
            EmitEvent(target=csr.target, action="Sign", reason="Issued", note="certificate issued"),
        ),
    )


def is_final(error: AttestationError) -> bool:
    """Whether the service's refusal is about this request, and will be the same tomorrow.

    What concerns us (token, right, path), or might be a proxy's word, is not: the request stays as it is.
    """
    return error.code in FINAL


def certificate_for(
    csr: SigningRequest,
    pem: str,
    *,
    anchors: Sequence[x509.Certificate],
    at: datetime,
    longest: timedelta = LONGEST,
) -> str:
    """Return the certificates of *pem*, the leaf first, as they may be stored for *csr*.

    Raises:
        CertificateUntrusted: Anything else than a certificate for the key and the subject of the request, under our
            CA, for a client and no longer than *longest*, 24 hours at most.
    """
    if len(pem) > MAX_PEM_BYTES:
        raise CertificateUntrusted(f"{len(pem)} bytes of PEM, at most {MAX_PEM_BYTES} allowed")
    request = wanted(decoded(csr.request))
    if request is None:
        raise CertificateUntrusted("the request cannot be read")
    try:
        chain = x509.load_pem_x509_certificates(pem.encode())
        leaf = chain[0]
        _compare(leaf, request, at=at, longest=min(longest, LONGEST))
        _verify_chain(chain, anchors=anchors, at=at)
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.ExtensionNotFound) as e:
        raise CertificateUntrusted(f"request or certificate cannot be read: {type(e).__name__}") from e
    # Written anew: nothing but these certificates, whatever text stood around them.
    return "".join(certificate.public_bytes(Encoding.PEM).decode("ascii") for certificate in chain)


def _compare(leaf: x509.Certificate, request: Wanted, *, at: datetime, longest: timedelta) -> None:
    # Another's key: the holder of that key would be this node. The keys are compared, not how they are written.
    if leaf.public_key() != load_der_public_key(request.spki):
        raise CertificateUntrusted("the certificate is for another key than the request")
    # Another's name: this node would be that one, or an administrator.
    subject = [(attribute.oid, attribute.value) for attribute in leaf.subject]
    asked = [(NameOID.ORGANIZATION_NAME, each) for each in request.organizations]
    asked += [(NameOID.COMMON_NAME, each) for each in request.names]
    if request.others or sorted(subject, key=str) != sorted(asked, key=str):
        raise CertificateUntrusted("the certificate is for another subject than the request")
    if request.organizations != (NODES_GROUP,) or node_named(request) is None:
        raise CertificateUntrusted("the subject is not that of a node")
    # Another use: a server, or a CA.
    if list(leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) != [
        ExtendedKeyUsageOID.CLIENT_AUTH
    ]:
        raise CertificateUntrusted("the certificate is not for a client alone")
    if leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
        raise CertificateUntrusted("the certificate is that of a CA")
    if leaf.not_valid_before_utc > at + CLOCK_SKEW or leaf.not_valid_after_utc <= at:
        raise CertificateUntrusted("the certificate is not valid now")
    if leaf.not_valid_after_utc > at + longest + CLOCK_SKEW:
        raise CertificateUntrusted("the certificate is valid for longer than is allowed")


def _verify_chain(
    chain: Sequence[x509.Certificate], *, anchors: Sequence[x509.Certificate], at: datetime
) -> None:
    if len(chain) > MAX_CHAIN:
        raise CertificateUntrusted(f"{len(chain)} certificates, at most {MAX_CHAIN} allowed")
    for place, certificate in enumerate(chain):
        if any(_issued(certificate, anchor, at=at) for anchor in anchors):
            return
        if place + 1 == len(chain) or not _issued(certificate, chain[place + 1], at=at):
            break
    raise CertificateUntrusted("the certificate is not under our CA")


def _issued(certificate: x509.Certificate, issuer: x509.Certificate, *, at: datetime) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
        is_ca = issuer.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.ExtensionNotFound):
        return False
    return is_ca and issuer.not_valid_before_utc <= at < issuer.not_valid_after_utc


def _fail(csr: SigningRequest, error: AttestationError) -> Looked:
    message = clipped(f"the service does not sign this request: {error.code}")
    return Looked(
        outcome=Signed.FAILED,
        said=error.code,
        actions=(
            Fail(target=csr.target, reason="NotAttested", message=message, conditions=csr.conditions),
            EmitEvent(target=csr.target, action="Sign", reason="NotAttested", note=message, type="Warning"),
        ),
    )
