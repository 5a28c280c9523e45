"""Keys that sign notes: raw messages under Ed25519 (RFC 8032) and ML-DSA-44 (FIPS 204, empty context).

What is signed, and in which form, is the business of `attestation.audit`.
"""

# Algorithms for: audit-note
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PrivateKey
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.errors import KeyUnsupported, KeyUnusable
from attestation.keys.file import load_private_key, make_once
from attestation.keys.open import KeyOptions
from attestation.keys.signer import PLAINTEXT_ALLOWED
from attestation.keys.uri import FileRef, parse_key_uri


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

    Raises:
        KeyUnusable: Not an Ed25519 private key.
    """

    def __init__(self, key: object) -> None:
        if not isinstance(key, Ed25519PrivateKey):
            raise KeyUnusable("the note key is not a private key of Ed25519")
        self._key = key
        self.public_key = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    def sign(self, message: bytes) -> bytes:
        """Return the 64 bytes of signature over *message*."""
        return self._key.sign(message)


class MLDSA44NoteKey:
    """An ML-DSA-44 private key.

    Raises:
        KeyUnusable: Not an ML-DSA-44 private key.
    """

    def __init__(self, key: object) -> None:
        if not isinstance(key, MLDSA44PrivateKey):
            raise KeyUnusable("the note key is not a private key of ML-DSA-44")
        self._key = key
        self.public_key = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    def sign(self, message: bytes) -> bytes:
        """Return the 2420 bytes of signature over *message*; costs about a millisecond."""
        return self._key.sign(message)


def load_ed25519(
    uri: str, *, create: bool = False, options: KeyOptions = PLAINTEXT_ALLOWED
) -> Ed25519NoteKey:
    """Return the Ed25519 key that *uri* names; see `load_signer`. Only files hold such keys.

    Raises:
        KeyUnusable: Unknown scheme, no file, readable by others, or no such key in it.
    """
    return Ed25519NoteKey(_load(uri, Ed25519PrivateKey.generate if create else None, options))


def load_mldsa44(
    uri: str, *, create: bool = False, options: KeyOptions = PLAINTEXT_ALLOWED
) -> MLDSA44NoteKey:
    """Return the ML-DSA-44 key that *uri* names; see `load_signer`. Only files hold such keys.

    Raises:
        KeyUnusable: Unknown scheme, no file, readable by others, or no such key in it.
    """
    return MLDSA44NoteKey(_load(uri, MLDSA44PrivateKey.generate if create else None, options))


def _load(uri: str, make: Callable[[], PrivateKeyTypes] | None, options: KeyOptions) -> PrivateKeyTypes:
    ref = parse_key_uri(uri)
    if not isinstance(ref, FileRef):
        # No TPM has either; tokens with Ed25519 exist, but the second key beside it would not be on them.
        raise KeyUnsupported(f"a key that signs notes is in a file, not in {ref.shown.partition(':')[0]}:")
    options = replace(options, allow_unencrypted=True)
    if make is not None:
        make_once(ref, make, options)
    return load_private_key(ref, options)
