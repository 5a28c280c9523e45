"""A private key wrapped for a token: what is done offline, with the public half of a key-encryption key (KEK).

    blob = RSA-OAEP(AES key, 32 bytes), as long as the KEK's modulus
         ‖ AES key wrap with padding (RFC 5649, CKM_AES_KEY_WRAP_PAD) of the key, DER PKCS#8

With an RSA-3072 KEK 584 bytes for P-384 (384 + 200), 2768 for RSA-4096 (384 + 2384). The OAEP part never holds
anything but the AES key: most private keys do not fit into it. MGF1 uses the hash of OAEP; the label is empty.
`attestation.keys.pkcs11.provision` opens blobs inside a token. HSM-AND-KUBERNETES §5.
"""

# Algorithms for: wrapped-key
from __future__ import annotations

import secrets
from types import MappingProxyType
from typing import Final

from cryptography.hazmat.primitives import hashes, keywrap
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, OAEP
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from attestation.errors import KeyUnsupported
from attestation.hsm import OAEPHash

HASHES: Final = MappingProxyType({"sha256": hashes.SHA256(), "sha1": hashes.SHA1()})  # noqa: S303 -- see OAEPHash

AES_KEY_BYTES: Final = 32
KEK_BITS: Final = 3072
"""The least, and what `create_kek` makes."""
MAX_WRAPPED_BYTES: Final = 16_384
PEM_LABEL: Final = "ITL WRAPPED KEY"
"""Of a wrapped key in PEM, as operators keep it in a file and others are shown it."""
REFUSED: Final = "the wrapped key was refused: damaged, made for another key, or not the key it should be"
"""Of any fault of a wrapped key, wherever it is opened: who may send them would learn from a difference."""


def wrap_key(
    private_key: EllipticCurvePrivateKey | RSAPrivateKey,
    kek_public_key: RSAPublicKey,
    *,
    oaep_hash: OAEPHash = "sha256",
) -> bytes:
    """Return the blob of *private_key* that only the token with the private half of *kek_public_key* opens.

    Raises:
        KeyUnsupported: The KEK is no RSA key of at least 3072 bits, the key is neither EC nor RSA, or the hash is
            another one.
    """
    if kek_public_key.key_size < KEK_BITS:  # also every EC key
        raise KeyUnsupported(f"a key is wrapped under an RSA key of at least {KEK_BITS} bits")
    if not isinstance(private_key, EllipticCurvePrivateKey | RSAPrivateKey):
        raise KeyUnsupported("only EC and RSA keys are wrapped: tokens take no others")
    if oaep_hash not in HASHES:
        raise KeyUnsupported(f"OAEP with {oaep_hash} is not used; {' or '.join(HASHES)}")
    content = private_key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    aes_key = secrets.token_bytes(AES_KEY_BYTES)
    hashing = HASHES[oaep_hash]
    sealed = kek_public_key.encrypt(aes_key, OAEP(MGF1(hashing), hashing, None))
    return sealed + keywrap.aes_key_wrap_with_padding(aes_key, content)
