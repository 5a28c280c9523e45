"""Credential activation: the AK lives in the TPM that holds the EK (TPM.md §3, checks 8-13).

The verifier seals a secret to the EK and the Name of the AK (TPM2_MakeCredential). Only a TPM that holds both
recovers it (TPM2_ActivateCredential), and proves so by an HMAC over the whole context (PROTOCOL §2):

    HMAC-SHA256(secret, "itl-ak-activate-v1" 00 machine_id 00 challenge_id 00 ‖ SHA-256(ek_public) ‖ AK Name)

A further EK of the same chip is proven in another form, which names the EK that it is shown beside (PROTOCOL §8.6).
Otherwise whoever is in between has a machine answer it as its own activation, and ties its EK to another machine:

    HMAC-SHA256(secret, "itl-ek-alternative-v1" 00 machine_id 00 challenge_id 00 primary EK's fingerprint 00
                        ‖ SHA-256(ek_public) ‖ AK Name)
"""

# Algorithms for: tpm-ak, node-proof
from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Final

from attestation.errors import (
    ActivationFailed,
    AKAttributesRejected,
    EKTemplateRejected,
    MalformedEvidence,
)
from attestation.tpm import (
    Alg,
    Credential,
    Public,
    make_credential,
    match_ek_template,
    parse_public,
)
from attestation.tpm.ak import check_ak as check_ak
from attestation.tpm.roca import is_roca_weak

MEDIA_TYPE = "application/vnd.itl.ak-activation"

SECRET_BYTES = 32
PROOF_BYTES = 32
_CONTEXT: Final = b"itl-ak-activate-v1"
_ALTERNATIVE: Final = b"itl-ek-alternative-v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedKeys:
    """An EK and an AK whose public areas may be introduced; not yet proven to live in one TPM.

    Args:
        ek: The EK's public area.
        ak: The AK's public area.
        template: Name of the EK template, e.g. `L-1`.
    """

    ek: Public
    ak: Public
    template: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A credential to send, and what to keep: never the secret itself.

    Args:
        credential: For TPM2_ActivateCredential.
        expected_sha256: SHA-256 of the only proof that will be accepted, 32 bytes.
    """

    credential: Credential
    expected_sha256: bytes


@dataclass(frozen=True, slots=True)
class UnverifiedProof:
    """32 bytes that claim to be the HMAC."""

    hmac: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationClaims:
    """The AK of this Name is in the TPM of this EK; only `verify` says so.

    Args:
        ak_name: Name of the AK.
        ek_fingerprint: SHA-384 of the EK's SPKI, hex.
    """

    ak_name: bytes
    ek_fingerprint: str


def check_keys(ek_public: bytes, ak_public: bytes) -> CheckedKeys:
    """Parse two TPM2B_PUBLIC and check that they may be introduced as EK and AK.

    Raises:
        MalformedEvidence: One of them cannot be parsed.
        EKTemplateRejected: The EK equals no TCG template, or its key is weak.
        AKAttributesRejected: The AK is not a restricted signing key fixed to its TPM.
    """
    ek = parse_public(ek_public)
    # 1. ek-template: an EK by its whole public area. Otherwise any decryption key could play one.
    template = match_ek_template(ek)
    ek_spki = ek.spki_der()
    # 2. ek-weak: not from the broken generator. Otherwise its private half may be known.
    if ek.type == Alg.RSA and is_roca_weak(int.from_bytes(ek.modulus)):
        raise EKTemplateRejected("the EK's modulus has the ROCA fingerprint (CVE-2017-15361)")
    ak = parse_public(ak_public)
    check_ak(ak)
    # 6. ak-public: another key than the EK.
    if ak.spki_der() == ek_spki:
        raise AKAttributesRejected("AK and EK are the same key")
    return CheckedKeys(ek=ek, ak=ak, template=template.name)


def offer(
    keys: CheckedKeys, *, secret: bytes, machine_id: str, challenge_id: str, primary: str | None = None
) -> Offer:
    """Seal *secret* to the EK and the AK's Name, and compute what the right answer is.

    Args:
        keys: Result of `check_keys`.
        secret: 32 bytes from a CSPRNG, used for nothing else and forgotten afterwards.
        machine_id: UUID text.
        challenge_id: 32 hex.
        primary: Fingerprint of the EK that this one is shown beside; None where it is the first itself.
    """
    name = keys.ak.name
    expected = proof(
        secret,
        machine_id=machine_id,
        challenge_id=challenge_id,
        ek_public=keys.ek.tpm2b(),
        ak_name=name,
        primary=primary,
    )
    return Offer(
        credential=make_credential(keys.ek, name, secret), expected_sha256=hashlib.sha256(expected).digest()
    )


def proof(
    secret: bytes,
    *,
    machine_id: str,
    challenge_id: str,
    ek_public: bytes,
    ak_name: bytes,
    primary: str | None = None,
) -> bytes:
    """Return the HMAC-SHA256, 32 bytes, by which a node shows that it recovered *secret* (PROTOCOL §2).

    Args:
        secret: What TPM2_ActivateCredential yielded.
        machine_id: As answered at the introduction, ASCII.
        challenge_id: Likewise.
        ek_public: TPM2B_PUBLIC of the EK, as sent.
        ak_name: Name of the AK, nameAlg u16 ‖ digest.
        primary: Fingerprint of the EK that this one is shown beside, hex; None where it is the first itself.
    """
    said = (machine_id, challenge_id, *(() if primary is None else (primary,)))
    context = _CONTEXT if primary is None else _ALTERNATIVE
    message = b"\0".join([context, *(each.encode("ascii") for each in said), b""])
    return hmac.digest(secret, message + hashlib.sha256(ek_public).digest() + ak_name, "sha256")


def parse(data: bytes) -> UnverifiedProof:
    """Parse a proof: exactly 32 bytes.

    Raises:
        MalformedEvidence: Of another length.
    """
    if len(data) != PROOF_BYTES:
        raise MalformedEvidence(f"proof of {len(data)} bytes, {PROOF_BYTES} expected")
    return UnverifiedProof(data)


def verify(
    unverified: UnverifiedProof, *, expected_sha256: bytes, ak_name: bytes, ek_fingerprint: str
) -> ActivationClaims:
    """Check the proof against what `offer` expected (check 12, `ak-activate`).

    Args:
        unverified: Result of `parse`.
        expected_sha256: From the offer; it binds secret, machine, challenge, EK and AK.
        ak_name: Name of the AK that was offered.
        ek_fingerprint: Fingerprint of the EK that was offered.

    Raises:
        ActivationFailed: Not by the TPM that holds both keys.
    """
    # 12. Constant time: a wrong proof tells nothing about the right one.
    if not hmac.compare_digest(hashlib.sha256(unverified.hmac).digest(), expected_sha256):
        raise ActivationFailed("the proof was not made with the secret sealed to this EK and AK")
    return ActivationClaims(ak_name=ak_name, ek_fingerprint=ek_fingerprint)
