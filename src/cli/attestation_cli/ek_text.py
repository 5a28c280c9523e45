"""An EK as vendors write it in a table, a certificate, a public key or a digest, and the fingerprint that it has."""

# Algorithms for: tpm-ek, digest
from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import Final

from attestation.errors import MalformedEvidence, RequestInvalid

MAX_TEXT: Final = 16_384
_DIGEST: Final = re.compile(r"(?:sha-?(?:256|384):)?([0-9a-f]{96}|[0-9a-f]{64})")
_SEPARATORS: Final = re.compile(r"[\s:]+")
_PEM: Final = re.compile(r"-----BEGIN ([A-Z ]+)-----(.*?)-----END \1-----", re.DOTALL)


def fingerprint_of(text: str) -> str:
    """Return the fingerprint of an EK: SHA-384 of its SubjectPublicKeyInfo in the one form, 96 lower-case hex.

    Args:
        text: That fingerprint; or a certificate, a SubjectPublicKeyInfo or a TPM2B_PUBLIC, as PEM or base64. Line ends
            may be written as backslash and n, as in cells of spreadsheets.

    Raises:
        RequestInvalid: None of these. Also a SHA-256, from which nobody can compute a SHA-384.
    """
    if len(text) > MAX_TEXT:
        raise RequestInvalid("the EK is longer than any certificate of one")
    digest = digest_in(text)
    if digest is not None and len(digest) == 96:
        return digest
    if digest is not None:
        raise RequestInvalid(
            "the EK is a SHA-256: no other digest can be computed from it. Ask for the certificate or the public key"
        )
    return hashlib.sha384(spki_of(text)).hexdigest()


def demand_sha256(text: str, ek: str) -> None:
    """Check the SHA-256 that a vendor gives beside an EK: of its certificate, or of its public key.

    Raises:
        RequestInvalid: It is no SHA-256, or one of something else; or the EK is a digest, with which nothing can be
            compared.
    """
    digest = digest_in(text)
    if digest is None or len(digest) != 64:
        raise RequestInvalid("ek_sha256 is no SHA-256")
    if digest_in(ek) is not None:
        raise RequestInvalid("ek_sha256 cannot be compared with a digest: leave the column out")
    der = _decoded(ek)
    if not any(hmac.compare_digest(hashlib.sha256(each).hexdigest(), digest) for each in (der, spki_of(ek))):
        raise RequestInvalid("ek_sha256 is neither that of the certificate nor that of the public key")


def digest_in(text: str) -> str | None:
    """Return a SHA-256 or SHA-384 in lower-case hex, or None where *text* is none."""
    found = _DIGEST.fullmatch(
        _SEPARATORS.sub("", text.strip().lower().replace("sha256:", "").replace("sha384:", ""))
    )
    return found[1] if found else None


def spki_of(text: str) -> bytes:
    """Return the canonical SubjectPublicKeyInfo, DER, of a certificate, a public key or a TPM2B_PUBLIC.

    Raises:
        RequestInvalid: It is none of them, or of no kind of key that a TPM has.
    """
    from attestation.endorsements.certificate import parse_certificate
    from attestation.tpm.public import parse_public

    der = _decoded(text)
    try:
        if der[:1] != b"\x30":
            return parse_public(der).spki_der()
        certificate = parse_certificate(der)
        if certificate.key != "other":
            return certificate.spki
    except MalformedEvidence:
        pass
    return _bare_key(der)


def _bare_key(der: bytes) -> bytes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

    try:
        key = load_der_public_key(der)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, (rsa.RSAPublicKey, ec.EllipticCurvePublicKey)):
        raise RequestInvalid(
            "the EK is no SHA-384, no certificate and no public key of RSA or an elliptic curve, in PEM or base64"
        )
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _decoded(text: str) -> bytes:
    """Return the bytes of PEM or base64."""
    unfolded = text.replace("\\r", "").replace("\\n", "\n")
    block = _PEM.search(unfolded)
    try:
        return base64.b64decode("".join((block[2] if block else unfolded).split()), validate=True)
    except (binascii.Error, ValueError):
        raise RequestInvalid(
            "the EK is no SHA-384, no certificate and no public key of RSA or an elliptic curve, in PEM or base64"
        ) from None
