"""Tables, colours and times for people; JSON for programs.

What comes from the service is written by strangers: a serial number may hold terminal escape sequences.
Everything passes `clean` before it is printed, or `json_text`, which escapes.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from attestation.client.text import ago, clean

if TYPE_CHECKING:
    from pydantic import BaseModel

GAP = "  "
ELLIPSIS = "…"

COLOURS: Mapping[str, str] = {
    word: colour
    for colour, words in {
        "green": ("attested", "verified", "Verified", "valid", "passed", "ek-allowlist", "ek-chain"),
        "yellow": ("pending_approval", "stale", "flagged", "reported", "tofu", "undecided", "Indeterminate"),
        "cyan": ("registered",),
        "magenta": ("locked",),
        "red": ("none", "failed", "Failed", "rejected", "revoked", "INVALID"),
    }.items()
    for word in words
}
"""Words of the API that have a colour; everything else is plain."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Args:
        title: Its heading.
        shrink_to: Narrowest width on a small terminal; None is never shortened.
        drop: When the terminal is still too small, columns go in descending order of this; 0 never goes.
        wide: Shown by `-o wide` and `-o csv` only.
    """

    title: str
    shrink_to: int | None = None
    drop: int = 0
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """Text in a table, clean, and the colour in which it is shown.

    Args:
        text: What a person reads.
        colour: In which colour.
        exact: The whole value, clean, where *text* is a rounded, shortened or explained form of it; `-o wide` and
            `-o csv` show this one.
    """

    text: str
    colour: str | None = None
    exact: str | None = None


def cell(value: object, exact: object = None) -> Cell:
    """Return *value* as a clean cell, in the colour of its word; None is a dash, and nothing where it is exact."""
    if value is None:
        return Cell("-", None, "" if exact is None else clean(str(exact)))
    text = clean(str(value))
    return Cell(text or "-", COLOURS.get(text), text if exact is None else clean(str(exact)))


Row = TypeVar("Row")
Told = Mapping[Column, Callable[[Row], object]]
"""What each column of a list tells of one of its rows: a cell, or what `cell` makes one of."""


def cells(columns: Told[Row], row: Row) -> list[Cell]:
    """Return what *columns* tell of *row*."""
    return [value if isinstance(value := tell(row), Cell) else cell(value) for tell in columns.values()]


def trust_cell(trust: str, status: str) -> Cell:
    """Return what the last result of a machine in *status* is worth.

    Of a machine that nobody admitted, or that is locked, a good quote makes none that is trusted.
    """
    if trust == "verified" and status != "attested":
        return Cell("not trusted", "yellow", trust)
    return cell(trust)


def time_cell(at: datetime | None, now: datetime) -> Cell:
    """Return how long ago *at* was; exactly: RFC 3339 in UTC."""
    return cell(ago(at, now), "" if at is None else instant(at))


def moment_cell(at: datetime | None, now: datetime) -> Cell:
    """Return *at* and how long ago that was; exactly: RFC 3339 in UTC."""
    return cell(moment(at, now), "" if at is None else instant(at))


def instant(at: datetime) -> str:
    """Return *at* in RFC 3339, UTC, to the second."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}Z"


def exact(value: Cell) -> str:
    """Return the whole value of a cell, empty where it has none."""
    if value.exact is not None:
        return value.exact
    return "" if value.text == "-" else value.text


def column_name(title: str) -> str:
    """Return the name of a column for programs: `EK FINGERPRINT` is `ek_fingerprint`."""
    return re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_")


def display_width(text: str) -> int:
    """Return how many terminal columns *text* takes: wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def shorten(text: str, width: int) -> str:
    """Return *text* in at most *width* terminal columns, with an ellipsis where something is missing."""
    if display_width(text) <= width:
        return text
    kept, used = "", 0
    for character in text:
        used += display_width(character)
        if used > width - 1:
            break
        kept += character
    return kept + ELLIPSIS


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], *, width: int | None, colour: bool
) -> Iterable[str]:
    """Yield the lines of a table, aligned, at most *width* terminal columns where that is possible."""
    natural = [
        max(len(column.title), *(display_width(row[i].text) for row in rows)) if rows else len(column.title)
        for i, column in enumerate(columns)
    ]
    shown, widths = _fit(columns, natural, width)
    yield _line([_paint(columns[i].title, widths[i], "bright_black" if colour else None) for i in shown])
    for row in rows:
        yield _line([_paint(row[i].text, widths[i], row[i].colour if colour else None) for i in shown])


def _fit(
    columns: Sequence[Column], natural: Sequence[int], width: int | None
) -> tuple[list[int], Mapping[int, int]]:
    """Choose columns and widths: first shorten the widest, then drop the least important."""
    shown = list(range(len(columns)))
    while True:
        widths = {i: natural[i] for i in shown}
        excess = sum(widths.values()) + len(GAP) * (len(shown) - 1) - (width or 0)
        if width is None or excess <= 0:
            return shown, widths
        give = {i: widths[i] - s for i in shown if (s := columns[i].shrink_to) is not None and widths[i] > s}
        droppable = [i for i in shown if columns[i].drop]
        if sum(give.values()) < excess and droppable:
            shown.remove(max(droppable, key=lambda i: columns[i].drop))
            continue
        for i in sorted(give, key=lambda i: -give[i]):
            less = min(give[i], excess)
            widths[i] -= less
            excess -= less
            if excess <= 0:
                break
        return shown, widths


def _paint(text: str, width: int, colour: str | None) -> str:
    text = shorten(text, width)
    padding = " " * (width - display_width(text))
    return (click.style(text, fg=colour) if colour else text) + padding


def _line(cells: Sequence[str]) -> str:
    return GAP.join(cells).rstrip()


def fields(pairs: Iterable[tuple[str, Cell]], *, colour: bool, width: int | None = None) -> Iterable[str]:
    """Yield names in a column of their own and values beside them, folded at *width*; words stay whole."""
    pairs = list(pairs)
    names = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        lines = [value.text]
        if width is not None and display_width(value.text) > width - names - len(GAP):
            import textwrap

            room = max(width - names - len(GAP), 20)
            lines = textwrap.wrap(value.text, room, break_long_words=False, break_on_hyphens=False)
        for number, line in enumerate(lines):
            label = ("" if number else name).ljust(names)
            text = click.style(line, fg=value.colour) if colour and value.colour else line
            yield f"{click.style(label, fg='bright_black') if colour else label}{GAP}{text}".rstrip()


def wrap(sentence: str, width: int, *, first: str = "  - ", rest: str = "    ") -> str:
    """Return *sentence* in lines of at most *width*, by default as an item of a list.

    Commands in backquotes stay whole; *first* and *rest* stand before the first and every other line.
    """
    import textwrap

    # U+00A0 does not break; afterwards it is a space again, so that a copied command works.
    whole = re.sub(r"`[^`]*`", lambda match: match[0].replace(" ", "\u00a0"), sentence)
    lines = textwrap.wrap(
        whole,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=False,
    )
    return "\n".join(lines).replace("\u00a0", " ")


def moment(at: datetime | None, now: datetime) -> str:
    """Return *at* to the second in UTC and how far it is from *now*."""
    if at is None:
        return "-"
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z ({ago(at, now)})"


def span(length: timedelta) -> str:
    """Return *length* in its largest whole unit."""
    return ago(datetime(2000, 1, 1, tzinfo=UTC), datetime(2000, 1, 1, tzinfo=UTC) + length).removesuffix(
        " ago"
    )


def plain(value: BaseModel | Mapping[str, Any]) -> dict[str, Any]:
    """Return *value* as what JSON is made of."""
    if not isinstance(value, Mapping):
        return value.model_dump(mode="json")
    found: dict[str, Any] = json.loads(json.dumps(dict(value)))
    return found


def json_text(value: BaseModel | Mapping[str, Any]) -> str:
    """Return *value* as indented JSON in ASCII: every control character is escaped."""
    return json.dumps(
        dict(value) if isinstance(value, Mapping) else value.model_dump(mode="json"),
        indent=2,
        ensure_ascii=True,
    )
