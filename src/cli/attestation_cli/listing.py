"""Which columns of a list are shown and in which order its rows stand: `--columns` and `--sort`, for every list."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest

from attestation.errors import RequestInvalid
from attestation_cli.render import Cell, Column, column_name, exact

Rows = Sequence[Sequence[Cell]]

_NUMBER = re.compile(r"[0-9]+")


def arranged(
    columns: Sequence[Column], rows: Rows, *, wanted: Sequence[str], order: Sequence[str]
) -> tuple[list[Column], Rows]:
    """Return the columns and rows that were asked for.

    Args:
        columns: All that there are.
        rows: A cell for each.
        wanted: Names of columns, as CSV heads them; none are all. A named column is shown on every terminal.
        order: Names of columns to sort by, the first one first; a minus in front turns it round.

    Raises:
        RequestInvalid: There is no such column.
    """
    names = [column_name(column.title) for column in columns]
    # From the last one to the first: each sort leaves in order what it finds equal.
    for name in reversed(order):
        rows = _sorted(rows, _place(names, name.removeprefix("-")), backwards=name.startswith("-"))
    if not wanted:
        return list(columns), rows
    places = [_place(names, name) for name in wanted]
    shown = [Column(columns[place].title, shrink_to=columns[place].shrink_to) for place in places]
    return shown, [[row[place] for place in places] for row in rows]


def _place(names: Sequence[str], wanted: str) -> int:
    name = column_name(wanted)
    if name not in names:
        raise RequestInvalid(f"there is no column {wanted!r} here; there are {', '.join(names)}")
    return names.index(name)


def _sorted(rows: Rows, place: int, *, backwards: bool) -> Rows:
    """Return *rows* by the exact value at *place*; those without one come last, either way round."""
    told = [row for row in rows if exact(row[place])]
    told.sort(key=lambda row: _natural(exact(row[place])), reverse=backwards)
    return told + [row for row in rows if not exact(row[place])]


def _natural(text: str) -> list[tuple[str, int, str]]:
    """Return *text* so that `w-2` comes before `w-10`: its words, and between them its numbers by their size."""
    # No int(): Python refuses to read very long ones, and machines choose some of these texts.
    words = [(word, 0, "") for word in _NUMBER.split(text.casefold())]
    numbers = [("", len(digits), digits) for digits in (n.lstrip("0") for n in _NUMBER.findall(text))]
    return [part for pair in zip_longest(words, numbers) for part in pair if part is not None]
