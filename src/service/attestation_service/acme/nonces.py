"""Nonces against replay (RFC 8555, 6.5): each is good once, and costs nothing before it is used.

    nonce = base64url(u32 end ‖ 12 random bytes ‖ the first 16 bytes of HMAC-SHA256 of both)

The key is derived from the service's, so any worker and replica knows what another one gave. Only what was used is a
row, until its end: who fetches nonces without using them fills nothing.
"""

# Algorithms for: acme-account
from __future__ import annotations

import hashlib
import hmac
import secrets
from datetime import UTC, datetime, timedelta
from typing import Final

from attestation.errors import MalformedEvidence, SignerUnavailable
from attestation.wire import b64url_decode, b64url_encode, u32
from attestation_service.acme.problems import Refused
from attestation_service.resources import Resources

LIFETIME: Final = timedelta(hours=1)
_PURPOSE: Final = b"itl-acme-nonce/v1"
_END_BYTES: Final = 4
_HEAD_BYTES: Final = _END_BYTES + 12
_MAC_BYTES: Final = 16


def secret_of(res: Resources, purpose: bytes) -> bytes:
    """Return what only this service can derive for *purpose*.

    Raises:
        SignerUnavailable: Its key is away, or its device only signs.
    """
    found = res.service_keys.secret(purpose)
    if found is None:
        raise SignerUnavailable("the service's key gives nothing to derive from: it is away, or only signs")
    return found


def make(res: Resources, at: datetime) -> str:
    """Return a fresh nonce.

    Raises:
        SignerUnavailable: As of `secret_of`.
    """
    head = u32(int((at + LIFETIME).timestamp())) + secrets.token_bytes(_HEAD_BYTES - _END_BYTES)
    return b64url_encode(head + _mac(res, head))


def end_of(nonce: str, res: Resources, at: datetime) -> datetime:
    """Return when a nonce of ours ends.

    Raises:
        Refused: It is none of ours, or over.
        SignerUnavailable: As of `secret_of`.
    """
    try:
        found = b64url_decode(nonce, "nonce", max_bytes=_HEAD_BYTES + _MAC_BYTES)
    except MalformedEvidence:
        found = b""
    head = found[:_HEAD_BYTES]
    if not hmac.compare_digest(_mac(res, head), found[_HEAD_BYTES:]):
        raise Refused("badNonce", "the nonce is none of ours")
    end = datetime.fromtimestamp(int.from_bytes(head[:_END_BYTES]), UTC)
    if end <= at:
        raise Refused("badNonce", "the nonce is over")
    return end


def _mac(res: Resources, head: bytes) -> bytes:
    return hmac.digest(secret_of(res, _PURPOSE), head, hashlib.sha256)[:_MAC_BYTES]
