r"""The sealed envelope `ek-aes256gcm-v2`: one configuration for one TPM and one AK (PROTOCOL §5, TPM.md §8).

The AES-256 key *is* the secret of a credential made for the EK and the AK's Name: whoever opens the envelope
has both keys in its TPM. The additional data binds format, machine, token and plaintext digest:

    "ek-aes256gcm-v2\n" machine_id "\n" token_id "\n" config_sha256 "\n"

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

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from attestation.errors import EvidenceRejected, MalformedEvidence
from attestation.tpm import Public, make_credential

FORMAT: Final = "ek-aes256gcm-v2"
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
    return Envelope(
        machine_id=machine_id,
        token_id=token_id,
        credential_blob=credential.credential_blob,
        encrypted_secret=credential.encrypted_secret,
        iv=iv,
        ciphertext=AESGCM(key).encrypt(iv, plaintext, _additional_data(machine_id, token_id, config_sha256)),
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
        data = _additional_data(envelope.machine_id, envelope.token_id, envelope.config_sha256)
        plaintext = AESGCM(key).decrypt(envelope.iv, envelope.ciphertext, data)
    except (InvalidTag, UnicodeEncodeError) as e:
        raise EnvelopeNotForUs("the envelope does not open under this key") from e
    if not hmac.compare_digest(hashlib.sha256(plaintext).hexdigest(), envelope.config_sha256):
        raise EnvelopeNotForUs("the configuration is not the one that was announced")
    return plaintext


def _additional_data(machine_id: str, token_id: str, config_sha256: str) -> bytes:
    return f"{FORMAT}\n{machine_id}\n{token_id}\n{config_sha256}\n".encode()


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
