"""Time: read at the edge, once, and passed down as an aware UTC `datetime`.

Inside, an instant is a `datetime`; in the database it is an integer of microseconds since the Unix epoch;
on the wire it is RFC 3339 with `Z`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Protocol

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_RFC3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,12})?(?:Z|[+-][0-9]{2}:[0-9]{2})\Z"
)


class Clock(Protocol):
    """Something that tells the time."""

    def now(self) -> datetime:
        """Return the present instant, aware, UTC."""
        ...


class SystemClock:
    """The clock of this computer."""

    def now(self) -> datetime:
        """Return the present instant, aware, UTC."""
        return datetime.now(UTC)


def to_micros(at: datetime) -> int:
    """Return *at* as whole microseconds since 1970-01-01T00:00:00Z."""
    return (at - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """Return the instant that is *micros* microseconds after 1970-01-01T00:00:00Z."""
    return _EPOCH + timedelta(microseconds=micros)


def rfc3339(at: datetime) -> str:
    """Write *at* with six digits of fraction and `Z`, e.g. `2026-11-21T03:42:00.000000Z`.

    This exact form enters the audit hash (spec DELIVERY-AND-OPERATORS §19.1): it never changes.
    """
    # Not strftime: its %Y leaves out leading zeros on some systems.
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def parse_rfc3339(text: str) -> datetime:
    """Read an RFC 3339 instant with capital `T` and `Z`; digits beyond microseconds are cut off.

    Raises:
        ValueError: Not RFC 3339, without an offset, no such day or time, or outside the years 1 to 9999 in UTC.
    """
    # fromisoformat reads far more of ISO 8601 than RFC 3339 allows: weeks, basic forms, seconds left out.
    if not _RFC3339.match(text):
        raise ValueError(f"not an RFC 3339 time: {text[:40]!r}")
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except OverflowError as e:
        raise ValueError(f"time outside the calendar: {text[:40]!r}") from e


def parse_http_date(value: str | None) -> datetime | None:
    """Read an HTTP date (RFC 9110 §5.6.7), e.g. of a `Date` header, as UTC; None where unreadable."""
    if value is None:
        return None
    from email.utils import parsedate_to_datetime  # imports a lot, for the few who read such a field

    try:
        when = parsedate_to_datetime(value)
        return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
