"""What an entry says of the rows that give authority: which it changed, from what to what, as digests.

An entry's `detail` is words for people, and behind them, where a row of authority changed in its unit, the mark and a
JSON list of `[kind, key, before, after]`: `; authority [["allow-list","ab…",null,"0f…"]]`. A digest is the beginning
of the SHA-256 over the columns that give authority; null is a row that is not there, or gives nothing. So a reader of
the log knows which rows there must be, and finds those that nobody's act wrote (docs/adr/0059).
"""

# Algorithms for: audit-hash
from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from attestation.audit.entry import MAX_DETAIL_BYTES
from attestation.errors import MalformedEvidence

MARK: Final = "; authority "
UNMARKED: Final = "; authority: "
"""What becomes of the mark in the words of people: nobody writes rows by giving a reason."""

MAX_KEY_CHARACTERS: Final = 512

DIGEST_CHARACTERS: Final = 32
"""Lower-case hex: 128 bits, which nobody finds a second row for."""


@dataclass(frozen=True, slots=True)
class Change:
    """One row of authority that changed.

    Args:
        kind: Which table, in the words of `attestation.store.authority`.
        key: Which row.
        before: Its digest before the act; None where it was not there.
        after: Its digest after the act; None where it is not there any more.
    """

    kind: str
    key: str
    before: str | None
    after: str | None


def key_of(columns: Iterable[object]) -> str:
    """Return the key of a row; a long one by its SHA-256, so that every entry has room for any."""
    key = "/".join(each.hex() if isinstance(each, bytes) else str(each) for each in columns)
    return key if len(key) <= MAX_KEY_CHARACTERS else f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def digest(columns: Sequence[object]) -> str:
    """Return the digest of a row: integers, text, bytes and nulls, in the order of its columns."""
    members = [
        each.hex() if isinstance(each, bytes) else int(each) if isinstance(each, bool) else each
        for each in columns
    ]
    return hashlib.sha256(json.dumps(members).encode("ascii")).hexdigest()[:DIGEST_CHARACTERS]


def plain(detail: str | None) -> str | None:
    """Return the words of an entry without the mark."""
    return detail if detail is None or MARK not in detail else detail.replace(MARK, UNMARKED)


def with_changes(detail: str | None, changes: Sequence[Change]) -> tuple[str | None, Sequence[Change]]:
    """Return *detail* without the mark and as many of *changes* behind it as have room; and the others."""
    words, rows = plain(detail), [[each.kind, each.key, each.before, each.after] for each in changes]
    told = len(rows)
    while told:
        text = f"{words or ''}{MARK}{json.dumps(rows[:told], separators=(',', ':'))}"
        if len(json.dumps(text)) - 2 <= MAX_DETAIL_BYTES:
            return text, changes[told:]
        told //= 2
    return words, changes


def words_of(detail: str | None) -> str | None:
    """Return what *detail* says to people; None where that is nothing."""
    return (detail or "").partition(MARK)[0] or None


def changes_of(detail: str | None) -> tuple[Change, ...]:
    """Return what *detail* says of rows.

    Raises:
        MalformedEvidence: There is a mark, and behind it something else.
    """
    _, mark, rows = (detail or "").rpartition(MARK)
    if not mark:
        return ()
    try:
        return tuple(_change(row) for row in _list(json.loads(rows)))
    except (ValueError, TypeError, RecursionError) as e:
        raise MalformedEvidence(f"the rows of an entry cannot be read: {str(e)[:100]}") from e


def _list(found: object) -> list[object]:
    if not isinstance(found, list):
        raise TypeError("that is no list")
    return found


def _change(row: object) -> Change:
    kind, key, before, after = _list(row)
    return Change(
        _text(kind),
        _text(key),
        None if before is None else _text(before),
        None if after is None else _text(after),
    )


def _text(found: object) -> str:
    if not isinstance(found, str):
        raise TypeError("a member of a row is no text")
    return found
