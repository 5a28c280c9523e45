"""Nonces of evidence: each for one question, and spent by one bundle.

What is asked is said when the nonce is given out: purpose, issuer, type of evidence, policy, and which machine's TPM
certifies. Evidence that names it later chooses none of these.
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta

from attestation.api import HSMNonce as Shown
from attestation.api import HSMNonceRequest
from attestation.quote.envelope import NONCE_BYTES
from attestation.store import HSMNonce, Tx
from attestation.wire import b64encode
from attestation_service.auth import ControllerDep
from attestation_service.hsm import bounds
from attestation_service.resources import Res


async def issue(request: HSMNonceRequest, *, res: Res, who: ControllerDep) -> Shown:
    """Return a fresh nonce for evidence of one issuer.

    It is good for as long as the issuer waits, for one QuoteAttestation that answers exactly what was asked here, and
    for one bundle.

    Raises:
        RateLimited: The cluster has too many, or asks too often.
    """
    at = res.clock.now()
    nonce = secrets.token_bytes(NONCE_BYTES)
    row = HSMNonce(
        nonce_sha256=digest_of(nonce),
        cluster_id=who.cluster.cluster_id,
        signer_uid=request.signer_uid,
        purpose=request.purpose,
        issued_at=at,
        # Whole seconds: the QuoteAttestation says this very instant, as Kubernetes writes it.
        expires_at=at.replace(microsecond=0) + timedelta(seconds=request.valid_for_seconds),
        evidence_type=request.evidence_type,
        policy_ref=request.policy,
        ak_name=bytes.fromhex(request.ak_name) if request.ak_name is not None else None,
    )

    def work(tx: Tx) -> None:
        of_issuer = f"hsm-nonces:{row.cluster_id}/{row.signer_uid}"
        bounds.take(tx, of_issuer, bounds.NONCES_OF_ISSUER, "nonces of this issuer", res.settings, at)
        counted = f"hsm-nonces:{row.cluster_id}"
        bounds.take(tx, counted, bounds.NONCES_ISSUED, "nonces", res.settings, at)
        bounds.demand_room_for_nonce(tx, row.cluster_id, at)
        tx.hsm_quotes.issue(row)

    await res.store.write(work)
    return Shown(nonce=b64encode(nonce), expires_at=row.expires_at)


def digest_of(nonce: bytes) -> str:
    """Return the name of a nonce here: its SHA-256, hex. The nonce itself is not kept."""
    return hashlib.sha256(nonce).hexdigest()
