"""Quotes as Intel's Trusted Certificate Issuer made them, `tcs-kmra-v1`: read only (HSM-AND-KUBERNETES §12).

Published in intel/trusted-certificate-issuer (controllers/utils.go) and intel/crypto-api-toolkit (src/p11/trusted):

    answer         u64 LE exponent length ‖ u64 LE modulus length ‖ exponent ‖ modulus (big-endian) ‖ SGX quote
    report data    SHA-256(exponent ‖ modulus ‖ nonce) ‖ 32 zero bytes
    nonce          28 random bytes ‖ u32 Unix time in the byte order of the machine: always x86, so little-endian

What binds the key is not its SubjectPublicKeyInfo, and neither issuer nor purpose is bound: so such a quote is good for
nothing but to be understood, and its tier is `compat`.
"""

# Algorithms for: hardware-evidence
from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.errors import ChallengeMismatch, MalformedEvidence

MEDIA_TYPE = "application/vnd.itl.tcs-kmra-quote"

NONCE_BYTES: Final = 32
MAX_AGE: Final = timedelta(hours=24)
"""How old a nonce may be; it may not be of the future."""

_MAX_EXPONENT_BYTES: Final = 8
_MODULUS_BYTES: Final = (384, 512)
_LENGTHS_BYTES: Final = 16
_CONSTANT: Final = bytes(range(NONCE_BYTES))
"""The nonce that published code falls back to: 00 01 … 1f."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedAnswer:
    """A parsed answer. Nothing in it may be believed yet.

    Args:
        exponent: Of the RSA key, big-endian.
        modulus: 384 or 512 bytes, big-endian.
        quote: The SGX quote, not yet parsed.
    """

    exponent: bytes
    modulus: bytes = field(repr=False)
    quote: bytes = field(repr=False)

    @property
    def spki(self) -> bytes:
        """SubjectPublicKeyInfo of its key, DER.

        Raises:
            MalformedEvidence: No RSA key has such numbers.
        """
        numbers = rsa.RSAPublicNumbers(int.from_bytes(self.exponent), int.from_bytes(self.modulus))
        try:
            return numbers.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        except ValueError as e:
            raise MalformedEvidence("tcs-kmra-v1: no RSA key has such numbers") from e


def parse(data: bytes) -> UnverifiedAnswer:
    """Parse an answer.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    exponent_bytes, modulus_bytes = (int.from_bytes(data[at : at + 8], "little") for at in (0, 8))
    if not 1 <= exponent_bytes <= _MAX_EXPONENT_BYTES or modulus_bytes not in _MODULUS_BYTES:
        raise MalformedEvidence("tcs-kmra-v1: not the lengths of an RSA key of 3072 or 4096 bits")
    key_end = _LENGTHS_BYTES + exponent_bytes + modulus_bytes
    if len(data) <= key_end:
        raise MalformedEvidence("tcs-kmra-v1: no quote behind the key")
    modulus_at = _LENGTHS_BYTES + exponent_bytes
    return UnverifiedAnswer(
        exponent=data[_LENGTHS_BYTES:modulus_at], modulus=data[modulus_at:key_end], quote=data[key_end:]
    )


def report_data(answer: UnverifiedAnswer, nonce: bytes) -> bytes:
    """Return the 64 bytes that the quote must be over."""
    return hashlib.sha256(answer.exponent + answer.modulus + nonce).digest() + bytes(32)


def check_nonce(nonce: bytes, *, at: datetime) -> None:
    """Refuse nonces that prove no freshness.

    Args:
        nonce: As it was asked with.
        at: The instant to judge at, UTC.

    Raises:
        ChallengeMismatch: Of another length (the variant without one), the constant of published code, or of
            another time.
    """
    if len(nonce) != NONCE_BYTES:
        raise ChallengeMismatch("tcs-kmra-v1: the variant without a nonce proves nothing")
    if hmac.compare_digest(nonce, _CONSTANT):
        raise ChallengeMismatch("tcs-kmra-v1: the constant nonce of published code")
    made = datetime.fromtimestamp(int.from_bytes(nonce[28:], "little"), UTC)
    if not at - MAX_AGE <= made <= at:
        raise ChallengeMismatch(f"tcs-kmra-v1: a nonce of {made:%Y-%m-%d %H:%M}")
