"""Nonces of evidence: each for one issuer and one purpose, and spent by one bundle."""

# Algorithms for: digest
from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta
from typing import Final

from attestation.api import HSMNonce as Shown
from attestation.api import HSMNonceRequest
from attestation.errors import RateLimited
from attestation.store import HSMNonce, RateLimit, Tx
from attestation.wire import b64encode
from attestation_service.auth import ControllerDep
from attestation_service.resources import Res

NONCE_BYTES: Final = 32
LIFETIME: Final = timedelta(hours=24)
"""An administrator wraps a key within a day, or evidence is made anew (HSM-AND-KUBERNETES §10, `validFor`)."""
ISSUED: Final = RateLimit(requests=1_000, per_seconds=3_600)


async def issue(request: HSMNonceRequest, *, res: Res, who: ControllerDep) -> Shown:
    """Return a fresh nonce for evidence of one issuer.

    It is good for a day, for one QuoteAttestation of that issuer and purpose, and for one bundle.
    """
    at = res.clock.now()
    nonce = secrets.token_bytes(NONCE_BYTES)
    row = HSMNonce(
        nonce_sha256=digest_of(nonce),
        cluster_id=who.cluster.cluster_id,
        signer_uid=request.signer_uid,
        purpose=request.purpose,
        issued_at=at,
        expires_at=at + LIFETIME,
    )

    def work(tx: Tx) -> None:
        if res.settings.rate_limits:
            counted = f"hsm-nonces:{row.cluster_id}"
            seconds = tx.rate_limits.check(counted, at, ISSUED)
            if seconds is not None:
                raise RateLimited("too many nonces of this cluster", retry_after_seconds=seconds)
            tx.rate_limits.take(counted, at, ISSUED)
        tx.hsm_quotes.issue(row)

    await res.store.write(work)
    return Shown(nonce=b64encode(nonce), expires_at=row.expires_at)


def digest_of(nonce: bytes) -> str:
    """Return the name of a nonce here: its SHA-256, hex. The nonce itself is not kept."""
    return hashlib.sha256(nonce).hexdigest()
