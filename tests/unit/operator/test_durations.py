"""Durations as Go writes them."""

from __future__ import annotations

import contextlib
import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation_operator.durations import MAX_LENGTH, PATTERN, NotADuration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("0s", 0.0),
        ("2m", 120.0),
        ("30s", 30.0),
        ("1h30m", 5400.0),
        ("500ms", 0.5),
        ("1.5h", 5400.0),
        ("1m0.25s", 60.25),
        ("1s1m", 61.0),
        ("7us", 7e-6),
        ("7µs", 7e-6),
        ("7μs", 7e-6),
        ("1500ns", 1e-6),
        ("1m1m", 120.0),
    ],
)
def test_what_go_reads_is_read(text: str, seconds: float) -> None:
    """time.ParseDuration: numbers, each with a unit, in any order; zero needs none. Below a microsecond is nothing."""
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2",
        "m",
        "-1m",
        "+1m",
        "1 m",
        " 1m",
        "1m ",
        "1m\n",
        "1d",
        "1M",
        ".5s",
        "1.s",
        "1e3s",
        "٣s",
        "2 minutes",
        "1m" * 33,
    ],
)
def test_what_go_would_not_read_or_nobody_means_is_refused(text: str) -> None:
    """No sign, no bare number, no digits of other scripts, no text of any length."""
    with pytest.raises(NotADuration):
        parse_duration(text)


def test_the_longest_one_is_read() -> None:
    """Nothing that is short enough to be read is too long for time."""
    assert parse_duration("999999999h" * 6) == timedelta(hours=999_999_999 * 6)


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=30_000)))
def test_what_is_written_is_read(duration: timedelta) -> None:
    """To the microsecond, in several units."""
    hours, rest = divmod(duration, timedelta(hours=1))
    seconds, rest = divmod(rest, timedelta(seconds=1))
    assert parse_duration(f"{hours}h{seconds}s{rest.microseconds}us") == duration


@given(st.text(st.sampled_from("0123456789.hmsnuµ -"), max_size=MAX_LENGTH + 2))
def test_a_duration_fails_in_one_way_only_and_the_schema_says_the_same(text: str) -> None:
    """Whatever is there, a caller sees a duration that is not negative, or NotADuration."""
    found = None
    with contextlib.suppress(NotADuration):
        found = parse_duration(text)
        assert found >= timedelta(0)
    matches = re.fullmatch(PATTERN.removesuffix("$"), text) is not None and len(text) <= MAX_LENGTH
    assert (found is not None) == matches
