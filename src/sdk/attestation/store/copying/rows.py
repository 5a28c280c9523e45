"""What goes over the way, and its digest; what both ends can do."""

# Algorithms for: digest
from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any, Final

from sqlalchemy import Boolean, Column, Enum, Integer, LargeBinary, String, Table, TypeDecorator

from attestation.errors import StoreUnavailable
from attestation.store.migrate import HEAD, SUPPORT, Branch, says_revision, unknown
from attestation.store.tables import Base
from attestation.store.tx import Tx

_OF_SCHEMA: Final = frozenset({"alembic_version", SUPPORT, "sqlite_sequence"})
"""Tables that tell of the schema; who makes it writes them."""

Row = Sequence[Any]
Advance = Callable[[str, int], None]
"""Told, now and then, of which table how many more rows are done."""

EACH: Final = 1000
"""Rows between two calls of it."""

_TYPES: Final = (
    (Boolean, "int4"),  # on the way
    (Integer, "int8"),
    (LargeBinary, "bytea"),
    (String, "text"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What was copied of a table.

    Args:
        table: Its name.
        rows: How many.
        sha256: Over all of them, in the order of their keys, lower-case hex.
    """

    table: str
    rows: int
    sha256: str


class End(ABC):
    """One end of a copy, in one transaction.

    Args:
        tx: Reads it as the store does.
        tables: Names of what is there.
        revisions: Of the schema, by the table that says it; those of extensions among them.
    """

    tx: Tx
    tables: frozenset[str]
    revisions: dict[str, str]

    @abstractmethod
    def rows(self, table: Table) -> Iterator[Row]:
        """Return all rows of *table*, in the order of its key."""

    @abstractmethod
    def value(self, statement: str) -> Any:
        """Return the first value that *statement* selects; None where there is no row."""

    @abstractmethod
    def last_number(self, table: Table) -> int:
        """Return the largest number that was ever given to a row of *table*, whose rows number themselves."""

    def count(self, table: Table) -> int:
        """Return how many rows *table* has."""
        return int(self.value(f'SELECT count(*) FROM "{table.name}"'))  # noqa: S608 -- a name of ours

    def _learn(self, names: Iterable[str]) -> None:
        self.tables = frozenset(names)
        self.revisions = {
            name: self.value(f'SELECT version_num FROM "{quoted(name)}"')  # noqa: S608 -- a stranger's name, quoted
            for name in sorted(self.tables)
            if says_revision(name)
        }


class Source(End):
    """The database that is copied."""

    @abstractmethod
    def mark_moved(self, to: str, at_us: int) -> None:
        """Write down, and commit, that the database went on as *to* at *at_us*, microseconds since 1970."""


class Target(End):
    """The database that is made."""

    @abstractmethod
    def write(self, table: Table, rows: Iterable[Row]) -> None:
        """Put *rows* into *table*, which is empty.

        Raises:
            StoreUnavailable: The database refuses one.
        """

    @abstractmethod
    def run(self, statement: str) -> None:
        """Run *statement*."""

    @abstractmethod
    def go_on_after(self, table: Table, number: int) -> None:
        """Let rows that come to *table*, whose rows number themselves, have numbers above *number*."""


def tables_of(source: End, branches: Sequence[tuple[Branch, Sequence[Table]]]) -> tuple[Table, ...]:
    """Return the tables that a copy of *source* has, each after those that it refers to.

    Args:
        source: What is to be copied.
        branches: Of the extensions that are enabled, with their tables.

    Raises:
        StoreUnavailable: It is at another revision, has tables that nobody here knows, or columns that cannot be
            copied.
    """
    if (revision := source.revisions.get("alembic_version")) != HEAD:
        if revision is None:
            raise StoreUnavailable("there is nothing to copy: it is no database of this service")
        raise StoreUnavailable(
            f"the database is at revision {revision}, and a copy is made at {HEAD} only: run "
            "`attestation-service db upgrade` first"
        )
    tables = [each for each in Base.metadata.sorted_tables if each.name not in _OF_SCHEMA]
    for branch, own in branches:
        if (revision := source.revisions.get(branch.version_table)) is None:
            continue  # it was never started with this database
        if revision != branch.head:
            raise unknown(revision, branch.head)
        tables += [table for table in own[0].metadata.sorted_tables if table in own] if own else []
    known = {table.name for table in tables} | {branch.version_table for branch, _ in branches}
    if strange := sorted(source.tables - known - _OF_SCHEMA):
        raise StoreUnavailable(
            f"the database has the table {strange[0]}, which nothing here knows how to copy: if it is of an extension, "
            "enable that in ITL_EXTENSIONS"
        )
    for table in tables:
        for column in table.columns:
            held(column)  # raises
    return tuple(tables)


def copy(source: Source, target: Target, tables: Sequence[Table], advance: Advance) -> list[Copied]:
    """Write the rows of *tables* into *target*, read them back and compare; the caller ends both transactions.

    Raises:
        StoreUnavailable: A row cannot be written, or what is read back is another one.
    """
    for table in reversed(tables):
        target.run(f'DELETE FROM "{table.name}"')  # noqa: S608 -- revisions make rows: an identity, a count
    copied = []
    for table in tables:
        digest = Digest()
        target.write(table, digest.over(source.rows(table), partial(advance, table.name)))
        if numbered(table) is not None:
            target.go_on_after(table, source.last_number(table))
        copied.append(Copied(table=table.name, rows=digest.rows, sha256=digest.hex()))
    for table, sent in zip(tables, copied, strict=True):
        if (found := digest_of(target, table)) != sent:
            raise StoreUnavailable(
                f"the copy of {table.name} is another: {found} was read back, and {sent} was sent"
            )
    return copied


def digest_of(end: End, table: Table) -> Copied:
    """Return count and digest of the rows of *table* as *end* has them."""
    digest = Digest()
    for _ in digest.over(end.rows(table)):
        pass
    return Copied(table=table.name, rows=digest.rows, sha256=digest.hex())


class Digest:
    """SHA-256 over rows: of integers, texts, bytes and None, whose `repr` no two lists of values share."""

    def __init__(self) -> None:
        self.rows = 0
        self._sha256 = sha256()

    def over(self, rows: Iterable[Row], advance: Callable[[int], None] = lambda _: None) -> Iterator[Row]:
        """Let *rows* pass, and count them."""
        update = self._sha256.update
        for row in rows:
            update(repr(tuple(row)).encode("utf-8", "surrogatepass") + b"\n")
            self.rows += 1
            if self.rows % EACH == 0:
                advance(EACH)
            yield row
        advance(self.rows % EACH)

    def hex(self) -> str:
        """Return it, lower-case hex."""
        return self._sha256.hexdigest()


def numbered(table: Table) -> Column[Any] | None:
    """Return the column by which *table* numbers its rows; None where it does not."""
    return table.autoincrement_column


def held(column: Column[Any]) -> str:
    """Return the type of PostgreSQL that holds what goes over the way.

    Raises:
        StoreUnavailable: Of other values nobody knows whether both databases hold the same.
    """
    kind = column.type
    if isinstance(kind, TypeDecorator):
        kind = kind.impl_instance
    for ours, name in _TYPES:
        if isinstance(kind, ours) and not isinstance(kind, Enum):
            return name
    raise StoreUnavailable(
        f"{column.table.name}.{column.name} is of the type {kind}: only integers, texts, bytes and flags are copied"
    )


def order(table: Table, collation: str) -> str:
    """Return what the rows of *table* are ordered by; *collation* stands after texts."""
    keys = (
        f'"{each.name}"{collation if held(each) == "text" else ""}'
        for each in table.primary_key.columns or table.columns
    )
    return ", ".join(keys)


def quoted(name: str) -> str:
    """Return what stands between double quotes for a table called *name*, whoever named it (SQL:2016, 5.2)."""
    return name.replace('"', '""')
