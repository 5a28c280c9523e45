"""What a value may be, what a query sees, and what it may cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sqlalchemy import Select


class Kind(StrEnum):
    """The type of a value, in Kusto's words.

    How each is carried in SQL: bool as boolean; int, long as bigint; real as double; string as text, never NULL;
    datetime as bigint, microseconds since 1970-01-01 UTC; timespan as bigint, microseconds; dynamic as JSON text.
    """

    BOOL = "bool"
    INT = "int"
    LONG = "long"
    REAL = "real"
    STRING = "string"
    DATETIME = "datetime"
    TIMESPAN = "timespan"
    DYNAMIC = "dynamic"


WHOLE = frozenset({Kind.INT, Kind.LONG})
NUMBERS = WHOLE | {Kind.REAL}
SCALARS = frozenset(Kind) - {Kind.DYNAMIC}
"""What can be grouped, compared and sorted; Kusto wants `tostring()` and the like around the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column, as a query sees it."""

    name: str
    kind: Kind
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table, as a query sees it.

    Args:
        statement: What stands behind it: a SELECT of tables that have names, without groups, order or limit. Its
            selected columns have the names of *columns*, in the same order, and are carried as `Kind` says; a string
            may be NULL and is read as empty.
        never_null: The columns of which the database says that they are never NULL.
        as_text: Datetimes that are selected as text, never NULL, of 27 characters: `2026-01-02T03:04:05.678901Z`.
            Such texts are in the order of time, so they are compared and sorted as they are, by an index of theirs.
    """

    name: str
    columns: tuple[Column, ...]
    statement: Select[*tuple[object, ...]]
    description: str = ""
    never_null: frozenset[str] = frozenset()
    as_text: frozenset[str] = frozenset()


class Catalog(Mapping[str, Table]):
    """The tables that a query may name, whatever the case of their letters. What is not in it does not exist."""

    def __init__(self, tables: Iterable[Table]) -> None:
        self._tables = {table.name.casefold(): table for table in tables}

    def __getitem__(self, name: str) -> Table:
        """Return the table called *name*."""
        return self._tables[name.casefold()]

    def __iter__(self):  # type: ignore[no-untyped-def]  # the names, as they are written
        """Yield the names as they are written."""
        return iter([table.name for table in self._tables.values()])

    def __len__(self) -> int:
        """Count the tables."""
        return len(self._tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a query may ask of the parser and of the database."""

    text_bytes: int = 8192
    stages: int = 20
    nesting: int = 50
    meaning: int = 5_000
    """Columns of all operators together, and what names of `let` stand for, at each place that names them: a short text
    can mean much, and all of it is written down for the database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Render:
    """How the writer of a query would like to see its rows: a hint, which changes none of them."""

    chart: str
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where something stands in a query: its first character, counted from 0, and how many there are."""

    offset: int
    length: int

    def to(self, other: Place) -> Place:
        """Return what reaches from here to the end of *other*."""
        return Place(offset=self.offset, length=other.offset + other.length - self.offset)
