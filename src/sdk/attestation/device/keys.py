"""Keys of our own in a TPM: made under a storage key, loaded for a moment, used, flushed.

A key stands under the storage key that everybody derives from a hierarchy (`tpm.key_file.STORAGE_TEMPLATE`), so it is
kept as a file that other programs can use too, and occupies the TPM only while it signs. Without a resource manager
a TPM has three slots for objects: the storage key is flushed as soon as the key is loaded.
"""

# Algorithms for: tpm-hash, certified-key
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from attestation.device.client import TPM, LiveSession, LiveUse
from attestation.errors import DeviceError, MalformedEvidence, TPMResponseError
from attestation.tpm import commands
from attestation.tpm.commands import Entity, SessionType
from attestation.tpm.constants import Alg, Attr, Curve, Hierarchy
from attestation.tpm.key_file import STORAGE_TEMPLATE, TPMKey
from attestation.tpm.public import Public, Scheme, external_p256, parse_public
from attestation.tpm.sessions import Password
from attestation.tpm.signature import Signature, parse_signature
from attestation.wire import Reader, sized, u16

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


def external_key(key: ec.EllipticCurvePrivateKey) -> tuple[bytes, bytes]:
    """Return the TPM2B_PUBLIC and the TPMT_SENSITIVE of a software key, for TPM2_LoadExternal.

    Coordinates of 32 bytes.

    Raises:
        DeviceError: The key is not on P-256.
    """
    if not isinstance(key.curve, ec.SECP256R1):
        raise DeviceError(f"a key on {key.curve.name} cannot be certified, only one on P-256")
    point = key.public_key().public_numbers()
    area = external_p256(point.x.to_bytes(32), point.y.to_bytes(32))
    secret = key.private_numbers().private_value.to_bytes(32)
    # TPMT_SENSITIVE: type, authValue, seedValue, d (Part 2, 12.3.2.4).
    return sized(area), u16(Alg.ECC) + sized(b"") + sized(b"") + sized(secret)


def is_unsupported(error: TPMResponseError) -> bool:
    """True where the TPM says that it lacks an algorithm, size or curve of the template (parameter 2)."""
    return error.response_code & 0xFC0 == 0x2C0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A key that can be used now.

    Args:
        entity: Handle and Name.
        public: Its public area.
        session: For keys with an authValue: proves it by HMAC, so that it never crosses the bus.
    """

    entity: Entity
    public: Public
    session: LiveSession | None = None

    def authorise(self, auth_value: bytes) -> Password | LiveUse:
        """Return an authorisation for one use of the key."""
        return Password(auth_value) if self.session is None else self.session.use(auth_value=auth_value)


def load_parent(tpm: TPM, parent: int, hierarchy_auth: bytes = b"") -> tuple[Entity, Public]:
    """Load the storage key that *parent* stands for.

    Args:
        tpm: Where.
        parent: A hierarchy, whose storage key is derived and must be flushed; or the handle of a persistent key.
        hierarchy_auth: authValue of the hierarchy.
    """
    if parent in frozenset(Hierarchy):
        made = tpm.execute(commands.create_primary(parent, STORAGE_TEMPLATE), Password(hierarchy_auth))
        return made.entity, parse_public(made.public)
    area = tpm.execute(commands.read_public(parent))
    return Entity(parent, area.name), parse_public(area.public)


def make_key(
    tpm: TPM,
    template: bytes,
    *,
    parent: int = Hierarchy.OWNER,
    hierarchy_auth: bytes = b"",
    auth_value: bytes = b"",
) -> TPMKey:
    """Make a key under the storage key of *parent* (TPM2_Create); it is not loaded.

    An authValue is encrypted on its way, in a session salted to the storage key.

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
        storage, public = load_parent(tpm, parent, hierarchy_auth)
        authorisation: Password | LiveUse = Password()
        if auth_value:
            session = tpm.start_session(SessionType.HMAC, (storage, public))
            authorisation = session.use(encrypt_command=True, keep=False)
        made = tpm.execute(commands.create(storage, template, auth_value=auth_value), authorisation)
    return TPMKey(public=made.public, private=sized(made.private), parent=parent, empty_auth=not auth_value)


def load_key(tpm: TPM, key: TPMKey, hierarchy_auth: bytes = b"", *, with_session: bool = False) -> Loaded:
    """Load *key*; whoever calls flushes it, or stands in a scope. Nothing else stays loaded but the session.

    Args:
        tpm: Where.
        key: Of this TPM.
        hierarchy_auth: authValue of the hierarchy that is its parent.
        with_session: It has an authValue: start a session, salted to the storage key.

    Raises:
        TPMResponseError: It was made by another TPM, or before this one was cleared.
        DeviceError: The TPM failed.
    """
    private = Reader(key.private, "TPM2B_PRIVATE").sized()
    storage, public = load_parent(tpm, key.parent, hierarchy_auth)
    try:
        session = tpm.start_session(SessionType.HMAC, (storage, public)) if with_session else None
        entity = tpm.execute(commands.load(storage, private, key.public), Password())
    finally:
        if storage.handle in tpm.loaded:
            tpm.flush(storage.handle)
    return Loaded(entity=entity, public=parse_public(key.public), session=session)


def find_key(tpm: TPM, handle: int, *, with_session: bool = False) -> Loaded:
    """Return the persistent key at *handle*, which is always loaded.

    Its session has no salt, as there is no key to encrypt one to: who listens on the bus may guess the authValue.

    Raises:
        TPMResponseError: Nothing is there.
        DeviceError: The TPM failed.
    """
    area = tpm.execute(commands.read_public(handle))
    session = tpm.start_session(SessionType.HMAC, None) if with_session else None
    return Loaded(entity=Entity(handle, area.name), public=parse_public(area.public), session=session)


def sign_digest(
    tpm: TPM, key: Loaded, digest: bytes, *, pss: bool = False, auth_value: bytes = b""
) -> Signature:
    """Sign *digest* with a loaded key (TPM2_Sign).

    Args:
        tpm: Where.
        key: The key.
        digest: Of SHA-256, SHA-384 or SHA-512: 32, 48 or 64 bytes.
        pss: RSA: PSS with a salt as long as the digest, instead of PKCS#1 v1.5. Ignored for ECC.
        auth_value: authValue of the key.

    Raises:
        TPMResponseError: The key does not sign so, the TPM lacks the hash, or the authValue is another.
        DeviceError: The TPM failed, or the digest is of no hash that we use.
    """
    hash_alg = HASHES_BY_SIZE.get(len(digest))
    if hash_alg is None:
        raise DeviceError(f"a digest of {len(digest)} bytes is none of SHA-256, SHA-384 or SHA-512")
    alg = Alg.ECDSA if key.public.type == Alg.ECC else Alg.RSAPSS if pss else Alg.RSASSA
    signed = tpm.execute(
        commands.sign(key.entity, digest, scheme=Scheme(alg=alg, hash_alg=hash_alg)),
        key.authorise(auth_value),
    )
    try:
        return parse_signature(signed)
    except MalformedEvidence as e:
        raise DeviceError(f"TPM answered what no TPM may answer: {e}", fault="malformed") from e


def plain_signature(signature: Signature) -> bytes:
    """Return a signature as everybody but a TPM writes it: ECDSA as DER of (r, s), RSA as it is."""
    if signature.alg == Alg.ECDSA:
        return encode_dss_signature(int.from_bytes(signature.signature), int.from_bytes(signature.s))
    return signature.signature
