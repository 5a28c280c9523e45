"""Rows, as a server gives them: sorted, paged and with chosen columns by links, so that nothing needs a script.

What an address says: `sort` (a column, with `-` before it downwards), `column` (one that is shown, each), `after` (a
cursor of the service) or `page` (a number, of rows that are all here).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from flask import request
from werkzeug.datastructures import MultiDict

PAGE_ROWS: Final = 50
MOST_ROWS: Final = 5_000
"""Rows that are sorted here; more are the service's to sort."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column.

    Args:
        name: In addresses.
        title: Its head.
        sort: What it is sorted by, of a row; None where it is not. Rows without a value come last.
        numeric: Numbers, which stand at the right.
        shown: It is shown where nobody chose.
    """

    name: str
    title: str
    sort: Callable[[Any], Any] | None = None
    numeric: bool = False
    shown: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What `components/table.html` shows.

    Args:
        columns: The chosen ones.
        every: All of them.
        rows: Of this page.
        total: How many there are in all; None where nobody counted.
        sorted_by: Column and whether it is downwards, or None.
        earlier, later: Addresses of the pages beside it, or None.
        path: Of the page.
        query: Of its address.
    """

    columns: Sequence[Column]
    every: Sequence[Column]
    rows: Sequence[Any]
    total: int | None
    sorted_by: tuple[str, bool] | None
    earlier: str | None
    later: str | None
    path: str
    query: Mapping[str, Sequence[str]]

    def sort_url(self, column: Column) -> str:
        """Return where *column* sorts the rows, the other way round where it does already."""
        down = self.sorted_by == (column.name, False)
        return address(
            self.path, self.query, sort=f"{'-' if down else ''}{column.name}", page=None, after=None
        )

    def order(self, column: Column) -> str | None:
        """Return `ascending` or `descending` where *column* sorts the rows (`aria-sort`), else None."""
        if self.sorted_by is None or self.sorted_by[0] != column.name:
            return None
        return "descending" if self.sorted_by[1] else "ascending"

    def hidden(self, *without: str) -> list[tuple[str, str]]:
        """Return name and value of what a form of this page carries on, beside *without*."""
        return [
            (name, value) for name, values in self.query.items() if name not in without for value in values
        ]


def address(path: str, query: Mapping[str, Sequence[str]], **changes: str | None) -> str:
    """Return *path* with *query* and *changes*; None takes a name away."""
    kept: list[tuple[str, str]] = [(n, v) for n, values in query.items() if n not in changes for v in values]
    kept += [(name, value) for name, value in changes.items() if value is not None]
    return f"{path}?{urlencode(kept)}" if kept else path


def table(
    columns: Sequence[Column],
    rows: Iterable[Any],
    *,
    cursor: str | None = None,
    paged: bool = False,
    by: str | None = None,
    total: int | None = None,
    page_rows: int = PAGE_ROWS,
) -> Table:
    """Make a table of this request.

    Args:
        columns: All that there are.
        rows: All of them, which are then sorted and paged here; with *paged*, those of one page of the service.
        cursor: Of the service's next page, where *paged*; None at its end.
        paged: The service paged them, and sorted them.
        by: Column that sorts where nobody chose, with `-` before it downwards.
        total: How many there are in all, where the service says it.
        page_rows: Rows of a page, where they are paged here.
    """
    args: MultiDict[str, str] = request.args
    path, query = request.path, args.to_dict(flat=False)
    chosen = set(args.getlist("column")) & {column.name for column in columns}
    shown = [c for c in columns if (c.name in chosen if chosen else c.shown)]
    if paged:
        later = None if cursor is None else address(path, query, after=cursor)
        earlier = address(path, query, after=None) if args.get("after") else None
        return Table(
            columns=[Column(name=c.name, title=c.title, numeric=c.numeric) for c in shown],
            every=columns,
            rows=list(rows),
            total=total,
            sorted_by=None,
            earlier=earlier,
            later=later,
            path=path,
            query=query,
        )
    every = [row for row, _ in zip(rows, range(MOST_ROWS), strict=False)]
    order = _order(columns, args.get("sort") or by)
    if order is not None:
        column, down = order
        assert column.sort is not None
        known = [row for row in every if column.sort(row) is not None]
        every = sorted(known, key=column.sort, reverse=down) + [r for r in every if column.sort(r) is None]
    number = max(1, args.get("page", 1, type=int))
    number = min(number, max(1, -(-len(every) // page_rows)))
    begin = (number - 1) * page_rows
    return Table(
        columns=shown,
        every=columns,
        rows=every[begin : begin + page_rows],
        total=len(every) if total is None else total,
        sorted_by=None if order is None else (order[0].name, order[1]),
        earlier=address(path, query, page=str(number - 1)) if number > 1 else None,
        later=address(path, query, page=str(number + 1)) if begin + page_rows < len(every) else None,
        path=path,
        query=query,
    )


def _order(columns: Sequence[Column], text: str | None) -> tuple[Column, bool] | None:
    if not text:
        return None
    name, down = text.removeprefix("-"), text.startswith("-")
    return next(((c, down) for c in columns if c.name == name and c.sort is not None), None)
