"""Secrets for one TPM only: encapsulation to its key, and TPM2_MakeCredential (Part 1, 24; Part 3, 12.6).

Every hash here is the **EK's** nameAlg, whatever the AK's (TPM.md §3.2).
"""

# Algorithms for: tpm-ek, tpm-storage
from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass

from cryptography.hazmat.decrepit.ciphers.modes import CFB
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from attestation.errors import MalformedEvidence
from attestation.tpm.constants import MAX_CREDENTIAL_BYTES, Alg
from attestation.tpm.hashes import crypto_hash, digest_size, hmac_digest
from attestation.tpm.kdf import kdfa, kdfe
from attestation.tpm.public import Public
from attestation.wire import Reader, sized

IDENTITY = b"IDENTITY"
SECRET = b"SECRET"
DUPLICATE = b"DUPLICATE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What TPM2_ActivateCredential takes.

    Args:
        credential_blob: TPM2B_ID_OBJECT, with its size.
        encrypted_secret: TPM2B_ENCRYPTED_SECRET, with its size.
    """

    credential_blob: bytes
    encrypted_secret: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedCredential:
    """A parsed TPM2B_ID_OBJECT: `integrity` is the outer HMAC, `encrypted_identity` what it protects."""

    integrity: bytes
    encrypted_identity: bytes


def parse_id_object(data: bytes) -> UnverifiedCredential:
    """Parse a TPM2B_ID_OBJECT: 2B(2B(integrityHMAC) ‖ encIdentity). At most 2 KiB.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    outer = Reader(data, "TPM2B_ID_OBJECT")
    inner = Reader(outer.sized(MAX_CREDENTIAL_BYTES), "TPM2B_ID_OBJECT")
    outer.end()
    integrity = inner.sized(64)
    return UnverifiedCredential(integrity=integrity, encrypted_identity=inner.rest())


def encapsulate(
    key: Public, label: bytes, *, ephemeral: ec.EllipticCurvePrivateKey | None = None
) -> tuple[bytes, bytes]:
    """Make a seed that only the holder of *key* can recover (Part 1, B.10 and C.6).

    RSA: digest-size random bytes under OAEP with label ‖ 00. ECC: KDFe over an ephemeral ECDH. The hash is
    the key's nameAlg, or that of its scheme for an unrestricted RSA key with scheme OAEP.

    Args:
        key: A decryption key, RSA or ECC on P-256, P-384, P-521.
        label: `IDENTITY`, `SECRET` or `DUPLICATE`, without the terminating zero.
        ephemeral: For tests with known answers only; else made here.

    Returns:
        The seed, and the TPM2B_ENCRYPTED_SECRET that carries it.

    Raises:
        MalformedEvidence: *key* is of a kind that we cannot encapsulate to.
    """
    loaded = key.key()
    if isinstance(loaded, rsa.RSAPublicKey):
        oaep_hash = key.name_alg
        if key.scheme is not None and key.scheme.alg == Alg.OAEP and key.scheme.hash_alg is not None:
            oaep_hash = key.scheme.hash_alg
        size = digest_size(oaep_hash)
        # OAEP adds two digests and two bytes (RFC 8017, 7.1.1).
        if loaded.key_size // 8 < 3 * size + 2:
            raise MalformedEvidence(
                f"a seed of {size} bytes does not fit an RSA key of {loaded.key_size} bits"
            )
        seed = secrets.token_bytes(size)
        algorithm = crypto_hash(oaep_hash)
        oaep = padding.OAEP(padding.MGF1(algorithm), algorithm, label + b"\0")
        return seed, sized(loaded.encrypt(seed, oaep))
    ephemeral = ephemeral or ec.generate_private_key(loaded.curve)
    z = ephemeral.exchange(ec.ECDH(), loaded)
    ours = ephemeral.public_key().public_numbers()
    size = len(z)
    x, y = ours.x.to_bytes(size), ours.y.to_bytes(size)
    theirs = loaded.public_numbers().x.to_bytes(size)
    seed = kdfe(key.name_alg, z, label, x, theirs, 8 * digest_size(key.name_alg))
    return seed, sized(sized(x) + sized(y))


def make_credential(ek: Public, object_name: bytes, secret: bytes) -> Credential:
    """Seal *secret* so that only the TPM of *ek* recovers it, and only if it holds the object of that Name.

    Args:
        ek: The endorsement key: a restricted decryption key with a symmetric algorithm.
        object_name: Name of the AK, nameAlg u16 ‖ digest.
        secret: Never longer than the digest of the EK's nameAlg; ours have 32 bytes.

    Raises:
        MalformedEvidence: *ek* cannot be encapsulated to, or *secret* is too long for it.
    """
    if not 0 < len(secret) <= digest_size(ek.name_alg):
        raise MalformedEvidence(f"secret of {len(secret)} bytes for an EK of {digest_size(ek.name_alg)}")
    seed, encrypted_secret = encapsulate(ek, IDENTITY)
    return Credential(
        credential_blob=wrap_identity(ek, seed, object_name, secret), encrypted_secret=encrypted_secret
    )


def wrap_identity(ek: Public, seed: bytes, object_name: bytes, secret: bytes) -> bytes:
    """Return the TPM2B_ID_OBJECT over *secret* under *seed* (Part 1, 24.4-24.5)."""
    encrypted = aes_cfb(_storage_key(ek, seed, object_name), sized(secret), encrypt=True)
    return sized(sized(_integrity(ek, seed, object_name, encrypted)) + encrypted)


def unwrap_identity(ek: Public, seed: bytes, object_name: bytes, id_object: bytes) -> bytes:
    """Open a TPM2B_ID_OBJECT as the TPM would; what software EKs and tests need.

    Raises:
        MalformedEvidence: Not a credential for this seed and Name.
    """
    credential = parse_id_object(id_object)
    expected = _integrity(ek, seed, object_name, credential.encrypted_identity)
    if not hmac.compare_digest(expected, credential.integrity):
        raise MalformedEvidence("credential integrity does not match")
    key = _storage_key(ek, seed, object_name)
    reader = Reader(aes_cfb(key, credential.encrypted_identity, encrypt=False), "credential")
    secret = reader.sized()
    reader.end()
    return secret


def _storage_key(ek: Public, seed: bytes, object_name: bytes) -> bytes:
    if ek.symmetric is None or ek.symmetric.alg != Alg.AES:
        raise MalformedEvidence("the EK names no symmetric algorithm that we use")
    return kdfa(ek.name_alg, seed, b"STORAGE", object_name, b"", ek.symmetric.key_bits)


def _integrity(ek: Public, seed: bytes, object_name: bytes, encrypted: bytes) -> bytes:
    key = kdfa(ek.name_alg, seed, b"INTEGRITY", b"", b"", 8 * digest_size(ek.name_alg))
    return hmac_digest(ek.name_alg, key, encrypted + object_name)


def aes_cfb(key: bytes, data: bytes, *, encrypt: bool, iv: bytes = bytes(16)) -> bytes:
    """Apply AES-CFB with full-block feedback (Part 1, 11.4.5); the IV is zero but for sessions."""
    cipher = Cipher(algorithms.AES(key), CFB(iv))
    context = cipher.encryptor() if encrypt else cipher.decryptor()
    return context.update(data) + context.finalize()
