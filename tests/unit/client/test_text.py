"""Words of the service as text for people."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.client.text import ago, apart, clean, short_ids
from attestation.text import clean_lines

NOW = datetime(2026, 11, 21, 4, tzinfo=UTC)


@given(st.text())
def test_clean_text_is_printable_and_as_long(text: str) -> None:
    """Nothing that a terminal obeys survives; nothing disappears without a trace."""
    cleaned = clean(text)
    assert len(cleaned) == len(text)
    assert all(c.isprintable() or c == " " or c.isspace() for c in cleaned)
    assert not {"\x1b", "\x9b", "\n", "\r", "\t", "\u202e", "\u2028", "\u200b", "\x7f"} & set(cleaned)


def test_short_ids_grow_until_they_differ() -> None:
    """Eight characters, or as many as it takes."""
    same = ["7f3ad3ac-0f0e-4c55-9d4a-000000000001", "7f3ad3ac-0f0f-4c55-9d4a-000000000001"]
    assert short_ids(same[:1])[same[0]] == "7f3ad3ac"
    assert sorted(short_ids(same).values()) == ["7f3ad3ac-0f0e", "7f3ad3ac-0f0f"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s ago"),
        (59, "59 s ago"),
        (61, "61 s ago"),
        (3600, "60 min ago"),
        (7199, "2 h ago"),
        (172_800, "2 d ago"),
        (-365 * 86_400, "in 365 d"),
        (-3650 * 86_400, "in 10 y"),
        (-90, "in 2 min"),
    ],
)
def test_times_are_told_by_their_distance(seconds: int, text: str) -> None:
    """In the largest unit that says enough."""
    assert ago(NOW - timedelta(seconds=seconds), NOW) == text


def test_how_far_two_clocks_are_apart() -> None:
    """In one unit, and in which direction."""
    at = datetime(2026, 11, 22, 12, tzinfo=UTC)
    assert apart(at + timedelta(hours=1), at) == "60 min ahead of"
    assert apart(at - timedelta(hours=3), at) == "3 h behind"
    assert apart(at + timedelta(days=90), at) == "90 d ahead of"
    assert apart(at, at) == "0 s ahead of"


@given(st.text())
def test_lines_stay_where_lines_are_shown(text: str) -> None:
    """Line breaks and tabs alone: between them is what `clean` says."""
    shown = clean_lines(text)
    assert re.split("[\n\t]", shown) == [clean(part) for part in re.split("\r\n|[\n\t]", text)]
