"""Keys of our own in a TPM: made under a storage key, loaded for a moment, used, flushed.

A key stands under the storage key that everybody derives from a hierarchy (`tpm.key_file.STORAGE_TEMPLATE`), so it is
kept as a file that other programs can use too, and occupies the TPM only while it signs. Without a resource manager
a TPM has three slots for objects: the storage key is flushed as soon as the key is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from attestation.device.client import TPM
from attestation.errors import DeviceError, MalformedEvidence, TPMResponseError
from attestation.tpm import commands
from attestation.tpm.commands import Entity
from attestation.tpm.constants import Alg, Attr, Curve, Hierarchy
from attestation.tpm.key_file import STORAGE_TEMPLATE, TPMKey
from attestation.tpm.public import Public, Scheme
from attestation.tpm.sessions import Password
from attestation.tpm.signature import Signature, parse_signature
from attestation.wire import Reader, sized

SIGNING_ATTRIBUTES: Final = int(
    Attr.FIXED_TPM
    | Attr.FIXED_PARENT
    | Attr.SENSITIVE_DATA_ORIGIN
    | Attr.USER_WITH_AUTH
    | Attr.NO_DA
    | Attr.SIGN_ENCRYPT
)
"""00040472: made in the TPM, never leaves it, signs what it is given. noDA: a lockout of others does not stop it."""
DECRYPTION_ATTRIBUTES: Final = SIGNING_ATTRIBUTES ^ int(Attr.SIGN_ENCRYPT | Attr.DECRYPT)


class KeyType(StrEnum):
    """Kinds of keys that we make."""

    ECC_P256 = "ecc-p256"
    ECC_P384 = "ecc-p384"
    RSA_2048 = "rsa-2048"
    RSA_3072 = "rsa-3072"


_BITS: Final[Mapping[KeyType, int]] = MappingProxyType({KeyType.RSA_2048: 2048, KeyType.RSA_3072: 3072})
_CURVES: Final[Mapping[KeyType, int]] = MappingProxyType(
    {KeyType.ECC_P256: Curve.NIST_P256, KeyType.ECC_P384: Curve.NIST_P384}
)
HASHES_BY_SIZE: Final[Mapping[int, int]] = MappingProxyType({32: Alg.SHA256, 48: Alg.SHA384, 64: Alg.SHA512})


def key_template(kind: KeyType, *, attributes: int = SIGNING_ATTRIBUTES) -> bytes:
    """Return the TPMT_PUBLIC for TPM2_Create; the scheme is open, so each use chooses padding and hash."""
    bits = _BITS.get(kind, 0)
    return Public(
        type=Alg.RSA if bits else Alg.ECC,
        name_alg=Alg.SHA256,
        attributes=attributes,
        auth_policy=b"",
        symmetric=None,
        scheme=None,
        key_bits=bits,
        curve=_CURVES.get(kind, 0),
        tpmt=b"",
    ).serialise()


def is_unsupported(error: TPMResponseError) -> bool:
    """True where the TPM says that it lacks an algorithm, size or curve of the template (parameter 2)."""
    return error.response_code & 0xFC0 == 0x2C0


def load_parent(tpm: TPM, parent: int, hierarchy_auth: bytes = b"") -> Entity:
    """Load the storage key that *parent* stands for.

    Args:
        tpm: Where.
        parent: A hierarchy, whose storage key is derived and must be flushed; or the handle of a persistent key.
        hierarchy_auth: authValue of the hierarchy.
    """
    if parent in frozenset(Hierarchy):
        return tpm.execute(commands.create_primary(parent, STORAGE_TEMPLATE), Password(hierarchy_auth)).entity
    return Entity(parent, tpm.execute(commands.read_public(parent)).name)


def make_key(
    tpm: TPM,
    template: bytes,
    *,
    parent: int = Hierarchy.OWNER,
    hierarchy_auth: bytes = b"",
    auth_value: bytes = b"",
) -> TPMKey:
    """Make a key under the storage key of *parent* (TPM2_Create); it is not loaded.

    Args:
        tpm: Where.
        template: TPMT_PUBLIC.
        parent: As `load_parent`.
        hierarchy_auth: authValue of the hierarchy.
        auth_value: authValue of the new key.

    Raises:
        TPMResponseError: The TPM does not make such keys, or the hierarchy has another authValue.
        DeviceError: The TPM failed.
    """
    with tpm.scope():
        storage = load_parent(tpm, parent, hierarchy_auth)
        made = tpm.execute(commands.create(storage, template, auth_value=auth_value), Password())
    return TPMKey(public=made.public, private=sized(made.private), parent=parent, empty_auth=not auth_value)


def load_key(tpm: TPM, key: TPMKey, hierarchy_auth: bytes = b"") -> Entity:
    """Load *key*; whoever calls flushes it, or stands in a scope. Nothing else stays loaded.

    Raises:
        TPMResponseError: It was made by another TPM, or before this one was cleared.
        DeviceError: The TPM failed.
    """
    reader = Reader(key.private, "TPM2B_PRIVATE")
    private = reader.sized()
    storage = load_parent(tpm, key.parent, hierarchy_auth)
    try:
        return tpm.execute(commands.load(storage, private, key.public), Password())
    finally:
        if storage.handle in tpm.loaded:
            tpm.flush(storage.handle)


def sign_digest(
    tpm: TPM, key: Entity, public: Public, digest: bytes, *, pss: bool = False, auth_value: bytes = b""
) -> Signature:
    """Sign *digest* with a loaded key (TPM2_Sign).

    Args:
        tpm: Where.
        key: The key.
        public: Its public area.
        digest: Of SHA-256, SHA-384 or SHA-512: 32, 48 or 64 bytes.
        pss: RSA: PSS with a salt as long as the digest, instead of PKCS#1 v1.5. Ignored for ECC.
        auth_value: authValue of the key.

    Raises:
        TPMResponseError: The key does not sign so, or the TPM lacks the hash.
        DeviceError: The TPM failed, or the digest is of no hash that we use.
    """
    hash_alg = HASHES_BY_SIZE.get(len(digest))
    if hash_alg is None:
        raise DeviceError(f"a digest of {len(digest)} bytes is none of SHA-256, SHA-384 or SHA-512")
    alg = Alg.ECDSA if public.type == Alg.ECC else Alg.RSAPSS if pss else Alg.RSASSA
    signed = tpm.execute(
        commands.sign(key, digest, scheme=Scheme(alg=alg, hash_alg=hash_alg)), Password(auth_value)
    )
    try:
        return parse_signature(signed)
    except MalformedEvidence as e:
        raise DeviceError(f"TPM answered what no TPM may answer: {e}") from e


def plain_signature(signature: Signature) -> bytes:
    """Return a signature as everybody but a TPM writes it: ECDSA as DER of (r, s), RSA as it is."""
    if signature.alg == Alg.ECDSA:
        return encode_dss_signature(int.from_bytes(signature.signature), int.from_bytes(signature.s))
    return signature.signature
