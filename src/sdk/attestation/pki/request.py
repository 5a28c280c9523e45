"""Certification requests, PKCS#10 (RFC 2986).

    CertificationRequest     ::= SEQUENCE { CertificationRequestInfo, AlgorithmIdentifier, BIT STRING }
    CertificationRequestInfo ::= SEQUENCE { INTEGER 0, Name, SubjectPublicKeyInfo, [0] Attributes }

From a request the public key is used and nothing else: what its certificate says comes from the record of the machine
and from the profile (HSM-AND-KUBERNETES §7.1). Subject and attributes are passed over, but they are among the bytes
that are signed, here and in the binding of a TPM's certification.
"""

# Algorithms for: proof-of-possession
from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from attestation.endorsements import der
from attestation.errors import CSRInvalid, MalformedEvidence, SignatureInvalid
from attestation.pki.signature import PublicKey, load_spki, verify_signature
from attestation.wire import der_of

MAX_CSR_BYTES: Final = 16384
"""Longest request read, PEM or DER (§7.1)."""

_ATTRIBUTES: Final = 0xA0


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateRequest:
    """A request that was signed by the key in it. Whose key it is, is not known.

    Args:
        der: The request.
        request_info: The signed bytes: DER of CertificationRequestInfo, a slice of *der*.
        spki: SubjectPublicKeyInfo, DER, in the one form that the key has.
        spki_sha256: SHA-256 of *spki*, 64 lower-case hex.
        public_key: The key.
        algorithm: Its kind, like `ecdsa-p384`, `rsa-3072`, `ed25519`, `ml-dsa-87`.
    """

    der: bytes = field(repr=False)
    request_info: bytes = field(repr=False)
    spki: bytes = field(repr=False)
    spki_sha256: str
    public_key: PublicKey = field(repr=False)
    algorithm: str


class RequestParts(NamedTuple):
    """The parts of a request, each a slice of it. Nobody has looked yet whether the key in it signed it.

    Args:
        der: The request.
        request_info: The signed bytes: DER of CertificationRequestInfo.
        subject: Name, DER.
        spki: SubjectPublicKeyInfo, DER, as written.
        attributes: The content of the [0], without its header.
        algorithm: AlgorithmIdentifier of the signature, DER.
        signature: As in the BIT STRING.
    """

    der: bytes
    request_info: bytes
    subject: bytes
    spki: bytes
    attributes: bytes
    algorithm: bytes
    signature: bytes


def read_request(data: bytes) -> RequestParts:
    """Take a request apart.

    Args:
        data: One PEM block `CERTIFICATE REQUEST` and no text around it, or DER.

    Raises:
        MalformedEvidence: Neither, longer than 16 KiB, or bytes behind it. The only way to fail.
    """
    if len(data) > MAX_CSR_BYTES:
        raise MalformedEvidence(f"request of {len(data)} bytes, at most {MAX_CSR_BYTES} allowed")
    raw = der_of(data, "request", "CERTIFICATE REQUEST")
    outer = der.only(raw, der.SEQUENCE, "request")
    info = der.expect(raw, outer.start, outer.stop, der.SEQUENCE, "request: signed part")
    algorithm = der.expect(raw, info.stop, outer.stop, der.SEQUENCE, "request: algorithm")
    value = der.expect(raw, algorithm.stop, outer.stop, der.BIT_STRING, "request: signature")
    if value.stop != outer.stop:
        raise MalformedEvidence("request: more than three parts")
    signature = der.whole_bytes(raw, value)

    version = der.expect(raw, info.start, info.stop, der.INTEGER, "request: version")
    if raw[version.start : version.stop] != b"\0":
        raise MalformedEvidence("request: version other than 0")
    name = der.expect(raw, version.stop, info.stop, der.SEQUENCE, "request: subject")
    key = der.expect(raw, name.stop, info.stop, der.SEQUENCE, "request: key")
    attributes = der.expect(raw, key.stop, info.stop, _ATTRIBUTES, "request: attributes")
    if attributes.stop != info.stop:
        raise MalformedEvidence("request: bytes behind the attributes")
    return RequestParts(
        der=raw,
        request_info=raw[info.at : info.stop],
        subject=raw[name.at : name.stop],
        spki=raw[key.at : key.stop],
        attributes=raw[attributes.start : attributes.stop],
        algorithm=raw[algorithm.at : algorithm.stop],
        signature=signature,
    )


def parse_csr(data: bytes) -> CertificateRequest:
    """Read a request and verify that the key in it signed it.

    Args:
        data: One PEM block `CERTIFICATE REQUEST` and no text around it, or DER.

    Raises:
        MalformedEvidence: Neither, longer than 16 KiB, or bytes behind it.
        CSRInvalid: Not signed by its key, or a key that is not certified.
    """
    return verify_request(read_request(data))


def verify_request(parts: RequestParts) -> CertificateRequest:
    """Verify that the key in a request signed it.

    Raises:
        CSRInvalid: It did not, or it is a key that is not certified.
        MalformedEvidence: What names the algorithm of the signature cannot be read.
    """
    public_key, kind = load_spki(parts.spki)
    # Without this, somebody could have a certificate made that says of another's key that it is theirs.
    try:
        verify_signature(
            public_key, algorithm=parts.algorithm, signature=parts.signature, signed=parts.request_info
        )
    except SignatureInvalid as e:
        raise CSRInvalid(f"request: {e}") from e
    return CertificateRequest(
        der=parts.der,
        request_info=parts.request_info,
        spki=parts.spki,
        spki_sha256=hashlib.sha256(parts.spki).hexdigest(),
        public_key=public_key,
        algorithm=kind,
    )
