"""Instants: microseconds in the database, RFC 3339 on the wire."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.clock import (
    SystemClock,
    from_micros,
    parse_http_date,
    parse_rfc3339,
    rfc3339,
    to_micros,
)

AT = datetime(2026, 11, 21, 3, 42, 0, 1, tzinfo=UTC)


def test_the_written_form_is_pinned() -> None:
    """It enters the audit hash: six digits of fraction, `Z`, whatever the zone of the value."""
    assert rfc3339(AT) == "2026-11-21T03:42:00.000001Z"
    assert rfc3339(AT.astimezone(timezone(timedelta(hours=-7)))) == "2026-11-21T03:42:00.000001Z"
    assert rfc3339(datetime(2026, 1, 2, tzinfo=UTC)) == "2026-01-02T00:00:00.000000Z"
    assert rfc3339(datetime(7, 1, 2, tzinfo=UTC)) == "0007-01-02T00:00:00.000000Z"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-11-21T03:42:00.000001Z", AT),
        ("2026-11-21T05:12:00.000001+01:30", AT),
        ("2026-11-21T03:42:00.000001999Z", AT),
        ("2026-11-21T03:42:00Z", AT.replace(microsecond=0)),
        ("2026-11-21T03:42:00.5-00:00", AT.replace(microsecond=500_000)),
        ("9999-12-31T23:59:59Z", datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
    ],
)
def test_what_is_read(text: str, at: datetime) -> None:
    """Any offset, up to twelve digits of fraction."""
    assert parse_rfc3339(text) == at
    assert parse_rfc3339(text).tzinfo is UTC


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2026-11-21",
        "2026-11-21T03:42:00",
        "2026-11-21T03:42Z",
        "2026-11-21T03Z",
        "20261121T034200Z",
        "2026-W47-6T03:42:00Z",
        "2026-325T03:42:00Z",
        "2026-11-21 03:42:00Z",
        "2026-11-21t03:42:00Z",
        "2026-11-21T03:42:00z",
        "2026-11-21T03:42:00,5Z",
        "2026-11-21T03:42:00.Z",
        "2026-11-21T03:42:00+0100",
        "2026-11-21T03:42:00+01",
        "2026-11-21T03:42:00+01:00:01",
        "2026-11-21T03:42:00Z\n",
        " 2026-11-21T03:42:00Z",
        "2026-11-31T03:42:00Z",
        "2026-02-29T03:42:00Z",
        "2026-11-21T24:42:00Z",
        "2026-11-21T03:42:60Z",
        "2026-11-21T03:42:00+24:00",
        "0000-01-01T00:00:00Z",
        "٢٠٢٦-11-21T03:42:00Z",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-00:01",
    ],
)
def test_what_is_not_rfc_3339(text: str) -> None:
    """ValueError, and nothing else, also at the ends of the calendar."""
    with pytest.raises(ValueError):
        parse_rfc3339(text)


@pytest.mark.parametrize("at", [AT, datetime(1970, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)])
def test_microseconds_there_and_back(at: datetime) -> None:
    """No rounding anywhere."""
    assert from_micros(to_micros(at)) == at


def test_microseconds_are_pinned() -> None:
    """Since 1970; earlier instants are negative."""
    assert to_micros(AT) == 1_795_232_520_000_001
    assert from_micros(-1) == datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)


def test_the_system_clock_is_aware() -> None:
    """UTC, and it does not stand."""
    first, second = SystemClock().now(), SystemClock().now()
    assert first.tzinfo is UTC
    assert first <= second


@given(st.text() | st.datetimes().map(lambda at: at.strftime("%a, %d %b %Y %H:%M:%S ") + "+9999999"))
def test_a_date_is_read_or_none(text: str) -> None:
    """Whatever stands in a header: an instant in UTC, or None."""
    found = parse_http_date(text)
    assert found is None or found.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Sun, 22 Nov 2026 09:00:00 GMT", datetime(2026, 11, 22, 9, tzinfo=UTC)),
        ("Sun, 22 Nov 2026 09:00:00 -0000", datetime(2026, 11, 22, 9, tzinfo=UTC)),
        ("Sun, 22 Nov 2026 09:00:00 +99999999999999999999", None),
        ("tomorrow", None),
        (None, None),
    ],
)
def test_what_a_date_field_says(text: str | None, found: datetime | None) -> None:
    """A zone that is not told is UTC; a number that no calendar has is no instant, and no error."""
    assert parse_http_date(text) == found
