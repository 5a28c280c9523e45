"""Datetimes and timespans: read as literals have them, written as Kusto prints them. Both are whole microseconds.

Kusto counts ticks of 100 ns; the databases here keep microseconds, so what is finer is refused where it is written.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
DAY = 86_400_000_000
FIRST = -62_135_596_800_000_000
"""0001-01-01: the first datetime, and where `bin` begins to count."""
LAST = 253_402_300_799_999_999
"""The end of 9999."""
LONGEST = 922_337_203_685_477_580
"""The longest timespan: as many ticks as a long holds."""

UNITS = {
    **dict.fromkeys(("d", "day", "days"), DAY),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3_600_000_000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000_000),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1_000_000),
    **dict.fromkeys(("ms", "milli", "millis", "millisecond", "milliseconds"), 1_000),
    **dict.fromkeys(("micro", "micros", "microsecond", "microseconds"), 1),
}
"""What may follow a number in a timespan, and how many microseconds it is."""

_DATETIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[T ]([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,7}))?)?\s*(Z|[+-][0-9]{2}:[0-9]{2})?)?",
    re.ASCII,
)
_TIMESPAN = re.compile(
    r"(-?)(?:([0-9]{1,8})\.)?([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,7}))?)?", re.ASCII
)
_COUNTED = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?\s*([a-z]*)", re.ASCII)


def to_microseconds(at: datetime) -> int:
    """Return what *at*, aware, is as a datetime of a query."""
    return (at - EPOCH) // MICROSECOND


def parse_datetime(text: str) -> int:
    """Read `2026-01-02`, with a time, a fraction and an offset where there are any.

    Raises:
        ValueError: It is none, or finer than a microsecond; the message says which.
    """
    found = _DATETIME.fullmatch(text.strip())
    if found is None:
        raise ValueError("a datetime is written as 2026-01-31 or 2026-01-31T23:59:59.123456Z")
    *parts, fraction, offset = found.groups(default="0")
    zone = UTC
    if offset not in ("0", "Z"):
        hours, minutes = int(offset[1:3]), int(offset[4:6])
        if hours > 14 or minutes > 59:
            raise ValueError("an offset is at most 14 hours")
        zone = timezone((-1 if offset[0] == "-" else 1) * timedelta(hours=hours, minutes=minutes))
    try:
        at = datetime(*map(int, parts), tzinfo=zone)  # type: ignore[misc, arg-type]  # six numbers
    except ValueError as e:
        raise ValueError(f"there is no such datetime: {e}") from None
    return _within(to_microseconds(at) + _fraction(fraction), FIRST, LAST)


def parse_timespan(text: str) -> int:
    """Read `1.02:03:04.5`, `02:03`, `90m` or a number of days.

    Raises:
        ValueError: It is none, or finer than a microsecond; the message says which.
    """
    if found := _TIMESPAN.fullmatch(text.strip()):
        sign, days, hours, minutes, seconds, fraction = found.groups(default="0")
        if int(hours) > 23 or int(minutes) > 59 or int(seconds) > 59:
            raise ValueError("a timespan has at most 23 hours, 59 minutes and 59 seconds beside its days")
        whole = ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
        return _within(
            (-1 if sign == "-" else 1) * (whole * 1_000_000 + _fraction(fraction)), -LONGEST, LONGEST
        )
    if found := _COUNTED.fullmatch(text.strip()):
        sign, number, fraction, unit = found.groups(default="")
        return (-1 if sign else 1) * counted(number, fraction, unit or "d")
    raise ValueError("a timespan is written as 1d, 2h, 30m, 10s, 100ms or 1.02:03:04")


def counted(number: str, fraction: str, unit: str) -> int:
    """Return *number*.*fraction* of a unit.

    Raises:
        ValueError: There is no such unit, or the result is too long or finer than a microsecond.
    """
    if unit not in UNITS:
        raise ValueError(f"no unit of time is called {unit}; there are d, h, m, s, ms and microsecond")
    if len(number) > 20 or len(fraction) > 20:
        raise ValueError("a timespan has at most 20 digits")
    scaled = int(number + fraction) * UNITS[unit]
    if scaled % 10 ** len(fraction):
        raise ValueError("finer than a microsecond")
    return _within(scaled // 10 ** len(fraction), -LONGEST, LONGEST)


def print_datetime(value: int, *, digits: int) -> str:
    """Write a datetime with so many digits of its second, 6 or 7."""
    at = EPOCH + timedelta(microseconds=value)
    return f"{at:%Y-%m-%dT%H:%M:%S}".rjust(19, "0") + f".{at.microsecond:06}".ljust(digits + 1, "0") + "Z"


def print_timespan(value: int) -> str:
    """Write a timespan as Kusto does: `1.02:03:04.5670000`, the days and the fraction where there are any."""
    seconds, fraction = divmod(abs(value), 1_000_000)
    days, seconds = divmod(seconds, 86_400)
    return (
        ("-" if value < 0 else "")
        + (f"{days}." if days else "")
        + f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        + (f".{fraction:06}0" if fraction else "")
    )


def _fraction(digits: str) -> int:
    """Return the microseconds of up to seven digits after the point."""
    if digits.ljust(7, "0")[6] != "0":
        raise ValueError("finer than a microsecond")
    return int(digits[:6].ljust(6, "0"))


def _within(value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise ValueError("beyond what a datetime or timespan holds")
    return value
