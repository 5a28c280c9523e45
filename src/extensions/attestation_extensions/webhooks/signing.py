"""Signatures of deliveries: Standard Webhooks 1.0.0, and the one that the seed sent beside it. Pure."""

# Algorithms for: webhook
from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from attestation.errors import RequestInvalid

SECRET_BYTES: Final = 32
LENGTHS: Final = range(24, 65)
"""Bytes of a secret (Standard Webhooks 1.0.0)."""
PREFIX: Final = "whsec_"
USER_AGENT: Final = "ITL-Attestation-Webhooks/1.0"


def new_secret() -> bytes:
    """Return a fresh secret of 32 bytes."""
    return secrets.token_bytes(SECRET_BYTES)


def secret_text(secret: bytes) -> str:
    """Return a secret as receivers take it: `whsec_` and base64."""
    return PREFIX + base64.b64encode(secret).decode("ascii")


def read_secret(text: str) -> bytes:
    """Return a secret that a receiver made: `whsec_` and base64 of 24 to 64 bytes.

    Raises:
        RequestInvalid: It is not one; the message does not say it.
    """
    try:
        secret = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if not text.startswith(PREFIX) or len(secret) not in LENGTHS:
        raise RequestInvalid(
            f"secret: {PREFIX} and base64 of {LENGTHS[0]} to {LENGTHS[-1]} bytes are expected"
        )
    return secret


def headers(
    body: bytes, *, delivery_id: str, event: str, at: datetime, keys: Sequence[bytes]
) -> list[tuple[str, str]]:
    """Return the headers of one attempt.

    Args:
        body: Exactly what is sent.
        delivery_id: The same at each attempt; no dot in it.
        event: Its name.
        at: When this attempt is made.
        keys: The secret, and the one before it while it is exchanged; two signatures then.
    """
    timestamp = str(int(at.timestamp()))
    signed = b".".join((delivery_id.encode("ascii"), timestamp.encode("ascii"), body))
    signatures = (base64.b64encode(hmac.digest(key, signed, "sha256")).decode("ascii") for key in keys)
    return [
        ("content-type", "application/json"),
        ("user-agent", USER_AGENT),
        ("webhook-id", delivery_id),
        ("webhook-timestamp", timestamp),
        ("webhook-signature", " ".join(f"v1,{each}" for each in signatures)),
        ("x-webhook-event", event),
        ("x-webhook-signature", f"sha256={hmac.digest(keys[0], body, 'sha256').hex()}"),
    ]
