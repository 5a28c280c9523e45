"""What entries say of rows of authority can be read again, and nobody's words pass for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.audit.authority import (
    MARK,
    MAX_KEY_CHARACTERS,
    Change,
    changes_of,
    digest,
    key_of,
    plain,
    with_changes,
    words_of,
)
from attestation.audit.entry import MAX_DETAIL_BYTES
from attestation.errors import MalformedEvidence

DIGESTS = st.none() | st.text("0123456789abcdef", min_size=32, max_size=32)
CHANGES = st.lists(
    st.builds(Change, st.sampled_from(("machine", "vote")), st.text(max_size=40), DIGESTS, DIGESTS)
)


@given(st.none() | st.text(max_size=200) | st.just(f"x{MARK}[]"), CHANGES)
def test_what_is_told_is_read(words: str | None, changes: list[Change]) -> None:
    """Behind any words, those with the mark in them too; and without rows there are none."""
    detail, rest = with_changes(words, changes)
    assert (list(changes_of(detail)), rest) == (changes, [])
    assert words_of(detail) == (plain(words) or None)
    assert changes_of(plain(words)) == ()


@given(st.text())
def test_reading_fails_in_one_way_only(text: str) -> None:
    """Whoever writes entries past the service gets rows or one error."""
    for detail in (text, f"{MARK}{text}"):
        try:
            assert all(isinstance(each, Change) for each in changes_of(detail))
        except MalformedEvidence:
            assert MARK in detail


@pytest.mark.parametrize(
    "rows", ["", "{}", "[1]", "[[]]", "[[1,2,3,4]]", '[["a","b",null]]', '[["a","b",1,null]]', "[" * 100_000]
)
def test_what_is_no_list_of_rows_is_refused(rows: str) -> None:
    """Each member is what it must be."""
    with pytest.raises(MalformedEvidence):
        changes_of(f"{MARK}{rows}")


def test_what_has_no_room_waits_for_the_next_entry() -> None:
    """No row is lost, however many there are and however long the words."""
    changes = [Change("vote", key_of(("\U0001f600" * 300, n)), None, "0" * 32) for n in range(50)]
    told: list[Change] = []
    words: str | None = "x" * MAX_DETAIL_BYTES
    rest: Sequence[Change] = changes
    while rest:
        detail, rest = with_changes(words, rest)
        told += changes_of(detail)
        words = None
    assert told == changes


def test_long_keys_are_named_by_their_digest() -> None:
    """So that every entry has room for one, and two of them are two."""
    assert key_of(("a", 1)) == "a/1"
    one, two = key_of(("x" * MAX_KEY_CHARACTERS, 1)), key_of(("x" * MAX_KEY_CHARACTERS, 2))
    assert one != two
    assert len(one) < MAX_KEY_CHARACTERS


def test_a_digest_is_that_of_any_database() -> None:
    """A truth value is 0 or 1, as SQLite keeps it, and any other column makes another digest."""
    assert digest([True, None, b"\1", "x"]) == digest([1, None, b"\1", "x"])
    assert len({digest(row) for row in ([None], [""], [0], ["0"], [0, 0], [b"\0"])}) == 6
