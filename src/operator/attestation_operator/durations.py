"""Durations as Go writes them (time.ParseDuration), which is how Kubernetes writes them: `2m`, `1h30m`, `500ms`."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from typing import Final

_UNITS: Final = {
    "ns": Decimal("0.001"),
    "us": Decimal(1),
    "µs": Decimal(1),
    "μs": Decimal(1),
    "ms": Decimal(1_000),
    "s": Decimal(1_000_000),
    "m": Decimal(60_000_000),
    "h": Decimal(3_600_000_000),
}
"""Unit -> microseconds."""
_NUMBER: Final = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"
_UNIT: Final = "|".join(sorted(_UNITS, key=len, reverse=True))
PATTERN: Final = rf"^(?:0|(?:{_NUMBER}(?:{_UNIT}))+)$"
"""What is read; a schema says the same."""
MAX_LENGTH: Final = 64
_PART: Final = re.compile(rf"({_NUMBER})({_UNIT})")
_WHOLE: Final = re.compile(PATTERN.removesuffix("$") + r"\Z")


class NotADuration(ValueError):
    """A text is no duration."""


def parse_duration(text: str) -> timedelta:
    """Read a duration of Go: numbers, each with a unit, in any order; not negative, since none of ours can be.

    Less than a microsecond counts as nothing.

    Raises:
        NotADuration: It is none.
    """
    if len(text) > MAX_LENGTH or not _WHOLE.match(text):
        raise NotADuration(f"{text[:MAX_LENGTH]!r} is no duration like 30s, 2m or 1h30m")
    parts = (Decimal(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    # So few digits are less than 300,000,000 days: a timedelta holds them.
    return timedelta(microseconds=int(sum(parts)))
