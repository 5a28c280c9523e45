"""The Online Certificate Status Protocol: requests read, answers written (RFC 6960, RFC 9654).

The library reads. It writes no answer for us: its builder puts a NULL behind the hash algorithm of a CertID, and
clients that asked without one, as BouncyCastle does, find no answer to their question (docs/adr/0093). So answers are
written here, and repeat the CertID as it came.
"""

# Algorithms for: key-identifier
from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.x509 import ocsp

from attestation.endorsements import der
from attestation.errors import MalformedEvidence, RequestInvalid
from attestation.pki.content import SERIAL_BYTES, SigningKey
from attestation.pki.crl import Reason, generalized_time
from attestation.pki.issuer import IssuerIdentity, algorithm_of, bit_string, identity_of, sign

REQUEST_MEDIA_TYPE: Final = "application/ocsp-request"
RESPONSE_MEDIA_TYPE: Final = "application/ocsp-response"
MAX_REQUEST_BYTES: Final = 8_192
MIN_NONCE_BYTES: Final = 1
MAX_NONCE_BYTES: Final = 128
"""Of RFC 9654 §2.1."""

_HASHES: Final = {
    "sha1": bytes.fromhex("06052b0e03021a"),
    "sha256": bytes.fromhex("0609608648016503040201"),
}
"""By which a CertID may name its issuer, with their OIDs; here SHA-1 is a name, no proof."""

_NULL: Final = bytes.fromhex("0500")
_NONCE_OID: Final = bytes.fromhex("06092b0601050507300102")
_BASIC_OID: Final = bytes.fromhex("06092b0601050507300101")
_UNDERSTOOD: Final = ("1.3.6.1.5.5.7.48.1.2", "1.3.6.1.5.5.7.48.1.4")
"""Extensions that may be critical: the nonce, and AcceptableResponses, for we give the basic answer."""


class ResponseStatus(IntEnum):
    """Why there is no answer (RFC 6960 §4.2.1); such a response is not signed."""

    MALFORMED_REQUEST = 1
    INTERNAL_ERROR = 2
    TRY_LATER = 3
    UNAUTHORIZED = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class CertID:
    """Of which certificate somebody asks.

    Args:
        der: The CertID as it came: the answer repeats it, so that a client finds its question again.
        hash_name: `sha1`, `sha256`, or that of another algorithm, by which no issuer is known here.
        name_hash: Hash of the issuer's Name.
        key_hash: Hash of the issuer's key bits.
        serial: Serial number of at most 20 bytes, also negative.
    """

    der: bytes = field(repr=False)
    hash_name: str
    name_hash: bytes
    key_hash: bytes
    serial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OCSPRequest:
    """What somebody asks. Who asks, and whether they signed it, is of no interest here.

    Args:
        cert_id: The certificate: one, as in RFC 5019 §2.1.1.
        nonce: 1 to 128 bytes that the answer repeats, or None.
    """

    cert_id: CertID
    nonce: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Good:
    """It was issued, and nobody took it back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """It was never issued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """It shall not be believed.

    Args:
        at: Since when, UTC; whole seconds count.
        reason: Why; `UNSPECIFIED` is left out, `CERTIFICATE_HOLD` may end.
    """

    at: datetime
    reason: Reason


CertStatus = Good | Unknown | Revoked


def parse_ocsp_request(data: bytes) -> OCSPRequest:
    """Read one OCSPRequest, DER.

    Raises:
        MalformedEvidence: The only way to fail: longer than 8 KiB, not of this form, not one certificate, extensions
            of a single certificate, a nonce of no or too many bytes, a critical extension that nobody knows.
    """
    if len(data) > MAX_REQUEST_BYTES:
        raise MalformedEvidence(f"OCSP request of {len(data)} bytes, at most {MAX_REQUEST_BYTES} allowed")
    try:
        read = ocsp.load_der_ocsp_request(data)
        extensions = list(read.extensions)
        cert_id = _cert_id(read, data)
    except (ValueError, NotImplementedError, UnsupportedAlgorithm, x509.DuplicateExtension) as e:
        raise MalformedEvidence("OCSP request: not of one certificate in its form") from e
    nonce = None
    for extension in extensions:
        if extension.critical and extension.oid.dotted_string not in _UNDERSTOOD:
            raise MalformedEvidence(f"OCSP request: unknown critical extension {extension.oid.dotted_string}")
        if isinstance(extension.value, x509.OCSPNonce):
            nonce = extension.value.nonce
    # What is longer or empty must be refused (RFC 9654 §2.1).
    if nonce is not None and not MIN_NONCE_BYTES <= len(nonce) <= MAX_NONCE_BYTES:
        raise MalformedEvidence(
            f"OCSP nonce of {len(nonce)} bytes, {MIN_NONCE_BYTES} to {MAX_NONCE_BYTES} allowed"
        )
    return OCSPRequest(cert_id=cert_id, nonce=nonce)


def _cert_id(read: ocsp.OCSPRequest, data: bytes) -> CertID:
    """Return of which certificate is asked, as it stands in *data*: with NULL behind the hash algorithm, or without."""
    hash_name, serial = read.hash_algorithm.name, read.serial_number
    size_bytes = (serial if serial >= 0 else ~serial).bit_length() // 8 + 1
    if size_bytes > SERIAL_BYTES + 1:
        raise MalformedEvidence("CertID: the serial number is too long")
    # CertID ::= SEQUENCE { hashAlgorithm, issuerNameHash OCTET STRING, issuerKeyHash OCTET STRING, serialNumber }
    named = der.write(der.OCTET_STRING, read.issuer_name_hash) + der.write(
        der.OCTET_STRING, read.issuer_key_hash
    )
    numbered = named + der.write(der.INTEGER, serial.to_bytes(size_bytes, "big", signed=True))
    oid = _HASHES.get(hash_name, b"")
    forms = (
        der.write(der.SEQUENCE, der.write(der.SEQUENCE, oid + parameters) + numbered)
        for parameters in (_NULL, b"")
    )
    # Request ::= SEQUENCE { reqCert CertID, [0] singleRequestExtensions OPTIONAL }: none of those is understood here.
    asked = next((form for form in forms if der.write(der.SEQUENCE, form) in data), None)
    if asked is None and oid:
        raise MalformedEvidence(
            "OCSP request: extensions of a single certificate, or a CertID in another form"
        )
    return CertID(
        der=asked or b"",
        hash_name=hash_name,
        name_hash=read.issuer_name_hash,
        key_hash=read.issuer_key_hash,
        serial=serial,
    )


def issuer_hashes(issuer: IssuerIdentity) -> dict[str, tuple[bytes, bytes]]:
    """Return by hash name what a CertID says of *issuer*: the hashes of its Name and of its key bits."""
    return {
        name: (
            hashlib.new(name, issuer.subject, usedforsecurity=False).digest(),
            hashlib.new(name, issuer.key_bits, usedforsecurity=False).digest(),
        )
        for name in _HASHES
    }


def build_error(status: ResponseStatus) -> bytes:
    """Return the OCSPResponse that says why there is no answer: 5 bytes of DER, unsigned."""
    return der.write(der.SEQUENCE, der.write(der.ENUMERATED, bytes((status,))))


def build_ocsp_response(
    cert_id: CertID,
    status: CertStatus,
    *,
    responder: bytes,
    key: SigningKey,
    produced_at: datetime,
    this_update: datetime,
    next_update: datetime,
    nonce: bytes | None = None,
) -> bytes:
    """Return a signed OCSPResponse about one certificate, DER.

    It may ask a token or a TPM to sign: never on the event loop.

    Args:
        cert_id: Of which certificate was asked.
        status: What is known of it.
        responder: DER of the delegated certificate of *key*; it travels with the answer.
        key: The delegated key.
        produced_at: When it is signed, UTC.
        this_update: When what it says was known to be right, UTC.
        next_update: Until when it may be used, UTC.
        nonce: What the request brought, repeated; None where it brought none.

    Raises:
        RequestInvalid: An answer that ends before it begins.
        KeyUnsupported: The key is none that signs answers.
        MalformedEvidence: *responder* is no certificate.
    """
    if next_update <= this_update:
        raise RequestInvalid("an answer must end after it begins")
    algorithm = algorithm_of(key)
    # KeyHash ::= OCTET STRING -- SHA-1 of the responder's key bits
    key_hash = hashlib.sha1(identity_of(responder).key_bits, usedforsecurity=False).digest()
    # SingleResponse ::= SEQUENCE { certID, certStatus, thisUpdate, [0] nextUpdate OPTIONAL, ... }
    valid = generalized_time(this_update) + der.write(0xA0, generalized_time(next_update))
    single = der.write(der.SEQUENCE, cert_id.der + _status(status) + valid)
    # ResponseData ::= SEQUENCE { [0] version DEFAULT v1, responderID, producedAt, responses,
    #                             [1] responseExtensions OPTIONAL }
    tbs = der.write(
        der.SEQUENCE,
        der.write(0xA2, der.write(der.OCTET_STRING, key_hash))
        + generalized_time(produced_at)
        + der.write(der.SEQUENCE, single)
        + (b"" if nonce is None else der.write(0xA1, der.write(der.SEQUENCE, _nonce(nonce)))),
    )
    basic = der.write(
        der.SEQUENCE,
        tbs + algorithm + bit_string(sign(key, tbs)) + der.write(0xA0, der.write(der.SEQUENCE, responder)),
    )
    # OCSPResponse ::= SEQUENCE { successful (0), [0] SEQUENCE { id-pkix-ocsp-basic, OCTET STRING } }
    body = der.write(der.SEQUENCE, _BASIC_OID + der.write(der.OCTET_STRING, basic))
    return der.write(der.SEQUENCE, der.write(der.ENUMERATED, b"\0") + der.write(0xA0, body))


def _nonce(nonce: bytes) -> bytes:
    value = der.write(der.OCTET_STRING, der.write(der.OCTET_STRING, nonce))
    return der.write(der.SEQUENCE, _NONCE_OID + value)


def _status(status: CertStatus) -> bytes:
    """Write CertStatus ::= CHOICE { good [0] NULL, revoked [1] RevokedInfo, unknown [2] NULL }, implicit tags."""
    if isinstance(status, Good):
        return der.write(0x80, b"")
    if isinstance(status, Unknown):
        return der.write(0x82, b"")
    # RevokedInfo ::= SEQUENCE { revocationTime, [0] EXPLICIT revocationReason OPTIONAL }
    reason = (
        b""
        if status.reason is Reason.UNSPECIFIED
        else der.write(0xA0, der.write(der.ENUMERATED, bytes((status.reason,))))
    )
    return der.write(0xA1, generalized_time(status.at) + reason)
