"""Break-glass: one shared bearer token for the day when nothing else works (DELIVERY-AND-OPERATORS §11)."""

from __future__ import annotations

import hmac

from pydantic import SecretStr

IDENTITY = "SYSTEM"
MAX_TOKEN_CHARACTERS = 4096


def matches(authorization: str, token: SecretStr) -> bool:
    """Return True if *authorization* is `Bearer <token>`, compared in constant time."""
    scheme, _, presented = authorization.partition(" ")
    if scheme.lower() != "bearer" or len(presented) > MAX_TOKEN_CHARACTERS:
        return False
    return hmac.compare_digest(
        presented.strip().encode("utf-8", "surrogateescape"), token.get_secret_value().encode("utf-8")
    )
