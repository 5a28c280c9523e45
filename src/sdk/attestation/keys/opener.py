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
NONCE_BYTES: Final = 12
KEY_ID_DIGITS: Final = 32
REFUSED: Final = "what was wrapped is damaged, or was wrapped under another key or for another purpose"


class Opener:
    """A KEK whose private half is in a device; see `attestation.keys.kek.KEK`.

    `wrap` needs the public half alone. Its result: RSA-OAEP of a fresh AES-256 key, as long as the modulus, ‖ nonce
    (12 bytes) ‖ AES-256-GCM of the plaintext with its tag (16 bytes).

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
        key, nonce = secrets.token_bytes(CEK_BYTES), secrets.token_bytes(NONCE_BYTES)
        return self.public.encrypt(key, self._padding) + nonce + AESGCM(key).encrypt(nonce, plaintext, aad)

    def unwrap(self, wrapped: bytes, aad: bytes) -> bytes:
        """Decrypt what `wrap` made. Blocks.

        Raises:
            UnwrapFailed: It did not make this, or not with *aad*.
            SignerUnavailable: The device does not answer now.
        """
        sealed_bytes = self.public.key_size // 8
        sealed, nonce = wrapped[:sealed_bytes], wrapped[sealed_bytes : sealed_bytes + NONCE_BYTES]
        if len(wrapped) < sealed_bytes + NONCE_BYTES + 16:
            raise UnwrapFailed(REFUSED)
        key = self._decrypt(sealed)
        if len(key) != CEK_BYTES:
            raise UnwrapFailed(REFUSED)
        try:
            return AESGCM(key).decrypt(nonce, wrapped[sealed_bytes + NONCE_BYTES :], aad)
        except InvalidTag:
            raise UnwrapFailed(REFUSED) from None
