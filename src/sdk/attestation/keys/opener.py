"""Data keys under the RSA key of a device: a fresh AES key for each, which only the device opens again."""

# Algorithms for: kept-secret, wrapped-key
from __future__ import annotations

import secrets
from collections.abc import Callable
from hashlib import sha256
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.padding import OAEP
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.errors import UnwrapFailed

CEK_BYTES: Final = 32
MAX_PLAINTEXT_BYTES: Final = 64
"""A KEK wraps keys: what is longer is encrypted under one of them."""
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
KEY_ID_DIGITS: Final = 32
REFUSED: Final = "what was wrapped is damaged, or was wrapped under another key or for another purpose"


def seal(cipher: AESGCM, plaintext: bytes, aad: bytes) -> bytes:
    """Return nonce (12 bytes, fresh) ‖ ciphertext ‖ tag (16 bytes) of *plaintext*, 1 to 64 bytes."""
    if not 0 < len(plaintext) <= MAX_PLAINTEXT_BYTES:
        raise ValueError(f"a KEK wraps 1 to {MAX_PLAINTEXT_BYTES} bytes, not {len(plaintext)}")
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + cipher.encrypt(nonce, plaintext, aad)


def unseal(cipher: AESGCM, sealed: bytes, aad: bytes) -> bytes:
    """Return what `seal` made *sealed* of, with the same *aad*.

    Raises:
        UnwrapFailed: The only way to fail.
    """
    if not _is_sealed(sealed):
        raise UnwrapFailed(REFUSED)
    try:
        return cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], aad)
    except InvalidTag:
        raise UnwrapFailed(REFUSED) from None


def _is_sealed(data: bytes) -> bool:
    """Return True where *data* is as long as what `seal` makes."""
    return 0 < len(data) - _NONCE_BYTES - _TAG_BYTES <= MAX_PLAINTEXT_BYTES


class Opener:
    """A KEK whose private half is in a device; see `attestation.keys.kek.KEK`.

    `wrap` needs the public half alone. Its result: RSA-OAEP of a fresh AES-256 key, as long as the modulus, ‖ what
    `seal` makes of the plaintext under that key.

    Args:
        public: The public half.
        padding: OAEP as the device has it.
        decrypt: Has the device open what OAEP made; blocks. Raises UnwrapFailed, or SignerUnavailable.
        close: Lets go of the device; called once.
    """

    def __init__(
        self,
        public: RSAPublicKey,
        padding: OAEP,
        decrypt: Callable[[bytes], bytes],
        close: Callable[[], None],
    ) -> None:
        self.public, self._padding, self._decrypt = public, padding, decrypt
        self._close: Callable[[], None] | None = close

    def close(self) -> None:
        """Let go of the device; may be called twice."""
        close, self._close = self._close, None
        if close is not None:
            close()

    def __repr__(self) -> str:
        return f"<Opener {self.key_id}>"

    @property
    def key_id(self) -> str:
        """The first 32 hex digits of the SHA-256 of the SubjectPublicKeyInfo."""
        spki = self.public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return sha256(spki).hexdigest()[:KEY_ID_DIGITS]

    def wrap(self, plaintext: bytes, aad: bytes) -> bytes:
        """Encrypt *plaintext*; it opens with the same *aad* alone."""
        key = secrets.token_bytes(CEK_BYTES)
        return self.public.encrypt(key, self._padding) + seal(AESGCM(key), plaintext, aad)

    def unwrap(self, wrapped: bytes, aad: bytes) -> bytes:
        """Decrypt what `wrap` made. Blocks.

        Raises:
            UnwrapFailed: It did not make this, or not with *aad*.
            SignerUnavailable: The device does not answer now.
        """
        modulus_bytes = self.public.key_size // 8
        sealed = wrapped[modulus_bytes:]
        if not _is_sealed(sealed):
            raise UnwrapFailed(REFUSED)  # the device is not asked for it
        key = self._decrypt(wrapped[:modulus_bytes])
        if len(key) != CEK_BYTES:
            raise UnwrapFailed(REFUSED)
        return unseal(AESGCM(key), sealed, aad)
