"""What a token says of itself. Nothing in it is believed: only the service verifies tokens."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping

LONGEST_TOKEN = 64 << 10
"""Characters. Tokens of operators with hundreds of roles have about 10,000."""

Claims = Mapping[str, object]


def unverified_claims(token: str) -> Claims | None:
    """Return the claims of a JWT without verifying it (RFC 7519); None where it is not one.

    Args:
        token: Three base64url parts without padding; the middle one is a JSON object.
    """
    parts = token.split(".")
    if len(token) > LONGEST_TOKEN or len(parts) != 3:
        return None
    try:
        raw = base64.b64decode(parts[1] + "=" * (-len(parts[1]) % 4), altchars=b"-_", validate=True)
        claims = json.loads(raw)
    except (binascii.Error, ValueError, RecursionError):
        return None
    return claims if isinstance(claims, dict) else None


def text_claim(claims: Claims | None, name: str) -> str | None:
    """Return the claim *name* where it is a string of 1 to 512 characters."""
    value = (claims or {}).get(name)
    return value if isinstance(value, str) and 0 < len(value) <= 512 else None


def number_claim(claims: Claims | None, name: str) -> float | None:
    """Return the claim *name* where it is a number that can be an instant (seconds since 1970)."""
    value = (claims or {}).get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < 1 << 40 else None


def roles(claims: Claims | None) -> list[str]:
    """Return the roles in Keycloak's two places: `realm_access.roles`, and `client:role` of each client."""
    claims = claims or {}
    found = _role_list(claims.get("realm_access"))
    clients = claims.get("resource_access")
    if isinstance(clients, dict):
        for client, access in clients.items():
            found += [f"{client}:{role}" for role in _role_list(access)]
    return found


def _role_list(access: object) -> list[str]:
    listed = access.get("roles") if isinstance(access, dict) else None
    return [role for role in listed if isinstance(role, str)] if isinstance(listed, list) else []
