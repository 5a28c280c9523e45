"""Keys that sign notes: raw messages under Ed25519 (RFC 8032) and ML-DSA-44 (FIPS 204, empty context).

What is signed, and in which form, is the business of `attestation.audit`.
"""

from __future__ import annotations

from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from attestation.keys.signer import KeyUnusable, read_key_file


class NoteKey(Protocol):
    """Something that signs bytes and shows its public half."""

    @property
    def public_key(self) -> bytes:
        """The raw public key: 32 bytes of Ed25519, 1312 of ML-DSA-44."""
        ...

    def sign(self, message: bytes) -> bytes:
        """Return the signature over *message*: 64 bytes of Ed25519, 2420 of ML-DSA-44."""
        ...


class Ed25519NoteKey:
    """An Ed25519 private key.

    Args:
        pem: PKCS#8 PEM, unencrypted.

    Raises:
        KeyUnusable: Not an Ed25519 private key.
    """

    def __init__(self, pem: bytes) -> None:
        key = _load(pem)
        if not isinstance(key, Ed25519PrivateKey):
            raise KeyUnusable("the note key is not a private key of Ed25519")
        self._key = key
        self.public_key = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    def sign(self, message: bytes) -> bytes:
        """Return the 64 bytes of signature over *message*."""
        return self._key.sign(message)


class MLDSA44NoteKey:
    """An ML-DSA-44 private key.

    Args:
        pem: PKCS#8 PEM, unencrypted.

    Raises:
        KeyUnusable: Not an ML-DSA-44 private key.
    """

    def __init__(self, pem: bytes) -> None:
        key = _load(pem)
        if not isinstance(key, MLDSA44PrivateKey):
            raise KeyUnusable("the note key is not a private key of ML-DSA-44")
        self._key = key
        self.public_key = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    def sign(self, message: bytes) -> bytes:
        """Return the 2420 bytes of signature over *message*; costs about a millisecond."""
        return self._key.sign(message)


def load_ed25519(uri: str, *, create: bool = False) -> Ed25519NoteKey:
    """Return the Ed25519 key that *uri* names; see `load_signer` for *create*.

    Raises:
        KeyUnusable: Unknown scheme, no file, readable by others, or no such key in it.
    """
    return Ed25519NoteKey(read_key_file(uri, make=_new_ed25519 if create else None))


def load_mldsa44(uri: str, *, create: bool = False) -> MLDSA44NoteKey:
    """Return the ML-DSA-44 key that *uri* names; see `load_signer` for *create*.

    Raises:
        KeyUnusable: Unknown scheme, no file, readable by others, or no such key in it.
    """
    return MLDSA44NoteKey(read_key_file(uri, make=_new_mldsa44 if create else None))


def _load(pem: bytes) -> object:
    try:
        return load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as e:
        raise KeyUnusable("the note key is not a PEM private key without a password") from e


def _new_ed25519() -> bytes:
    return _pem(Ed25519PrivateKey.generate())


def _new_mldsa44() -> bytes:
    return _pem(MLDSA44PrivateKey.generate())


def _pem(key: Ed25519PrivateKey | MLDSA44PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
