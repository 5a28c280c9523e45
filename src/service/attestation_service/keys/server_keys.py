"""Compatibility (ITL_COMPAT_SERVER_KEYS): a key that is made here and leaves wrapped to the TPM that asked for it.

The seeds made every key so, and wrapped its PEM with RSA-OAEP, which it does not fit (FAULTS R10). Here the machine
proves, by its AK and for a fresh challenge, an RSA key that only its TPM can use; the made key is encrypted under a
fresh AES key, and that one is wrapped to the RSA key. What was made so is labelled in answer and audit, and its
certificate names no key tier: nobody can say where else the key has been.
"""

# Algorithms for: server-made-key
from __future__ import annotations

from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_public_key,
)

from attestation.algorithms import CryptoPolicy, Use, demand
from attestation.api import CertResponse
from attestation.envelope import KEY_FORMAT, wrap_key
from attestation.errors import RequestInvalid
from attestation.evidence import key_certification
from attestation.evidence.key_certification import CertifiedKey, KeyMode, UnverifiedKeyCertification
from attestation.machines import Machine
from attestation.store import Challenge
from attestation.tpm import parse_public
from attestation.wire import b64encode
from attestation_service.settings import Settings


@dataclass(frozen=True, slots=True)
class MadeKey:
    """A P-384 key that was made here: SubjectPublicKeyInfo and PKCS#8, both DER."""

    spki: bytes
    pkcs8: bytes = field(repr=False)


def verify(
    parsed: UnverifiedKeyCertification, challenge: Challenge, machine: Machine, settings: Settings
) -> CertifiedKey:
    """Verify that the TPM of *machine* holds the RSA key that a made key is to be wrapped to.

    Raises:
        RequestInvalid: Keys are not made here.
        EvidenceRejected: It is no such key, or not vouched for by its AK and for this challenge.
        AlgorithmForbidden: It is shorter than ITL_CRYPTO_POLICY allows.
    """
    if not settings.compat_server_keys:
        raise RequestInvalid("csr_pem is needed: keys of machines are made in their TPM")
    assert challenge.nonce is not None
    assert machine.tpm.ak_public is not None
    certified = key_certification.verify(
        parsed,
        ak=parse_public(machine.tpm.ak_public),
        ek=parse_public(machine.tpm.ek_public),
        binding=key_certification.key_binding(challenge.nonce, parsed.spki),
        spki=parsed.spki,
        modes=frozenset({KeyMode.RESIDENT_DECRYPT}),
    )
    demand(CryptoPolicy(settings.crypto_policy), Use.SERVER_KEY, f"rsa-{certified.public.key_bits}")
    return certified


def make() -> MadeKey:
    """Make a key; not on the event loop."""
    key = ec.generate_private_key(ec.SECP384R1())
    return MadeKey(
        key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
    )


def add_to(answer: CertResponse, made: MadeKey, wrap_to: bytes) -> CertResponse:
    """Return *answer* with the key in it, wrapped to the RSA key *wrap_to* (SPKI DER), for its first certificate."""
    recipient = load_der_public_key(wrap_to)
    assert isinstance(recipient, rsa.RSAPublicKey)  # of mode tpm-resident-decrypt are RSA keys only
    wrapped = wrap_key(made.pkcs8, to=recipient, machine_id=answer.machine_id, serial=answer.serial)
    return answer.model_copy(
        update={
            "compat": "server-key",
            "enrollment_key_format": KEY_FORMAT,
            "enrollment_key_wrapped_b64": b64encode(wrapped.wrapped_key),
            "enrollment_key_iv_b64": b64encode(wrapped.iv),
            "enrollment_key_encrypted_b64": b64encode(wrapped.ciphertext),
        }
    )
