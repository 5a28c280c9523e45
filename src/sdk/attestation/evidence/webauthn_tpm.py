"""A key of a TPM in an attestation object, as ACME clients send it for `device-attest-01`.

WebAuthn Level 2, 6.5.4 and 8.3 (format `tpm`), as draft-ietf-acme-device-attest changes them:

    {"fmt": "tpm", "attStmt": {"ver": "2.0", "alg": COSE, "sig": TPMT_SIGNATURE, "certInfo": TPMS_ATTEST,
                               "pubArea": TPMT_PUBLIC, "x5c": [DER, …]}, "authData": bytes}

What is signed over, `certInfo.extraData`, is the key authorization of the challenge (RFC 8555, 8.1), hashed as *alg*
says. `authData` speaks of a browser; it is passed over, and so is what vouches for the AK: the anchor here is the AK
that the service itself activated, and a certificate in `x5c` may only repeat whose it is. That the TPM holds the key
is for `key_certification`: this module takes the object apart.
"""

# Algorithms for: tpm-ak, tpm-hash
from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from attestation.endorsements.certificate import parse_certificate
from attestation.errors import KeyCertificationRejected, MalformedEvidence
from attestation.tpm import Alg, parse_signature
from attestation.wire import cbor_tags, sized

MEDIA_TYPE = "application/vnd.itl.webauthn-tpm"

MAX_OBJECT_BYTES: Final = 12288
"""Longest object read: a statement takes two kilobytes, each certificate of a chain another one."""
MAX_CERTIFICATES: Final = 4
MAX_PART_BYTES: Final = 4096

_MEMBERS: Final = frozenset({"fmt", "attStmt"})
_STATEMENT: Final = frozenset({"ver", "alg", "sig", "certInfo", "pubArea"})

_COSE: Final[Mapping[int, tuple[int, int, str]]] = {
    -7: (Alg.ECDSA, Alg.SHA256, "sha256"),
    -35: (Alg.ECDSA, Alg.SHA384, "sha384"),
    -36: (Alg.ECDSA, Alg.SHA512, "sha512"),
    -257: (Alg.RSASSA, Alg.SHA256, "sha256"),
    -258: (Alg.RSASSA, Alg.SHA384, "sha384"),
    -259: (Alg.RSASSA, Alg.SHA512, "sha512"),
    -37: (Alg.RSAPSS, Alg.SHA256, "sha256"),
    -38: (Alg.RSAPSS, Alg.SHA384, "sha384"),
    -39: (Alg.RSAPSS, Alg.SHA512, "sha512"),
}
"""COSE algorithm -> scheme and hash of a TPM's signature, and the name of the hash (RFC 9053, 2.1; RFC 8812, 2;
RFC 8230, 2). Nothing with SHA-1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedObject:
    """An attestation object, taken apart. Nothing in it may be believed yet.

    Args:
        public: TPM2B_PUBLIC of the certified key, with its size, as `key_certification.parse` reads it.
        certify_info: TPMS_ATTEST.
        signature: TPMT_SIGNATURE over it, of the scheme and hash that *alg* names.
        hash_name: The hash of *alg*.
        ak_spki: The key of the first certificate of `x5c`, canonical SubjectPublicKeyInfo DER; None without any.
    """

    public: bytes = field(repr=False)
    certify_info: bytes = field(repr=False)
    signature: bytes = field(repr=False)
    hash_name: str
    ak_spki: bytes | None = field(repr=False)


def parse(data: bytes) -> UnverifiedObject:
    """Take an attestation object apart.

    Args:
        data: CBOR, at most 12 KiB, definite and in its shortest form, so that no member stands twice.

    Raises:
        MalformedEvidence: The only way to fail: no such object, another format, an algorithm that is none of ours or
            not that of the signature, bytes behind it.
    """
    if len(data) > MAX_OBJECT_BYTES:
        raise MalformedEvidence(f"attestation object: longer than {MAX_OBJECT_BYTES} bytes")
    found = _read(data)
    if not isinstance(found, dict) or not found.keys() >= _MEMBERS or found.keys() - _MEMBERS - {"authData"}:
        raise MalformedEvidence("attestation object: fmt and attStmt expected, and authData at most")
    if found["fmt"] != "tpm":
        raise MalformedEvidence("attestation object: another format than tpm")
    statement = found["attStmt"]
    if (
        not isinstance(statement, dict)
        or not statement.keys() >= _STATEMENT
        or statement.keys() - _STATEMENT - {"x5c"}
    ):
        raise MalformedEvidence("attStmt: ver, alg, sig, certInfo and pubArea expected, and x5c at most")
    if statement["ver"] != "2.0":
        raise MalformedEvidence("attStmt: another version than 2.0")
    alg = statement["alg"]
    if type(alg) is not int or alg not in _COSE:
        raise MalformedEvidence("attStmt: alg is no COSE algorithm that a TPM signs with here")
    scheme, hash_alg, hash_name = _COSE[alg]
    signature = _bytes(statement["sig"], "sig")
    signed = parse_signature(signature)
    # The statement says twice what signed it, and hashes by one of the two: they must agree.
    if (signed.alg, signed.hash_alg) != (scheme, hash_alg):
        raise MalformedEvidence("attStmt: sig is of another algorithm than alg")
    return UnverifiedObject(
        public=sized(_bytes(statement["pubArea"], "pubArea")),
        certify_info=_bytes(statement["certInfo"], "certInfo"),
        signature=signature,
        hash_name=hash_name,
        ak_spki=_ak_spki(statement["x5c"]) if "x5c" in statement else None,
    )


def binding(found: UnverifiedObject, key_authorization: str) -> bytes:
    """Return what `certInfo.extraData` must be: the hash of the key authorization, as *alg* says.

    Args:
        found: Result of `parse`.
        key_authorization: Token ‖ "." ‖ thumbprint of the account's key (RFC 8555, 8.1), ASCII.
    """
    return hashlib.new(found.hash_name, key_authorization.encode("ascii")).digest()


def demand_ak(found: UnverifiedObject, ak_spki: bytes) -> None:
    """Check that a certificate in the object, where there is one, is about this AK; it proves nothing.

    Args:
        found: Result of `parse`.
        ak_spki: The activated AK, canonical SubjectPublicKeyInfo DER.

    Raises:
        KeyCertificationRejected: It is about another key, so the client means another machine or AK.
    """
    if found.ak_spki is not None and found.ak_spki != ak_spki:
        raise KeyCertificationRejected("x5c is about another attestation key than the machine's")


def _read(data: bytes) -> Any:
    # In the extra `tee`, which the service has: only who reads an object needs it.
    import cbor2

    if cbor_tags(data):
        raise MalformedEvidence("attestation object: a tag, and it has none")
    try:
        value = cbor2.loads(data)
        same = cbor2.dumps(value) == data
    except Exception as error:
        raise MalformedEvidence("attestation object: no CBOR") from error
    if not same:
        raise MalformedEvidence(
            "attestation object: CBOR in another than its shortest form, or bytes behind it"
        )
    return value


def _bytes(value: object, what: str) -> bytes:
    if not isinstance(value, bytes) or len(value) > MAX_PART_BYTES:
        raise MalformedEvidence(f"attStmt: {what} is no byte string of at most {MAX_PART_BYTES} bytes")
    return value


def _ak_spki(value: object) -> bytes:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_CERTIFICATES:
        raise MalformedEvidence(f"attStmt: x5c is no list of one to {MAX_CERTIFICATES} certificates")
    first, *_ = (_bytes(each, "x5c") for each in value)
    return parse_certificate(first).spki
