"""Attestation results that somebody signed: believed only under keys that the reader pinned."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from attestation.errors import ResultTokenRejected
from attestation.keys.jws import JWSRejected, verify_jwt
from attestation.results.ear import EAR, TYP, parse_ear

LEEWAY: Final = timedelta(seconds=60)
"""How far the clock of the reader may be behind that of the service."""


def verify_ear(
    token: str, *, jwks: dict[str, Any], at: datetime, issuer: str | None, nonce: str | None
) -> EAR:
    """Return what *token* says, once it is proven that the holder of a key in *jwks* said it, and says it still.

    Args:
        token: Compact JWS, ES384, `typ` eat+jwt, at most 64 KiB.
        jwks: The pinned JWK set.
        at: The instant to verify at, UTC.
        issuer: URL of the service that must have issued it; None only where the keys alone say who it is.
        nonce: The challenge that it must answer, as text; None only where the reader gave none.

    Raises:
        ResultTokenRejected: Which of these does not hold, or which rule of the profile it breaks.
    """
    # 1. Signed, by a pinned key, as a result. Until this holds, no member is ours to read.
    try:
        claims = verify_jwt(token, jwks, typ=TYP)
    except JWSRejected as e:
        raise ResultTokenRejected(str(e)) from e
    # 2. Of a form whose meaning is defined. Otherwise a missing member would be read as good news.
    ear = parse_ear(claims)
    # 3. By the service that is meant: one key may serve several.
    if issuer is not None and ear.issuer != issuer:
        raise ResultTokenRejected("the result was issued by another service")
    # 4. Of now: trust expires.
    if at >= ear.expires_at:
        raise ResultTokenRejected("the result has expired")
    if ear.issued_at > at + LEEWAY:
        raise ResultTokenRejected("the result is of the future")
    # 5. In answer to this reader. Otherwise an older result of the machine, not yet expired, would do.
    if nonce is not None and ear.nonce != nonce:
        raise ResultTokenRejected("the result answers another challenge")
    return ear
