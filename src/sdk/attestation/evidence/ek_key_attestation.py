"""The second protocol: the EK itself vouches for the AK, the clock and the firmware (TPM.md §3.3).

The verifier makes an HMAC key K and seals it to the EK (TPM2_Import). Only that TPM can load K, and because K is
restricted the TPM signs nothing with it but statements of its own. TPM2_Certify of the AK under K is therefore a
TPMS_ATTEST that the EK authenticates: firmwareVersion, clock and counters in it are not obfuscated, as they are for
signers outside the endorsement hierarchy, and were stated by the TPM that the EK certificate is about.

K is used for one statement and forgotten. Compare google/go-attestation `attest/ek_challenge.go`.
"""

# Algorithms for: node-proof
from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Final

from attestation.errors import (
    AttestHeaderInvalid,
    ChallengeMismatch,
    KeyCertificationRejected,
    MalformedEvidence,
    SignatureInvalid,
)
from attestation.tpm import (
    TPM_GENERATED,
    Alg,
    Attest,
    AttestType,
    CertifyInfo,
    Hierarchy,
    Public,
    Signature,
    parse_attest,
    parse_signature,
    qualified_name_of_child,
    qualified_name_of_primary,
)
from attestation.tpm.duplicate import SECRET_BYTES, duplicate_hmac_key, hmac_key_public

MEDIA_TYPE = "application/vnd.itl.tpm-ek-certify"

KIND: Final = "tpm-ek-certify"
"""How a challenge asks for it."""
OFFER_SECRET_BYTES: Final = 2 * SECRET_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOffer:
    """A key to send: members of `ek_challenge`, each with its size.

    Args:
        object_public: TPM2B_PUBLIC of the HMAC key.
        duplicate: TPM2B_PRIVATE.
        in_sym_seed: TPM2B_ENCRYPTED_SECRET.
    """

    object_public: bytes
    duplicate: bytes
    in_sym_seed: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedKeyCertification:
    """A parsed TPMS_ATTEST of type certify with an HMAC over it. Nothing in it may be believed yet.

    Args:
        signed: The TPMS_ATTEST exactly as received.
        attest: Its fields.
        info: What it certifies.
        signature: The parsed TPMT_SIGNATURE.
    """

    signed: bytes
    attest: Attest
    info: CertifyInfo
    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCertificationClaims:
    """What the TPM of an EK said of itself and of the AK; only `verify` builds one.

    Args:
        ak_name: Name of the AK, which is loaded in that TPM.
        ek_fingerprint: SHA-384 of the EK's SPKI, hex.
        firmware_version: u64, as the TPM has it.
        clock_ms: Milliseconds, u64.
        reset_count: u32.
        restart_count: u32.
        safe: The clock has not gone back since a power loss.
    """

    ak_name: bytes
    ek_fingerprint: str
    firmware_version: int
    clock_ms: int
    reset_count: int
    restart_count: int
    safe: bool


def offer(ek: Public, secret: bytes) -> KeyOffer:
    """Seal the key in *secret* to *ek*.

    Args:
        ek: Public area of the machine's EK; it equals a TCG template.
        secret: 64 bytes from a CSPRNG: K ‖ seedValue. Kept with the challenge, used for one `verify`, deleted.

    Raises:
        MalformedEvidence: *ek* cannot be encapsulated to.
    """
    key, seed_value = _split(secret)
    sealed = duplicate_hmac_key(ek, key, seed_value)
    return KeyOffer(
        object_public=hmac_key_public(key, seed_value).tpm2b(),
        duplicate=sealed.duplicate,
        in_sym_seed=sealed.encrypted_seed,
    )


def parse(certify_info: bytes, signature: bytes) -> UnverifiedKeyCertification:
    """Parse a TPMS_ATTEST of type certify and the TPMT_SIGNATURE over it.

    Raises:
        MalformedEvidence: The only way to fail. A statement of another type is malformed here.
    """
    attest = parse_attest(certify_info)
    info = attest.attested
    if not isinstance(info, CertifyInfo):
        raise MalformedEvidence(f"TPMS_ATTEST is of type 0x{attest.type:04x}, not a certification")
    return UnverifiedKeyCertification(
        signed=certify_info, attest=attest, info=info, signature=parse_signature(signature)
    )


def verify(
    unverified: UnverifiedKeyCertification, *, secret: bytes, challenge: bytes, ek: Public, ak: Public
) -> KeyCertificationClaims:
    """Verify a certification of *ak* under the key that `offer` sealed to *ek*.

    Args:
        unverified: Result of `parse`.
        secret: The 64 bytes of the offer.
        challenge: The bytes that we issued with it.
        ek: The machine's EK.
        ak: Its activated AK.

    Raises:
        SignatureInvalid: Not made with this key.
        AttestHeaderInvalid: Not made by a TPM itself, or by a key that stands elsewhere.
        ChallengeMismatch: Fresh for somebody else, or not fresh.
        KeyCertificationRejected: About another key, or about one outside a TPM.
    """
    key, seed_value = _split(secret)
    attest, signature = unverified.attest, unverified.signature
    # 1. HMAC with SHA-256 under K, over the digest of exactly these bytes; constant time. Only the TPM of the EK
    #    could learn K; until this holds, no field is ours to read. Nothing in the signature chooses how.
    if (signature.alg, signature.hash_alg) != (Alg.HMAC, Alg.SHA256):
        raise SignatureInvalid("the certification carries no HMAC with SHA-256")
    expected = hmac.digest(key, hashlib.sha256(unverified.signed).digest(), "sha256")
    if not hmac.compare_digest(expected, signature.signature):
        raise SignatureInvalid("the certification was not made with the key sealed to this EK")
    # 2. The TPM made the statement itself: K is restricted, it signs no foreign bytes that begin so.
    if attest.magic != TPM_GENERATED:
        raise AttestHeaderInvalid(f"magic 0x{attest.magic:08x} is not that of a TPM")
    # 3. It certifies. Otherwise a quote under K would pass for it.
    if attest.type != AttestType.CERTIFY:
        raise AttestHeaderInvalid(f"type 0x{attest.type:04x} is no certification")
    # 4. For this challenge. K is fresh, but a node might keep it; an empty challenge never counts.
    if not challenge or not hmac.compare_digest(attest.extra_data, challenge):
        raise ChallengeMismatch("the certification answers another challenge")
    # 5. It is about the activated AK. Otherwise any key in this TPM would be vouched for.
    if not hmac.compare_digest(unverified.info.name, ak.name):
        raise KeyCertificationRejected("another key than the activated AK was certified")
    # 6. The AK stands under a primary seed: an external key has its bare Name for qualified name.
    if unverified.info.qualified_name in (b"", ak.name):
        raise KeyCertificationRejected("the certified key is outside the TPM")
    # 7. K was loaded under the EK, and nowhere else. So the EK's certificate is about this very TPM, and clock and
    #    firmware are not obfuscated.
    ek_qualified_name = qualified_name_of_primary(Hierarchy.ENDORSEMENT, ek.name)
    signer = qualified_name_of_child(ek_qualified_name, hmac_key_public(key, seed_value).name)
    if not hmac.compare_digest(attest.qualified_signer, signer):
        raise AttestHeaderInvalid("qualifiedSigner is not the key sealed to this EK, under this EK")
    return KeyCertificationClaims(
        ak_name=ak.name,
        ek_fingerprint=ek.fingerprint(),
        firmware_version=attest.firmware_version,
        clock_ms=attest.clock_ms,
        reset_count=attest.reset_count,
        restart_count=attest.restart_count,
        safe=attest.safe,
    )


def _split(secret: bytes) -> tuple[bytes, bytes]:
    if len(secret) != OFFER_SECRET_BYTES:
        raise MalformedEvidence(f"the secret of an offer has {OFFER_SECRET_BYTES} bytes")
    return secret[:SECRET_BYTES], secret[SECRET_BYTES:]
