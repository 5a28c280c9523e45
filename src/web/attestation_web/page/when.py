"""Instants and identifiers as people read them; what is exact is one hover, or one key, away."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from attestation.client.text import ago, clean
from attestation.clock import rfc3339

SHORT: Final = 12
_IDENTIFIER: Final = re.compile(r"[0-9a-f]{16,}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def instant(value: datetime | str | None) -> datetime | None:
    """Return *value* as an instant; a text of the service too. None where it is none."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if value is None:
        return None
    return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


def exact(value: datetime | str | None) -> str:
    """Return an instant to the second, UTC: `2026-11-26 11:18:03 UTC`."""
    found = instant(value)
    return "" if found is None else f"{found:%Y-%m-%d %H:%M:%S} UTC"


def machine_readable(value: datetime | str | None) -> str:
    """Return an instant as `<time datetime>` takes it."""
    found = instant(value)
    return "" if found is None else rfc3339(found)


def relative(value: datetime | str | None, now: datetime) -> str:
    """Return how far an instant is from *now*: `3 min ago`."""
    at = instant(value)
    return "just now" if at is not None and abs(now - at) < timedelta(seconds=1) else ago(at, now)


def short(value: str, size: int = SHORT) -> str:
    """Return the beginning of an identifier, clean, with an ellipsis where something is left out."""
    text = clean(value)
    return text if len(text) <= size + 1 else f"{text[:size]}…"


def is_identifier(value: str) -> bool:
    """True for a digest, a serial number in hex or a UUID: what nobody types by hand."""
    return _IDENTIFIER.fullmatch(value) is not None
