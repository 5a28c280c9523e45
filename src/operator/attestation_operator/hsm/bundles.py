"""The Secret in which administrators hand a CA key over: read, and compared with what was asked (§13). Pure.

The order of the checks is that of the specification. Here are those before the nonce is spent, and the one right after
it; then the token unwraps (`keks`). Whatever is wrong before the token is asked is `BundleRejected`.
"""

# Algorithms for: provisioning-bundle
from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from attestation.errors import BundleRejected
from attestation.keys.provisioning import (
    BUNDLE_KEY,
    MAX_BUNDLE_BYTES,
    MAX_SIGNATURE_CHARACTERS,
    MAX_SIGNATURES,
    SECRET_TYPE,
    SIGNATURES_KEY,
    Bundle,
    BundleCase,
    SignedBundle,
    match,
    read_bundle,
)
from attestation.quote import Envelope, evidence_digest, key_fingerprint
from attestation_operator.crds.hsm import ProvisioningSpec
from attestation_operator.objects import Raw

_MAX_SIGNATURES_BYTES: Final = MAX_SIGNATURES * (MAX_SIGNATURE_CHARACTERS + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a Secret holds. Nothing in it may be believed yet.

    Args:
        text: `bundle.json`.
        signatures: The lines of `bundle.jws`.
    """

    text: bytes
    signatures: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """What the audit calls it."""
        return hashlib.sha256(self.text).hexdigest()


def is_bundle(secret: Raw) -> bool:
    """Whether a Secret is of the type that carries a bundle: no other is read, nor deleted."""
    return secret.get("type") == SECRET_TYPE


def read_secret(secret: Raw) -> Given:
    """Return what a Secret holds.

    Raises:
        BundleRejected: It is of another type, or has not both members.
    """
    if not is_bundle(secret):
        raise BundleRejected(f"the Secret is not of type {SECRET_TYPE}")
    data = secret.get("data") or {}
    text = _member(data, BUNDLE_KEY, MAX_BUNDLE_BYTES)
    try:
        lines = _member(data, SIGNATURES_KEY, _MAX_SIGNATURES_BYTES).decode("ascii").split()
    except UnicodeDecodeError as e:
        raise BundleRejected(f"{SIGNATURES_KEY} is not ASCII") from e
    return Given(text=text, signatures=tuple(lines))


def _member(data: Mapping[str, object], name: str, max_bytes: int) -> bytes:
    value = data.get(name)
    if not isinstance(value, str) or len(value) > (max_bytes + 2) // 3 * 4:
        raise BundleRejected(f"the Secret has no {name} of at most {max_bytes} bytes")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as e:
        raise BundleRejected(f"{name} is not base64") from e


def judged(
    given: Given, asked: ProvisioningSpec, envelope: Envelope, *, qa_uid: str, signer_uid: str, at: datetime
) -> SignedBundle:
    """Return a bundle that enough of the issuer's signers signed, for this question and now.

    Args:
        given: What was handed over.
        asked: What the issuer says of it.
        envelope: Of the QuoteAttestation.
        qa_uid: Its UID.
        signer_uid: Of the issuer.
        at: Now.

    Raises:
        BundleRejected: The only way to fail.
    """
    # 1. By whom the issuer lists: until this holds, nothing in it is read.
    signed = read_bundle(
        given.text, given.signatures, signers=frozenset(asked.signers), required=asked.required_signatures
    )
    # 2. For this question and no other, and now. Which certificate is the issuer's is asked after the nonce is spent.
    case = BundleCase(
        signer_uid=signer_uid,
        qa_uid=qa_uid,
        nonce=envelope.nonce,
        evidence_digest=evidence_digest(envelope),
        bound_key_fingerprint=key_fingerprint(envelope.spki),
        oaep_hash=asked.oaep_hash,
        expires_at=envelope.expires_at,
        ca_certificate_sha256=None,
    )
    match(signed, case, at=at)
    return signed


def demand_certificate(bundle: Bundle, asked: ProvisioningSpec) -> None:
    """Check that a bundle brings the CA that the issuer was promised.

    Raises:
        BundleRejected: It brings another one.
    """
    if asked.ca_cert_sha256 is None:
        return
    if not hmac.compare_digest(hashlib.sha256(bundle.chain[0]).hexdigest(), asked.ca_cert_sha256):
        raise BundleRejected("another CA certificate than the issuer expects")
