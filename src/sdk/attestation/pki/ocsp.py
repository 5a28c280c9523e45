"""The Online Certificate Status Protocol: requests read, answers written (RFC 6960, RFC 9654).

The library's parser takes one certificate per request and its builder gives one per answer, and neither keeps a
CertID as it came, though clients compare it byte for byte: BouncyCastle asks by SHA-256 without parameters, and finds
no answer beside the NULL that the builder writes. So both are written here, over our own DER.

An answer is about certificates of one issuer, because the delegated certificate in it speaks for one (§4.2.2.2).
"""

# Algorithms for: key-identifier
from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Final

from attestation.endorsements import der
from attestation.errors import MalformedEvidence, RequestInvalid
from attestation.pki.content import SERIAL_BYTES, SigningKey
from attestation.pki.crl import Reason, generalized_time
from attestation.pki.issuer import IssuerIdentity, algorithm_of, bit_string, identity_of, sign

REQUEST_MEDIA_TYPE: Final = "application/ocsp-request"
RESPONSE_MEDIA_TYPE: Final = "application/ocsp-response"
MAX_REQUEST_BYTES: Final = 8_192
MAX_REQUESTS: Final = 16
MIN_NONCE_BYTES: Final = 1
MAX_NONCE_BYTES: Final = 128
"""Of RFC 9654 §2.1."""

_MAX_EXTENSIONS: Final = 16
_HASHES: Final = {"1.3.14.3.2.26": "sha1", "2.16.840.1.101.3.4.2.1": "sha256"}
"""By which a CertID may name its issuer; here SHA-1 is a name, no proof."""

_NONCE = "1.3.6.1.5.5.7.48.1.2"
_NONCE_OID = bytes.fromhex("06092b0601050507300102")
_BASIC_OID = bytes.fromhex("06092b0601050507300101")
_ACCEPTABLE_RESPONSES = "1.3.6.1.5.5.7.48.1.4"
_SERVICE_LOCATOR = "1.3.6.1.5.5.7.48.1.7"
_UNDERSTOOD: Final = frozenset({_NONCE, _ACCEPTABLE_RESPONSES, _SERVICE_LOCATOR})
"""Extensions that may be critical: we give the basic answer, and speak for ourselves only."""


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
        hash_name: `sha1`, `sha256`, or empty for another algorithm, by which nobody is known here.
        name_hash: Hash of the issuer's Name.
        key_hash: Hash of the issuer's key bits.
        serial: Serial number; anything at all, also negative.
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
        cert_ids: 1 to 16, in the order of the answers.
        nonce: 1 to 128 bytes that the answer repeats, or None.
    """

    cert_ids: tuple[CertID, ...]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleResponse:
    """What is known of one certificate."""

    cert_id: CertID
    status: CertStatus


def parse_ocsp_request(data: bytes) -> OCSPRequest:
    """Read one OCSPRequest, DER.

    Raises:
        MalformedEvidence: The only way to fail: longer than 8 KiB, not of this form, more than 16 certificates, a
            nonce of no or too many bytes, a critical extension that nobody knows.
    """
    if len(data) > MAX_REQUEST_BYTES:
        raise MalformedEvidence(f"OCSP request of {len(data)} bytes, at most {MAX_REQUEST_BYTES} allowed")
    # OCSPRequest ::= SEQUENCE { tbsRequest, [0] optionalSignature OPTIONAL }
    outer = der.only(data, der.SEQUENCE, "OCSP request")
    tbs, *signature = _members(data, outer, "OCSP request")
    if [part.tag for part in signature] not in ([], [0xA0]):
        raise MalformedEvidence("OCSP request: something else behind what is asked")
    # TBSRequest ::= SEQUENCE { [0] version DEFAULT v1, [1] requestorName OPTIONAL, requestList,
    #                           [2] requestExtensions OPTIONAL }
    parts = _members(data, tbs, "OCSP request: what is asked")
    if parts[0].tag == 0xA0:
        version = der.expect(data, parts[0].start, parts[0].stop, der.INTEGER, "OCSP request: version")
        if version.stop != parts[0].stop or der.small_integer(data, version) != 0:
            raise MalformedEvidence("OCSP request: a version that does not exist")
        parts = parts[1:]
    if parts and parts[0].tag == 0xA1:
        parts = parts[1:]
    if [part.tag for part in parts] not in ([der.SEQUENCE], [der.SEQUENCE, 0xA2]):
        raise MalformedEvidence("OCSP request: not a list of certificates and extensions")
    cert_ids: list[CertID] = []
    for request in der.elements(data, parts[0].start, parts[0].stop):
        if len(cert_ids) == MAX_REQUESTS:
            raise MalformedEvidence(f"OCSP request: more than {MAX_REQUESTS} certificates")
        cert_ids.append(_read_request(data, request))
    if not cert_ids:
        raise MalformedEvidence("OCSP request: no certificate")
    return OCSPRequest(cert_ids=tuple(cert_ids), nonce=_read_extensions(data, parts[1:]))


def _members(data: bytes, outer: der.Element, what: str) -> list[der.Element]:
    if outer.tag != der.SEQUENCE:
        raise MalformedEvidence(f"{what}: tag 0x{outer.tag:02x}, a SEQUENCE expected")
    found = list(der.elements(data, outer.start, outer.stop))
    if not found:
        raise MalformedEvidence(f"{what}: empty")
    return found


def _read_request(data: bytes, request: der.Element) -> CertID:
    """Read Request ::= SEQUENCE { reqCert CertID, [0] singleRequestExtensions OPTIONAL }."""
    cert_id, *extensions = _members(data, request, "OCSP request: one certificate")
    if [part.tag for part in extensions] not in ([], [0xA0]):
        raise MalformedEvidence("OCSP request: something else behind a certificate")
    _read_extensions(data, extensions)
    # CertID ::= SEQUENCE { hashAlgorithm, issuerNameHash OCTET STRING, issuerKeyHash OCTET STRING, serialNumber }
    parts = _members(data, cert_id, "CertID")
    if [part.tag for part in parts] != [der.SEQUENCE, der.OCTET_STRING, der.OCTET_STRING, der.INTEGER]:
        raise MalformedEvidence("CertID: not of four parts")
    algorithm, name, key, serial = parts
    if serial.stop - serial.start > SERIAL_BYTES + 1:
        raise MalformedEvidence("CertID: the serial number is too long")
    return CertID(
        der=data[cert_id.at : cert_id.stop],
        hash_name=_HASHES.get(der.oid(data, _members(data, algorithm, "CertID: algorithm")[0]), ""),
        name_hash=data[name.start : name.stop],
        key_hash=data[key.start : key.stop],
        serial=der.integer(data, serial),
    )


def _read_extensions(data: bytes, part: Sequence[der.Element]) -> bytes | None:
    """Read `[n] EXPLICIT Extensions`, if there is one, and return the nonce in it.

    Extension ::= SEQUENCE { extnID, critical BOOLEAN DEFAULT FALSE, extnValue OCTET STRING } (RFC 5280 §4.1)
    """
    nonce = None
    seen: set[str] = set()
    for outer in part:
        listed = der.expect(data, outer.start, outer.stop, der.SEQUENCE, "OCSP request: extensions")
        if listed.stop != outer.stop:
            raise MalformedEvidence("OCSP request: bytes behind the extensions")
        for extension in der.elements(data, listed.start, listed.stop):
            members = _members(data, extension, "OCSP request: an extension")
            kind = der.oid(data, members[0])
            tags = [member.tag for member in members[1:]]
            if tags not in ([der.OCTET_STRING], [der.BOOLEAN, der.OCTET_STRING]) or kind in seen:
                raise MalformedEvidence("OCSP request: an extension cannot be read")
            if len(seen) == _MAX_EXTENSIONS:
                raise MalformedEvidence("OCSP request: too many extensions")
            seen.add(kind)
            critical = len(tags) == 2 and any(data[members[1].start : members[1].stop])
            if critical and kind not in _UNDERSTOOD:
                raise MalformedEvidence(f"OCSP request: unknown critical extension {kind}")
            if kind == _NONCE:
                nonce = _read_nonce(data[members[-1].start : members[-1].stop])
    return nonce


def _read_nonce(value: bytes) -> bytes:
    """Read Nonce ::= OCTET STRING(SIZE(1..128)); what is longer or empty must be refused (RFC 9654 §2.1)."""
    found = der.only(value, der.OCTET_STRING, "OCSP nonce")
    nonce = value[found.start : found.stop]
    if not MIN_NONCE_BYTES <= len(nonce) <= MAX_NONCE_BYTES:
        raise MalformedEvidence(
            f"OCSP nonce of {len(nonce)} bytes, {MIN_NONCE_BYTES} to {MAX_NONCE_BYTES} allowed"
        )
    return nonce


def issuer_hashes(issuer: IssuerIdentity) -> dict[str, tuple[bytes, bytes]]:
    """Return by hash name what a CertID says of *issuer*: the hashes of its Name and of its key bits."""
    return {
        name: (
            hashlib.new(name, issuer.subject, usedforsecurity=False).digest(),
            hashlib.new(name, issuer.key_bits, usedforsecurity=False).digest(),
        )
        for name in _HASHES.values()
    }


def build_error(status: ResponseStatus) -> bytes:
    """Return the OCSPResponse that says why there is no answer: 5 bytes of DER, unsigned."""
    return der.write(der.SEQUENCE, der.write(der.ENUMERATED, bytes((status,))))


def build_ocsp_response(
    responses: Sequence[SingleResponse],
    *,
    responder: bytes,
    key: SigningKey,
    produced_at: datetime,
    this_update: datetime,
    next_update: datetime,
    nonce: bytes | None = None,
) -> bytes:
    """Return a signed OCSPResponse with one basic answer, DER.

    It may ask a token or a TPM to sign: never on the event loop.

    Args:
        responses: At least one, in the order of the request; all of one issuer.
        responder: DER of the delegated certificate of *key*; it travels with the answer.
        key: The delegated key.
        produced_at: When it is signed, UTC.
        this_update: When what it says was known to be right, UTC.
        next_update: Until when it may be used, UTC.
        nonce: What the request brought, repeated; None where it brought none.

    Raises:
        RequestInvalid: No response at all, or an answer that ends before it begins.
        KeyUnsupported: The key is none that signs answers.
        MalformedEvidence: *responder* is no certificate.
    """
    if not responses:
        raise RequestInvalid("an answer must say something")
    if next_update <= this_update:
        raise RequestInvalid("an answer must end after it begins")
    algorithm = algorithm_of(key)
    # KeyHash ::= OCTET STRING -- SHA-1 of the responder's key bits
    key_hash = hashlib.sha1(identity_of(responder).key_bits, usedforsecurity=False).digest()
    valid = generalized_time(this_update) + der.write(0xA0, generalized_time(next_update))
    # ResponseData ::= SEQUENCE { [0] version DEFAULT v1, responderID, producedAt, responses,
    #                             [1] responseExtensions OPTIONAL }
    tbs = der.write(
        der.SEQUENCE,
        der.write(0xA2, der.write(der.OCTET_STRING, key_hash))
        + generalized_time(produced_at)
        + der.write(der.SEQUENCE, b"".join(_single(response, valid) for response in responses))
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


def _single(response: SingleResponse, valid: bytes) -> bytes:
    """Write SingleResponse ::= SEQUENCE { certID, certStatus, thisUpdate, [0] nextUpdate OPTIONAL, ... }."""
    return der.write(der.SEQUENCE, response.cert_id.der + _status(response.status) + valid)


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
