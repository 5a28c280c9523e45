"""Keys made outside a TPM and sent into it: duplicates for TPM2_Import (Part 1, 23.3; Part 3, 13.3).

Only what the second protocol needs (TPM.md §3.3): a restricted HMAC key, sealed to a storage key such as the EK,
without inner wrapper. A restricted key signs nothing that begins like a statement of a TPM and was made elsewhere.
"""

# Algorithms for: node-proof
from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec

from attestation.errors import MalformedEvidence
from attestation.tpm.constants import Alg, Attr
from attestation.tpm.credential import DUPLICATE, encapsulate, unwrap_identity, wrap_identity
from attestation.tpm.public import Public, Scheme
from attestation.wire import Reader, sized, u16

SECRET_BYTES: Final = 32
"""Length of an HMAC key and of its seedValue: the digest of nameAlg, SHA-256."""

HMAC_KEY_ATTRIBUTES: Final = int(Attr.USER_WITH_AUTH | Attr.NO_DA | Attr.RESTRICTED | Attr.SIGN_ENCRYPT)
"""00050440: not fixedTPM, not fixedParent, not made in a TPM, and says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """What TPM2_Import takes besides the public area.

    Args:
        duplicate: TPM2B_PRIVATE, with its size: 2B(2B(integrity) ‖ encSensitive).
        encrypted_seed: TPM2B_ENCRYPTED_SECRET, with its size.
    """

    duplicate: bytes
    encrypted_seed: bytes


def hmac_key_public(key: bytes, seed_value: bytes) -> Public:
    """Return the public area of an HMAC-SHA256 key: unique = SHA-256(seedValue ‖ key) (Part 1, 27.5.3.3).

    Args:
        key: 32 bytes.
        seed_value: 32 bytes; without them the public area would tell who guesses the key.
    """
    if (len(key), len(seed_value)) != (SECRET_BYTES, SECRET_BYTES):
        raise MalformedEvidence(f"key and seedValue have {SECRET_BYTES} bytes each")
    public = Public(
        type=Alg.KEYEDHASH,
        name_alg=Alg.SHA256,
        attributes=HMAC_KEY_ATTRIBUTES,
        auth_policy=b"",
        symmetric=None,
        scheme=Scheme(alg=Alg.HMAC, hash_alg=Alg.SHA256),
        unique=hashlib.sha256(seed_value + key).digest(),
        tpmt=b"",
    )
    return replace(public, tpmt=public.serialise())


def duplicate_hmac_key(
    parent: Public, key: bytes, seed_value: bytes, *, ephemeral: ec.EllipticCurvePrivateKey | None = None
) -> Duplicate:
    """Seal an HMAC key so that only the TPM of *parent* can load it, unchanged.

    Every hash is the **parent's** nameAlg, as in MakeCredential; the outer wrapper is the same construction over
    another seed: the label under which the seed travels tells the two apart.

    Args:
        parent: A restricted decryption key with a symmetric algorithm, RSA or ECC.
        key: 32 bytes from a CSPRNG, for one use.
        seed_value: 32 bytes, likewise.
        ephemeral: For tests with known answers only; else made here.

    Raises:
        MalformedEvidence: *parent* cannot be encapsulated to, or a length is wrong.
    """
    name = hmac_key_public(key, seed_value).name
    # TPMT_SENSITIVE: type ‖ 2B authValue (empty) ‖ 2B seedValue ‖ 2B key (Part 2, 12.3.2.4).
    sensitive = u16(Alg.KEYEDHASH) + sized(b"") + sized(seed_value) + sized(key)
    seed, encrypted_seed = encapsulate(parent, DUPLICATE, ephemeral=ephemeral)
    return Duplicate(duplicate=wrap_identity(parent, seed, name, sensitive), encrypted_seed=encrypted_seed)


def open_hmac_key(parent: Public, seed: bytes, public: Public, duplicate: bytes) -> bytes:
    """Open a duplicate as TPM2_Import would, and return the key; what software EKs and tests need.

    Args:
        parent: The storage key it was made for.
        seed: What its holder recovered from the encrypted seed.
        public: Public area of the object.
        duplicate: TPM2B_PRIVATE, with its size.

    Raises:
        MalformedEvidence: Not a duplicate of this object for this seed.
    """
    reader = Reader(unwrap_identity(parent, seed, public.name, duplicate), "TPMT_SENSITIVE")
    kind = reader.u16()
    auth_value, seed_value, key = reader.sized(), reader.sized(), reader.sized()
    reader.end()
    if kind != Alg.KEYEDHASH or auth_value or hashlib.sha256(seed_value + key).digest() != public.unique:
        raise MalformedEvidence("the sensitive area is not that of this HMAC key")
    return key
