r"""The sealed envelope `ek-aes256gcm-v2`: one configuration for one TPM and one AK (PROTOCOL §5, TPM.md §8).

The AES-256 key *is* the secret of a credential made for the EK and the AK's Name: whoever opens the envelope
has both keys in its TPM. The additional data binds format, machine, token and plaintext digest:

    "ek-aes256gcm-v2\n" machine_id "\n" token_id "\n" config_sha256 "\n"

Without a TPM it is `tee-p384-aes256gcm-v1` (PROTOCOL §9): the AES-256 key is HKDF-SHA384, salt empty, of an ECDH
between a fresh P-384 key and the subject key, which a confidential machine keeps in its guest; info is the additional
data, with this
format's name.

And `itl-server-key-v1`, for compatibility only: a private key for one TPM-resident RSA decryption key (FAULTS R10).
RSA-2048 with OAEP carries 190 bytes, and private keys have more or nearly so: the PKCS#8 DER is encrypted under a
fresh AES-256 key, and that one is wrapped. The additional data:

    "itl-server-key-v1\n" machine_id "\n" serial "\n"
"""

# Algorithms for: sealed-configuration, server-made-key
from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from attestation.errors import EvidenceRejected, MalformedEvidence
from attestation.tpm import Public, make_credential

FORMAT: Final = "ek-aes256gcm-v2"
TEE_FORMAT: Final = "tee-p384-aes256gcm-v1"
KEY_FORMAT: Final = "itl-server-key-v1"
KEY_BYTES: Final = 32
IV_BYTES: Final = 12
TAG_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A sealed configuration.

    Args:
        machine_id: UUID text.
        token_id: 16 hex digits.
        credential_blob: TPM2B_ID_OBJECT.
        encrypted_secret: TPM2B_ENCRYPTED_SECRET.
        iv: 12 bytes.
        ciphertext: AES-256-GCM, the tag of 16 bytes appended.
        config_sha256: SHA-256 of the plaintext, hex.
    """

    machine_id: str
    token_id: str
    credential_blob: bytes
    encrypted_secret: bytes
    iv: bytes
    ciphertext: bytes
    config_sha256: str


class EnvelopeNotForUs(EvidenceRejected):
    """The envelope is not what was sealed: another key, or a byte of it was changed."""

    code = "envelope-rejected"


def seal(plaintext: bytes, *, ek: Public, ak_name: bytes, machine_id: str, token_id: str) -> Envelope:
    """Seal *plaintext* to the TPM that holds *ek* and the AK of that Name.

    Key and IV are fresh for every envelope; a repeated delivery returns the stored envelope, never a second
    encryption.

    Args:
        plaintext: The configuration.
        ek: Public area of the machine's EK.
        ak_name: Name of its activated AK.
        machine_id: UUID text.
        token_id: 16 hex digits.

    Raises:
        MalformedEvidence: *ek* is no key that can be sealed to; nothing was released.
    """
    key = secrets.token_bytes(KEY_BYTES)
    iv = secrets.token_bytes(IV_BYTES)
    config_sha256 = hashlib.sha256(plaintext).hexdigest()
    credential = make_credential(ek, ak_name, key)
    data = _additional_data(FORMAT, machine_id, token_id, config_sha256)
    return Envelope(
        machine_id=machine_id,
        token_id=token_id,
        credential_blob=credential.credential_blob,
        encrypted_secret=credential.encrypted_secret,
        iv=iv,
        ciphertext=AESGCM(key).encrypt(iv, plaintext, data),
        config_sha256=config_sha256,
    )


def open_envelope(envelope: Envelope, key: bytes, *, machine_id: str) -> bytes:
    """Return the plaintext; tag first, then digest, before anything leaves this function.

    Args:
        envelope: As received.
        key: The 32 bytes that TPM2_ActivateCredential yielded.
        machine_id: Our own id; an envelope for another machine is refused.

    Raises:
        MalformedEvidence: Key, IV or ciphertext of a wrong length.
        EnvelopeNotForUs: For another machine, or changed anywhere.
    """
    if len(key) != KEY_BYTES or len(envelope.iv) != IV_BYTES or len(envelope.ciphertext) < TAG_BYTES:
        raise MalformedEvidence("envelope: key, iv or ciphertext has a wrong length")
    if envelope.machine_id != machine_id:
        raise EnvelopeNotForUs("the envelope is for another machine")
    try:
        data = _additional_data(FORMAT, envelope.machine_id, envelope.token_id, envelope.config_sha256)
    except UnicodeEncodeError as e:
        raise EnvelopeNotForUs("the envelope does not open under this key") from e
    return _opened(key, envelope.iv, envelope.ciphertext, data, envelope.config_sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectEnvelope:
    """A configuration sealed to a subject key.

    Args:
        machine_id: UUID text.
        token_id: 16 hex digits.
        epk: SubjectPublicKeyInfo, DER, of the ephemeral key.
        iv: 12 bytes.
        ciphertext: AES-256-GCM, the tag of 16 bytes appended.
        config_sha256: SHA-256 of the plaintext, hex.
    """

    machine_id: str
    token_id: str
    epk: bytes
    iv: bytes
    ciphertext: bytes
    config_sha256: str


def subject_key(spki: bytes) -> ec.EllipticCurvePublicKey:
    """Return the subject key in a SubjectPublicKeyInfo, DER: P-384, in the one form that names it.

    Raises:
        MalformedEvidence: Another key, or written otherwise.
    """
    try:
        key = load_der_public_key(spki)
    except (ValueError, UnsupportedAlgorithm) as e:
        raise MalformedEvidence("subject key: no SubjectPublicKeyInfo") from e
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise MalformedEvidence("subject key: not on P-384")
    if _spki(key) != spki:
        raise MalformedEvidence("subject key: not the canonical form")
    return key


def subject_name(spki: bytes) -> bytes:
    """Return what a binding calls a subject key: SHA-384 of its SubjectPublicKeyInfo, 48 bytes."""
    return hashlib.sha384(spki).digest()


def seal_to_subject(plaintext: bytes, *, spki: bytes, machine_id: str, token_id: str) -> SubjectEnvelope:
    """Seal *plaintext* to a subject key; keys and IV are fresh for every envelope.

    Args:
        plaintext: The configuration.
        spki: SubjectPublicKeyInfo, DER, of the machine's subject key.
        machine_id: UUID text.
        token_id: 16 hex digits.

    Raises:
        MalformedEvidence: It is no subject key; nothing was released.
    """
    ephemeral, iv = ec.generate_private_key(ec.SECP384R1()), secrets.token_bytes(IV_BYTES)
    config_sha256 = hashlib.sha256(plaintext).hexdigest()
    data = _additional_data(TEE_FORMAT, machine_id, token_id, config_sha256)
    agreed = _agreed(ephemeral, subject_key(spki), data)
    return SubjectEnvelope(
        machine_id=machine_id,
        token_id=token_id,
        epk=_spki(ephemeral.public_key()),
        iv=iv,
        ciphertext=AESGCM(agreed).encrypt(iv, plaintext, data),
        config_sha256=config_sha256,
    )


def open_with_subject(
    envelope: SubjectEnvelope, key: ec.EllipticCurvePrivateKey, *, machine_id: str
) -> bytes:
    """Return the plaintext; tag first, then digest, before anything leaves this function.

    Args:
        envelope: As received.
        key: Our subject key.
        machine_id: Our own id; an envelope for another machine is refused.

    Raises:
        MalformedEvidence: Ephemeral key, IV or ciphertext of a wrong form.
        EnvelopeNotForUs: For another machine, or changed anywhere.
    """
    if len(envelope.iv) != IV_BYTES or len(envelope.ciphertext) < TAG_BYTES:
        raise MalformedEvidence("envelope: iv or ciphertext has a wrong length")
    if envelope.machine_id != machine_id:
        raise EnvelopeNotForUs("the envelope is for another machine")
    data = _additional_data(TEE_FORMAT, envelope.machine_id, envelope.token_id, envelope.config_sha256)
    agreed = _agreed(key, subject_key(envelope.epk), data)
    return _opened(agreed, envelope.iv, envelope.ciphertext, data, envelope.config_sha256)


def _agreed(ours: ec.EllipticCurvePrivateKey, theirs: ec.EllipticCurvePublicKey, info: bytes) -> bytes:
    derivation = HKDF(algorithm=hashes.SHA384(), length=KEY_BYTES, salt=None, info=info)
    return derivation.derive(ours.exchange(ec.ECDH(), theirs))


def _spki(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _opened(key: bytes, iv: bytes, ciphertext: bytes, data: bytes, config_sha256: str) -> bytes:
    try:
        plaintext = AESGCM(key).decrypt(iv, ciphertext, data)
    except InvalidTag as e:
        raise EnvelopeNotForUs("the envelope does not open under this key") from e
    # Their digests as bytes: what was announced may have any characters.
    if not hmac.compare_digest(hashlib.sha256(plaintext).hexdigest().encode(), config_sha256.encode()):
        raise EnvelopeNotForUs("the configuration is not the one that was announced")
    return plaintext


def _additional_data(name: str, machine_id: str, token_id: str, config_sha256: str) -> bytes:
    return f"{name}\n{machine_id}\n{token_id}\n{config_sha256}\n".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedKey:
    """A private key that was made elsewhere, on its way to one TPM.

    Args:
        wrapped_key: RSA-OAEP of the AES-256 key: SHA-256, MGF1 with SHA-256, no label.
        iv: 12 bytes.
        ciphertext: AES-256-GCM of PKCS#8 DER, the tag of 16 bytes appended.
    """

    wrapped_key: bytes
    iv: bytes
    ciphertext: bytes


def wrap_key(pkcs8: bytes, *, to: rsa.RSAPublicKey, machine_id: str, serial: str) -> WrappedKey:
    """Wrap a private key to *to*, under a fresh AES key.

    Args:
        pkcs8: PKCS#8 DER, not encrypted.
        to: A key that only the machine's TPM can use.
        machine_id: UUID text.
        serial: Of the certificate of the key, 40 lower-case hex.
    """
    key = secrets.token_bytes(KEY_BYTES)
    iv = secrets.token_bytes(IV_BYTES)
    return WrappedKey(
        wrapped_key=to.encrypt(key, _oaep()),
        iv=iv,
        ciphertext=AESGCM(key).encrypt(iv, pkcs8, _key_data(machine_id, serial)),
    )


def unwrap_key(wrapped: WrappedKey, key: bytes, *, machine_id: str, serial: str) -> bytes:
    """Return the PKCS#8 DER; the tag is checked before anything leaves this function.

    Args:
        wrapped: As received.
        key: The 32 bytes that TPM2_RSA_Decrypt made of `wrapped_key`.
        machine_id: Our own id.
        serial: Of the certificate that came with it, 40 lower-case hex.

    Raises:
        MalformedEvidence: Key, IV or ciphertext of a wrong length.
        EnvelopeNotForUs: For another machine or certificate, or changed anywhere.
    """
    if len(key) != KEY_BYTES or len(wrapped.iv) != IV_BYTES or len(wrapped.ciphertext) < TAG_BYTES:
        raise MalformedEvidence("wrapped key: key, iv or ciphertext has a wrong length")
    try:
        return AESGCM(key).decrypt(wrapped.iv, wrapped.ciphertext, _key_data(machine_id, serial))
    except InvalidTag as e:
        raise EnvelopeNotForUs("the key does not open: another key, machine or certificate") from e


def _oaep() -> padding.OAEP:
    return padding.OAEP(mgf=padding.MGF1(hashes.SHA256()), algorithm=hashes.SHA256(), label=None)


def _key_data(machine_id: str, serial: str) -> bytes:
    return f"{KEY_FORMAT}\n{machine_id}\n{serial}\n".encode()
