"""What a certificate that the service issued must be before it is offered to anybody."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.x509 import ocsp

from attestation_agent.exits import AnswerRefused
from attestation_agent.state import KnownAs

CLOCK_SKEW: Final = timedelta(minutes=5)


def check(
    pem: bytes, chain: bytes, *, spki: bytes, known: KnownAs, trusted: list[x509.Certificate], at: datetime
) -> x509.Certificate:
    """Return the certificate in *pem*, if it is ours, from a CA that we trust, and valid then.

    Raises:
        AnswerRefused: It is not.
    """
    (certificate,) = certificates(pem, exactly=1)
    # 1. For our key. With any other, whoever holds that one would speak for this machine.
    if _spki(certificate) != spki:
        raise AnswerRefused("the certificate is for another key")
    # 2. From a CA of the bundle that the service signed. The chain holds that CA's key as others certify it, and who
    #    certified those; without a parent it is empty but around a rotation.
    below = [certificate]
    for issuer in certificates(chain) if chain else ():
        if not any(issued_by(each, issuer) for each in below):
            raise AnswerRefused(
                "the chain holds something else than who issued the certificate, and who issued that"
            )
        below.append(issuer)
    if not any(issued_by(certificate, ca) for ca in trusted):
        raise AnswerRefused("the certificate is from none of the CAs that the service trusts")
    # 3. About this machine.
    if f"urn:itl:ek:{known.ek_fingerprint}" not in _uris(certificate):
        raise AnswerRefused("the certificate names another TPM")
    # 4. Now. A clock that is wrong would take it away from every program that looks.
    if not certificate.not_valid_before_utc - CLOCK_SKEW <= at < certificate.not_valid_after_utc:
        raise AnswerRefused("the certificate is not valid now; is the clock of this node right?")
    return certificate


def certificates(pem: bytes, *, exactly: int | None = None) -> list[x509.Certificate]:
    """Return the certificates in *pem*.

    Raises:
        AnswerRefused: There is none, or something else.
    """
    try:
        found = x509.load_pem_x509_certificates(pem)
    except ValueError as e:
        raise AnswerRefused("the service sent certificates that cannot be read") from e
    if exactly is not None and len(found) != exactly:
        raise AnswerRefused(f"the service sent {len(found)} certificates where {exactly} was expected")
    return found


def issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """True where the key of *issuer* signed *certificate*."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def ended_for_good(answer: ocsp.OCSPResponse, serial: int) -> bool:
    """True where the certificate *serial* is revoked; a hold may end."""
    if answer.response_status is not ocsp.OCSPResponseStatus.SUCCESSFUL or answer.serial_number != serial:
        return False
    held = answer.revocation_reason is x509.ReasonFlags.certificate_hold
    return answer.certificate_status is ocsp.OCSPCertStatus.REVOKED and not held


def _spki(certificate: x509.Certificate) -> bytes:
    return certificate.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _uris(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, ValueError):
        return []
    return names.value.get_values_for_type(x509.UniformResourceIdentifier)
