"""Values of secrets as they are kept (AES-256-GCM). Pure.

    blob = version (1 byte, 0x01) ‖ key id (8) ‖ nonce (12) ‖ ciphertext ‖ tag (16)

Each version of a secret has a data key of its own, which is kept wrapped under the key-encryption key. The additional
data of both name the secret, its owner, its name and the version: a row that is moved to another opens nothing.
"""

# Algorithms for: kept-secret
from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from attestation.errors import UnwrapFailed
from attestation.extension import canonical_json
from attestation.keys import KEK

VERSION: Final = b"\x01"
KEY_ID_BYTES: Final = 8
KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
MAX_VALUE_BYTES: Final = 64 << 10
_HEAD_BYTES: Final = len(VERSION) + KEY_ID_BYTES
_CONTEXT: Final = "itl-secret-vault/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Whose value it is: what its encryption is bound to.

    Args:
        secret_id: UUID.
        owner: The machine's UUID; empty for a shared secret.
        name: Of the secret.
        version: 1, 2, …
    """

    secret_id: str
    owner: str
    name: str
    version: int

    def additional_data(self) -> bytes:
        """Return it as bytes, canonical JSON: nothing runs into another."""
        return canonical_json({"context": _CONTEXT, **asdict(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A value as it is kept.

    Args:
        key_id: Name of its data key, 8 bytes; it names the version as well.
        kek_id: Name of the key-encryption key.
        wrapped: The data key under it.
        blob: The value under the data key.
    """

    key_id: bytes
    kek_id: str
    wrapped: bytes
    blob: bytes


def seal(value: bytes, place: Place, kek: KEK) -> Kept:
    """Return *value* under a fresh data key, for *place* alone. It may ask a device: call it from a thread.

    Raises:
        SignerUnavailable: The device of the KEK does not answer.
    """
    key_id, key = secrets.token_bytes(KEY_ID_BYTES), secrets.token_bytes(KEY_BYTES)
    nonce, bound_to = secrets.token_bytes(NONCE_BYTES), place.additional_data()
    return Kept(
        key_id=key_id,
        kek_id=kek.key_id,
        wrapped=kek.wrap(key, key_id + bound_to),
        blob=VERSION + key_id + nonce + AESGCM(key).encrypt(nonce, value, bound_to),
    )


def unseal(kept: Kept, place: Place, kek: KEK) -> bytes:
    """Return the value that was sealed for *place*. It may ask a device: call it from a thread.

    Raises:
        UnwrapFailed: It was sealed for another place, under another key, or is changed.
        SignerUnavailable: The device of the KEK does not answer.
    """
    bound_to = place.additional_data()
    key = kek.unwrap(kept.wrapped, kept.key_id + bound_to)
    head, nonce = kept.blob[:_HEAD_BYTES], kept.blob[_HEAD_BYTES : _HEAD_BYTES + NONCE_BYTES]
    if head != VERSION + kept.key_id:
        raise UnwrapFailed("not a value under this data key")
    try:
        return AESGCM(key).decrypt(nonce, kept.blob[_HEAD_BYTES + NONCE_BYTES :], bound_to)
    except (InvalidTag, ValueError):  # also: shorter than a nonce
        raise UnwrapFailed("not a value that was sealed for this secret") from None


def rewrapped(kept: Kept, place: Place, old: KEK, new: KEK) -> bytes:
    """Return the data key of *kept* under *new*; the value itself is not touched. Call it from a thread.

    Raises:
        UnwrapFailed: It does not lie under *old*, for *place*.
        SignerUnavailable: A device does not answer.
    """
    bound_to = kept.key_id + place.additional_data()
    return new.wrap(old.unwrap(kept.wrapped, bound_to), bound_to)
