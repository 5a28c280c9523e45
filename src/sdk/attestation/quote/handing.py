"""What an administrator does on their own computer: judge the evidence, wrap the CA key, say for whom it is (§13).

Pure but for the randomness of wrapping. Nothing is wrapped for evidence that was not verified here, by the policy that
the administrator gave: what a cluster says of its own verdict counts for nothing.
"""

# Algorithms for: wrapped-key
from __future__ import annotations

import hashlib
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from typing import Final, cast

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.errors import BundleRejected, CSRInvalid, KeyMismatch, KeyUnsupported
from attestation.hsm import OAEPHash
from attestation.keys.provisioning import Bundle, BundleCase
from attestation.keys.wrapping import wrap_key
from attestation.pki.external import read_ca
from attestation.pki.signature import load_spki
from attestation.quote.appraise import COMPAT_TIER, HARDWARE_TIER, QuoteResult
from attestation.quote.envelope import Envelope, Purpose, evidence_digest, key_fingerprint
from attestation.quote.hsm import TIER as HSM_TIER
from attestation.quote.tpm import RESIDENT_TIER
from attestation.results import Verdict

PROVEN: Final = frozenset({HARDWARE_TIER, RESIDENT_TIER, HSM_TIER})
"""Tiers for which a key is handed over without another word."""


def wrap_for(
    envelope: Envelope,
    result: QuoteResult,
    private_key: EllipticCurvePrivateKey | RSAPrivateKey,
    chain: Sequence[bytes],
    *,
    qa_uid: str,
    at: datetime,
    valid_for: timedelta,
    accepted: AbstractSet[str] = frozenset(),
) -> Bundle:
    """Return the bundle with *private_key* for the hardware whose evidence was verified.

    Args:
        envelope: What was judged.
        result: Of `appraise_quote` over this very envelope.
        private_key: Of the CA.
        chain: Certificates of the CA, DER, its own first.
        qa_uid: UID of the QuoteAttestation.
        at: Now, UTC.
        valid_for: How long the bundle counts, at most until the QuoteAttestation ends.
        accepted: Tiers that the administrator accepts though nothing proves where the key is: `tpm-machine`, `none`.

    Raises:
        BundleRejected: The evidence was not verified, is other evidence, of the lowest tier, or asks for no key.
        CAInvalid: The first certificate is not that of a CA that issues now.
        KeyMismatch: It is not that of *private_key*.
        KeyUnsupported: The bound key wraps nothing, or *private_key* is of a kind that tokens take not.
    """
    # 1. Only what was verified, and only this: a result of other evidence would vouch for another key.
    if result.verdict is not Verdict.VERIFIED:
        raise BundleRejected(f"the evidence is {result.verdict}: nothing is handed over")
    if (result.evidence_digest, result.bound_key_fingerprint) != (
        evidence_digest(envelope),
        key_fingerprint(envelope.spki),
    ):
        raise BundleRejected("the result is about other evidence")
    # 2. Evidence that binds neither issuer nor purpose may be replayed by anybody who saw it (§12).
    if result.tier == COMPAT_TIER:
        raise BundleRejected(
            f"evidence of tier {COMPAT_TIER} authenticates no issuer: nothing is handed over"
        )
    #    Nor is it for a key of which nobody knows where it is, unless the administrator says that this is good enough.
    if result.tier not in PROVEN | accepted:
        raise BundleRejected(f"evidence of tier {result.tier} does not prove that hardware holds the key")
    if envelope.purpose is not Purpose.KEY_PROVISIONING or envelope.oaep_hash is None:
        raise BundleRejected("the QuoteAttestation asks for no key")
    # 3. The key of the certificate, and a certificate that can issue: else the hardware would hold a useless key.
    ca = read_ca(chain[0], at=at)
    if private_key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) != ca.spki:
        raise KeyMismatch("the private key is not that of the CA certificate")
    # 4. Under the key that the evidence is about, and no other.
    try:
        kek = load_spki(envelope.spki)[0]
    except CSRInvalid as e:
        raise KeyUnsupported(f"the bound key: {e}") from e
    if not isinstance(kek, RSAPublicKey):
        raise KeyUnsupported("a key is wrapped under an RSA key")
    begin = at.replace(microsecond=0)
    return Bundle(
        blob=wrap_key(private_key, kek, oaep_hash=cast("OAEPHash", envelope.oaep_hash)),
        chain=tuple(chain),
        evidence_digest=result.evidence_digest,
        bound_key_fingerprint=result.bound_key_fingerprint,
        signer_uid=envelope.signer_uid,
        qa_uid=qa_uid,
        nonce=envelope.nonce,
        not_before=begin,
        not_after=min(begin + valid_for, envelope.expires_at),
        oaep_hash=envelope.oaep_hash,
    )


def case_of(envelope: Envelope, result: QuoteResult, *, qa_uid: str, ca_certificate: bytes) -> BundleCase:
    """Return what a bundle must answer, by the judgement of whoever is to sign it too.

    Args:
        envelope: What was judged.
        result: Of `appraise_quote` over this very envelope.
        qa_uid: UID of the QuoteAttestation.
        ca_certificate: Of the CA whose key it should have, DER.

    Raises:
        BundleRejected: The evidence was not verified, or asks for no key.
    """
    if result.verdict is not Verdict.VERIFIED:
        raise BundleRejected(f"the evidence is {result.verdict}: nothing is signed")
    if envelope.purpose is not Purpose.KEY_PROVISIONING or envelope.oaep_hash is None:
        raise BundleRejected("the QuoteAttestation asks for no key")
    return BundleCase(
        signer_uid=envelope.signer_uid,
        qa_uid=qa_uid,
        nonce=envelope.nonce,
        evidence_digest=result.evidence_digest,
        bound_key_fingerprint=result.bound_key_fingerprint,
        oaep_hash=envelope.oaep_hash,
        expires_at=envelope.expires_at,
        ca_certificate_sha256=hashlib.sha256(ca_certificate).digest(),
    )
