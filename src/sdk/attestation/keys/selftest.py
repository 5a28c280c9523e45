"""Does this private key sign for that public key? Asked when a key is opened, and again while it is used."""

# Algorithms for: ca-key
from __future__ import annotations

import secrets
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA87PrivateKey, MLDSA87PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey

from attestation.errors import KeyMismatch

PREFIX: Final = b"itl-keys-selftest/v1"
"""The first byte, 0x69, begins no DER SEQUENCE: what is signed here is never a certificate, CRL or request."""
RANDOM_BYTES: Final = 32


def self_test(
    private_key: EllipticCurvePrivateKey | RSAPrivateKey | MLDSA87PrivateKey,
    public_key: EllipticCurvePublicKey | RSAPublicKey | MLDSA87PublicKey,
) -> None:
    """Sign `PREFIX` and 32 random bytes, and verify under *public_key*.

    ECDSA and RSA (PKCS#1 v1.5) with SHA-384.

    Raises:
        KeyMismatch: The signature is not of that key, or the two are of different kinds.
        SignerUnavailable: The device that holds the private key does not sign now.
    """
    message = PREFIX + secrets.token_bytes(RANDOM_BYTES)
    scheme, pkcs1 = ECDSA(hashes.SHA384()), padding.PKCS1v15()
    try:
        match private_key, public_key:
            case EllipticCurvePrivateKey(), EllipticCurvePublicKey():
                public_key.verify(private_key.sign(message, scheme), message, scheme)
            case RSAPrivateKey(), RSAPublicKey():
                public_key.verify(
                    private_key.sign(message, pkcs1, hashes.SHA384()), message, pkcs1, hashes.SHA384()
                )
            case MLDSA87PrivateKey(), MLDSA87PublicKey():
                public_key.verify(private_key.sign(message), message)
            case _:
                raise KeyMismatch("the private key is of another kind than the public key beside it")
    except InvalidSignature:
        raise KeyMismatch("the private key does not belong to the public key beside it") from None
