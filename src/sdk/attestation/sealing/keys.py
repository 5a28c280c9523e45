"""The public half of the key that seals, as a JWK (RFC 7517) on P-384, named by its thumbprint (RFC 7638)."""

# Algorithms for: service-key, digest
from __future__ import annotations

import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from attestation.errors import MalformedEvidence
from attestation.sealing.members import exactly
from attestation.wire import jcs

_CURVE: Final = "P-384"
_COORDINATE_BYTES: Final = 48
_MEMBERS: Final = ("crv", "kty", "x", "y")
MAX_KEYS: Final = 64
_ORDER: Final = int(
    "ffffffffffffffffffffffffffffffffffffffffffffffffc7634d81f4372ddf581a0db248b0a77aecec196accc52973", 16
)
"""Of P-384 (SEC 2 §2.5.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceKey:
    """A public key on P-384.

    Args:
        key_id: Its thumbprint, base64url of 32 bytes: computed, never read.
        jwk: The members crv, kty, x and y, and no other.
        public: The key.
    """

    key_id: str
    jwk: Mapping[str, str]
    public: ec.EllipticCurvePublicKey


def service_key(jwk: object) -> ServiceKey:
    """Read a JWK of just crv, kty, x and y.

    Raises:
        MalformedEvidence: It has other members, or is no point of P-384.
    """
    found = exactly(jwk, "the key", crv=str, kty=str, x=str, y=str)
    if (found["kty"], found["crv"]) != ("EC", _CURVE):
        raise MalformedEvidence(f"the key is not on {_CURVE}")
    try:
        public = ec.EllipticCurvePublicNumbers(
            int.from_bytes(_coordinate(found["x"])), int.from_bytes(_coordinate(found["y"])), ec.SECP384R1()
        ).public_key()
    except ValueError as e:
        raise MalformedEvidence(f"the key is no point of {_CURVE}") from e
    return ServiceKey(key_id=_b64url(hashlib.sha256(jcs(found)).digest()), jwk=found, public=public)


def service_keys(jwks: object) -> tuple[ServiceKey, ...]:
    """Return the keys on P-384 of a JWK set, as a service publishes it; others are passed over.

    Raises:
        MalformedEvidence: It is no JWK set, or one of those keys cannot be.
    """
    keys = jwks.get("keys") if isinstance(jwks, Mapping) else None
    if not isinstance(keys, list) or len(keys) > MAX_KEYS:
        raise MalformedEvidence("no JWK set: an object with a list called keys")
    return tuple(
        service_key({name: jwk.get(name) for name in _MEMBERS})
        for jwk in keys
        if isinstance(jwk, Mapping) and jwk.get("kty") == "EC" and jwk.get("crv") == _CURVE
    )


def public_members(jwk: Mapping[str, Any]) -> dict[str, Any]:
    """Return of *jwk* what makes the key, without what is said about it."""
    return {name: jwk[name] for name in _MEMBERS}


def in_one_spelling(signature: bytes) -> bytes:
    """Return the ECDSA signature *signature*, DER, with the lower of its two values of s.

    With either it verifies, and whoever holds one has the other: so of each signature one is taken.

    Raises:
        ValueError: It is no such signature.
    """
    r, s = decode_dss_signature(signature)
    return encode_dss_signature(r, min(s, _ORDER - s))


def _coordinate(text: str) -> bytes:
    data = urlsafe_b64decode(text)
    # One spelling of one number: base64 that decodes alike must not pass for the same file.
    if len(data) != _COORDINATE_BYTES or _b64url(data) != text:
        raise ValueError("not 48 bytes in base64url")
    return data


def _b64url(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
