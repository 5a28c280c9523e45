"""What makes the trust bundle authentic to machines: a signature by the service's key, which they pinned (ADR 39).

Who trusts the bundle decides whose certificates are believed, so it may not rest on who carried it. One signature
serves everybody who asks within half a minute: strangers ask here, and the key signs orders too.
"""

# Algorithms for: digest
from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final
from weakref import WeakKeyDictionary

from attestation.keys import TRUST_BUNDLE_TYP, Signer
from attestation.store import IssuerPurpose
from attestation_service.resources import Resources

VALID_SECONDS: Final = 300
"""Longer than caches keep the answer, and short: whoever replays an old bundle brings back what was taken away."""
AGAIN: Final = timedelta(seconds=30)


@dataclass(slots=True)
class _Signed:
    """The last signature for each bundle, and who may make the next."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    made: dict[IssuerPurpose, tuple[str, datetime, str]] = field(default_factory=dict)


_BY_SIGNER: WeakKeyDictionary[Signer, _Signed] = WeakKeyDictionary()


async def sign_bundle(pem: bytes, purpose: IssuerPurpose, *, res: Resources) -> str:
    """Return the compact JWS over *pem*, from now or from less than half a minute ago.

    Raises:
        SignerUnavailable: The service's key cannot sign now.
    """
    signed = _BY_SIGNER.setdefault(res.signer, _Signed())
    digest = sha256(pem).hexdigest()
    async with signed.lock:
        at = res.clock.now()
        found = signed.made.get(purpose)
        if found is not None and found[0] == digest and found[1] <= at < found[1] + AGAIN:
            return found[2]
        issued = int(at.timestamp())
        claims = {
            "bundle_sha256": digest,
            "purpose": purpose,
            "iat": issued,
            "exp": issued + VALID_SECONDS,
        }
        token = await asyncio.to_thread(res.signer.sign_jwt, claims, typ=TRUST_BUNDLE_TYP)
        signed.made[purpose] = (digest, at, token)
        return token
