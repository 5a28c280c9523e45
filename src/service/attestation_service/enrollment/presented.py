"""Enrolment with a certificate: it is ours, it is good now, and its key signed our challenge (ITL-REFERENCE §16).

It proves, and it changes nothing: no status is left or reached by it (FAULTS R5, R15).
"""

# Algorithms for: certified-key, proof-of-possession
from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from attestation.api import EnrollRequest, EnrollResponse
from attestation.audit import AuditEvent
from attestation.endorsements import certificate as endorsements
from attestation.endorsements.certificate import Certificate
from attestation.errors import (
    AttestationError,
    CertificateUntrusted,
    ChallengeMismatch,
    EvidenceRejected,
    MachineNotAdmitted,
    MachineRejected,
    MachineUnknown,
    MalformedEvidence,
    SignatureInvalid,
)
from attestation.machines import Machine, Status
from attestation.store import Challenge, Issuance, Tx
from attestation.wire import b64decode, b64encode, pem_block
from attestation_service.border import limits
from attestation_service.context.request import From, Origin
from attestation_service.entitlements import certificates
from attestation_service.resources import Res
from attestation_service.verifier import challenges

log = structlog.get_logger("attestation_service.enrollment")

MAX_CERTIFICATE_BYTES: Final = 8192

SIGNING: Final = frozenset({"active", "retiring"})
"""States of a CA key under which certificates may still be presented."""

REFUSALS: Final = (
    MalformedEvidence,
    EvidenceRejected,
    CertificateUntrusted,
    MachineRejected,
    MachineNotAdmitted,
)
"""What is refused after the challenge is known: it is spent all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCertificate:
    """A presented certificate after its judgement: `refusal` is set where it proves nothing, or is good no more."""

    machine: Machine
    challenge: Challenge
    row: Issuance
    refusal: AttestationError | None = None


async def enroll(request: EnrollRequest, *, res: Res, origin: From) -> EnrollResponse:
    """Present a certificate, with a challenge signed by its key.

    Says how the machine stands, and changes nothing.

    Raises:
        CANotConfigured: There are no certificates of ours.
        MalformedEvidence: It cannot be parsed.
        CertificateUntrusted: Not ours, not of this machine's EK, not good now.
        MachineUnknown, ChallengeUnknown, ChallengeUsed, ChallengeExpired: There is nothing to judge.
        EvidenceRejected: Not signed by its key, or for another challenge; the challenge is spent.
        MachineRejected, MachineNotAdmitted: The machine is not attested; the challenge is spent.
        RateLimited: Too often.
    """
    certificates.authority_of(res)
    at = res.clock.now()
    counted = limits.of_client(res.settings, origin.address)
    async with limits.CountRefusals(
        res.store, counted, at, lambda error: limits.denial("enroll", error, origin)
    ):
        judged = await res.store.read(lambda tx: _judge(tx, request, counted, at))

    def conclude(tx: Tx) -> AttestationError | None:
        limits.take(tx, counted, at)
        # Single use: the second of two racers fails here, and nothing of its unit remains.
        tx.challenges.redeem(judged.challenge.challenge_id, "enroll", judged.machine.machine_id, at)
        # Judged again on what is true now: a lock or a revocation may have come between.
        refusal = judged.refusal or _refused_now(tx, judged.machine, judged.row, at)
        if refusal is not None:
            limits.audit_denied(tx, _denied(judged, refusal, origin), at)
        return refusal

    async with limits.CountRefusals(res.store, counted, at):
        refusal = await res.store.write(conclude)
    fields = {"machine_id": judged.machine.machine_id, "serial": judged.row.serial}
    if refusal is not None:
        log.warning("enroll.refused", **fields, client=origin.address, code=refusal.code, reason=str(refusal))
        raise refusal
    log.info("enroll.proved", **fields, client=origin.address)
    return EnrollResponse(
        machine_id=judged.machine.machine_id,
        status=judged.machine.status,
        hostname=judged.machine.hostname,
        role=judged.machine.role,
        message="the certificate is good and its key is here",
        serial=judged.row.serial,
        not_after=judged.row.not_after,
    )


def _judge(tx: Tx, request: EnrollRequest, counted: limits.Limits, at: datetime) -> JudgedCertificate:
    limits.check(tx, counted, at)
    # 1. One certificate, and exactly the bytes that we signed for a machine. Whatever another CA wrote, or somebody
    #    changed, ends here.
    row, certificate = _ours(tx, parse_certificate(request.cert_pem))
    # 2. The machine it was issued to. Deleted machines are unknown, whatever certificate survives them.
    machine = tx.machines.require(row.machine_id or "")
    # 3. A challenge of its own, unspent. Without one, whoever saw an enrolment could repeat it.
    challenge = challenges.open_challenge(tx, request.nonce_id, machine.machine_id, at, "enroll")
    try:
        _verify(certificate, request, challenge, machine)
        refusal = _refused_now(tx, machine, row, at)
    except REFUSALS as e:
        refusal = e
    return JudgedCertificate(machine=machine, challenge=challenge, row=row, refusal=refusal)


def parse_certificate(pem: str) -> Certificate:
    """Read exactly one certificate in PEM, with our own reader: strangers send what they like.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    der = pem_block(pem.encode("ascii", "replace"), "cert_pem", "CERTIFICATE")
    if len(der) > MAX_CERTIFICATE_BYTES:
        raise MalformedEvidence(f"cert_pem: longer than {MAX_CERTIFICATE_BYTES} bytes")
    certificate = endorsements.parse_certificate(der)
    if certificate.padding_bytes:
        raise MalformedEvidence("cert_pem: bytes behind the certificate")
    return certificate


def _ours(tx: Tx, sent: Certificate) -> tuple[Issuance, x509.Certificate]:
    """Return the row of a certificate that we issued to a node, and the certificate.

    Raises:
        CertificateUntrusted: It is none.
    """
    row = tx.issuances.get(f"{sent.serial:040x}")
    if row is None or row.certificate is None or not hmac.compare_digest(row.certificate, sent.der):
        raise CertificateUntrusted("the certificate is not one of ours")
    # The log is a table, and its row could have been written by somebody else: the signature could not.
    issuer = tx.issuers.get(row.issuer_id)
    if issuer is None or issuer.certificate is None or issuer.state not in SIGNING:
        raise CertificateUntrusted("the CA that signed the certificate signs no more")
    if issuer.purpose != "machine" or row.profile != "node-client":
        raise CertificateUntrusted(f"a certificate of profile {row.profile} enrols no machine")
    certificate = x509.load_der_x509_certificate(row.certificate)
    try:
        certificate.verify_directly_issued_by(x509.load_der_x509_certificate(issuer.certificate))
    except (ValueError, TypeError, InvalidSignature) as e:
        raise CertificateUntrusted("the certificate is not signed by our CA") from e
    return row, certificate


def _verify(
    certificate: x509.Certificate,
    request: EnrollRequest,
    challenge: Challenge,
    machine: Machine,
) -> None:
    # 4. The text that is signed is that of our challenge. Otherwise the caller chooses what was signed.
    assert challenge.nonce is not None
    expected = b64encode(challenge.nonce).encode("ascii")
    if not hmac.compare_digest(request.nonce.encode("ascii"), expected):
        raise ChallengeMismatch("the nonce is not that of the challenge")
    # 5. Signed by the certificate's key. The certificate alone is public.
    check_signature(
        certificate, b64decode(request.nonce_signature, "nonce_signature", max_bytes=1024), expected
    )
    # 6. The EK it names is that of the machine, as we know it now; one without it is refused (R15).
    if ek_fingerprints(certificate) != [machine.fingerprint]:
        raise CertificateUntrusted("the certificate does not name the EK of this machine")


def holder(tx: Tx, der: bytes, at: datetime) -> tuple[Machine, Issuance]:
    """Return whose client certificate *der* is, and its row; whoever sent it proved to hold the key.

    Raises:
        MalformedEvidence: It cannot be parsed.
        CertificateUntrusted: Not ours, not of this machine's EK, not good now, or no TPM certified its key.
        MachineUnknown, MachineRejected, MachineNotAdmitted: The machine is not attested.
    """
    if len(der) > MAX_CERTIFICATE_BYTES:
        raise MalformedEvidence(f"client certificate: longer than {MAX_CERTIFICATE_BYTES} bytes")
    row, certificate = _ours(tx, endorsements.parse_certificate(der))
    machine = tx.machines.require(row.machine_id or "")
    if row.key_tier is None:
        raise CertificateUntrusted("no TPM certified the key of this certificate")
    if [machine.fingerprint] != ek_fingerprints(certificate):
        raise CertificateUntrusted("the certificate does not name the EK of this machine")
    if (refusal := _refused_now(tx, machine, row, at)) is not None:
        raise refusal
    return machine, row


def _refused_now(tx: Tx, judged: Machine, presented: Issuance, at: datetime) -> AttestationError | None:
    """Return why machine or certificate are not good at *at*, or None. Told only to who holds the key."""
    machine, row = tx.machines.by_id(judged.machine_id), tx.issuances.get(presented.serial)
    # 7. Attested still. No certificate leads out of any other status.
    if machine is None or row is None:
        return MachineUnknown("no such machine")
    if machine.status is Status.REJECTED:
        return MachineRejected("an operator rejected this machine")
    if machine.status is not Status.ATTESTED:
        return MachineNotAdmitted(f"the machine is {machine.status}")
    # 8. Neither held nor revoked nor over, by our own log and not by a list that may be old.
    if row.state != "issued":
        return CertificateUntrusted(f"the certificate is {row.state}")
    if not row.not_before <= at < row.not_after:
        return CertificateUntrusted("the certificate is not valid now")
    return None


def check_signature(certificate: x509.Certificate, signature: bytes, text: bytes) -> None:
    """Check that the certificate's key signed *text*: ECDSA with SHA-384, or RSA PKCS#1 v1.5 with SHA-256.

    Raises:
        SignatureInvalid: It did not, or it is a key of another kind.
    """
    key = certificate.public_key()
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, text, ec.ECDSA(hashes.SHA384()))
            return
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, text, padding.PKCS1v15(), hashes.SHA256())
            return
    except InvalidSignature as e:
        raise SignatureInvalid("the nonce was not signed by the certificate's key") from e
    raise SignatureInvalid("enrolment takes keys of ECDSA and RSA only")


def ek_fingerprints(certificate: x509.Certificate) -> list[str]:
    """Return the EK fingerprints that the certificate's SAN names."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    return [uri.removeprefix(certificates.EK_URI) for uri in uris if uri.startswith(certificates.EK_URI)]


def _denied(judged: JudgedCertificate, refusal: AttestationError, origin: Origin) -> AuditEvent:
    return AuditEvent(
        operator_cn="unknown",
        action="denied",
        machine_id=judged.machine.machine_id,
        detail=f"enroll: {refusal.code}, certificate {judged.row.serial}",
        source_ip=origin.address,
    )
