"""Keys that answer OCSP, as the database keeps them: so that a service that starts while the CA's key is away has them.

Sealed with AES-256-GCM under a secret that only the service's key gives (`attestation.keys.Signer.secret`), to the
certificate, or the request for one, and the CA key that they are for. Who has the database, or a backup of it, has
none of them; who has the service's key speaks for the service anyway.
"""

# Algorithms for: kept-key
from __future__ import annotations

import secrets
from typing import Final, cast

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
)

from attestation.pki.content import SigningKey

PURPOSE: Final = b"itl-ocsp-delegate/v1"
"""What the secret is for; another use would get another one."""

_NONCE_BYTES: Final = 12


def seal(secret: bytes, issuer_id: str, of: bytes, key: SigningKey) -> bytes:
    """Return *key* sealed: nonce, 12 bytes, then ciphertext and tag.

    Args:
        secret: 32 bytes.
        issuer_id: The CA key for which it answers.
        of: Its certificate, or the request for one, DER.
        key: PKCS#8 is what is encrypted.
    """
    nonce = secrets.token_bytes(_NONCE_BYTES)
    plain = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    return nonce + AESGCM(secret).encrypt(nonce, plain, _bound(issuer_id, of))


def unseal(secret: bytes, issuer_id: str, of: bytes, sealed: bytes) -> SigningKey | None:
    """Return the key of `seal`; None where it was sealed otherwise: by another service key, for another certificate."""
    try:
        plain = AESGCM(secret).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], _bound(issuer_id, of))
    except (InvalidTag, ValueError):
        return None
    return cast("SigningKey", load_der_private_key(plain, None))


def _bound(issuer_id: str, of: bytes) -> bytes:
    return PURPOSE + b"\0" + issuer_id.encode("ascii") + b"\0" + of
