"""Two texts, line by line: what went, what came, and a little around it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MOST_LINES: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of a difference.

    Args:
        kind: `same`, `gone`, `new`, or `gap` where lines that are the same are left out.
        before, after: Its number on either side, or None.
        text: The line.
    """

    kind: str
    before: int | None
    after: int | None
    text: str


def lines_of(before: str, after: str, *, around: int = 3) -> list[Line]:
    """Return how *after* differs from *before*, for the macro `diff`; empty where they are the same."""
    return list(_lines(before.splitlines()[:MOST_LINES], after.splitlines()[:MOST_LINES], around))


def _lines(before: list[str], after: list[str], around: int) -> Iterator[Line]:
    groups = difflib.SequenceMatcher(a=before, b=after, autojunk=False).get_grouped_opcodes(around)
    for number, group in enumerate(groups):
        if number or group[0][1] > 0:
            yield Line(kind="gap", before=None, after=None, text="")
        for kind, a1, a2, b1, b2 in group:
            if kind == "equal":
                for i in range(a2 - a1):
                    yield Line(kind="same", before=a1 + i + 1, after=b1 + i + 1, text=before[a1 + i])
                continue
            for i in range(a1, a2):
                yield Line(kind="gone", before=i + 1, after=None, text=before[i])
            for i in range(b1, b2):
                yield Line(kind="new", before=None, after=i + 1, text=after[i])
