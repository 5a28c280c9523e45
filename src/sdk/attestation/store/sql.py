"""Statements: written once with SQLAlchemy Core, compiled once per dialect, run on the driver's cursor.

SQLAlchemy's execution costs several times what SQLite itself needs for a point query; its expression language
costs nothing once compiled. So we keep the language and leave the execution out (docs/adr/0003).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Delete, Update, bindparam
from sqlalchemy import Insert as InsertStatement
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler, SQLiteDialect
from sqlalchemy.engine import Dialect
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.compiler import SQLCompiler

from attestation.audit.authority import Change, digest, key_of
from attestation.store.authority import AUTHORITY, AuthorityTable

Row = Sequence[Any]
Insert = Callable[..., Any]
"""The dialect's own `insert()`, which knows ON CONFLICT."""


class _Dialect(NamedTuple):
    dialect: Dialect
    insert: Insert


class _SQLiteCompiler(SQLiteCompiler):
    # Its LIKE heeds no case already; with SQLAlchemy's `lower()` on both sides it takes three times as long.
    visit_ilike_op_binary = SQLiteCompiler.visit_like_op_binary


class _SQLite(SQLiteDialect):
    statement_compiler = _SQLiteCompiler
    supports_statement_cache = True


DIALECTS: Mapping[str, _Dialect] = {
    "sqlite": _Dialect(_SQLite(paramstyle="qmark"), sqlite.insert),
    "postgresql": _Dialect(
        postgresql.dialect(paramstyle="numeric_dollar"),  # type: ignore[no-untyped-call]  # SQLAlchemy's lack
        postgresql.insert,
    ),
}


@dataclass(frozen=True, slots=True)
class Compiled:
    """SQL text of one dialect, its constants, and how to bring named values into its order."""

    text: str
    names: tuple[str, ...]
    constants: Mapping[str, object]
    arrange: Callable[[Mapping[str, object]], tuple[object, ...]]
    watched: Watched | None = None


@dataclass(frozen=True, slots=True)
class Watched:
    """What a statement does to rows of authority.

    Args:
        kind: Which table.
        before: Reads the rows that it is about to change.
        inserts: It may make the row that its values name.
    """

    kind: AuthorityTable
    before: Prepared
    inserts: bool


def _watched(statement: ClauseElement) -> Watched | None:
    """Return what *statement* may change of what gives authority; None where nothing."""
    if not isinstance(statement, InsertStatement | Update | Delete):
        return None
    kind = AUTHORITY.get(getattr(statement.table, "name", ""))
    if kind is None:
        return None
    if isinstance(statement, InsertStatement):
        return Watched(kind, _by_key(kind), inserts=True)
    if isinstance(statement, Update):
        sets = statement._values or ()  # noqa: SLF001 -- what it sets stands nowhere else: compiled, it is text
        changed = {getattr(column, "key", column) for column in sets}
        if changed.isdisjoint((*kind.key, *kind.columns)):
            return None
    rows = kind.select()
    if statement.whereclause is not None:
        rows = rows.where(statement.whereclause)
    return Watched(kind, Prepared(rows), inserts=False)


@lru_cache(maxsize=64)
def _by_key(kind: AuthorityTable) -> Prepared:
    return Prepared(kind.select().where(*(kind.table.c[name] == bindparam(name) for name in kind.key)))


def row_of(kind: AuthorityTable, row: Row) -> tuple[str, str | None]:
    """Return key and digest of a row that `AuthorityTable.select` read; no digest where it gives nothing."""
    keys = len(kind.key)
    return key_of(row[:keys]), digest(row[keys + 1 :]) if row[keys] else None


class Prepared:
    """A statement that is compiled when a dialect first uses it.

    Args:
        statement: A Core statement, or a function from the dialect's `insert` to one where ON CONFLICT is
            needed.
        sqlite_index: Table and index that SQLite is to read it by (`INDEXED BY`). It prefers any equality over a
            partial index, however many rows are equal, and never counts them by itself.
    """

    __slots__ = ("_compiled", "_index", "_statement")

    def __init__(
        self,
        statement: ClauseElement | Callable[[Insert], ClauseElement],
        *,
        sqlite_index: tuple[str, str] | None = None,
    ) -> None:
        self._statement = statement
        self._index = sqlite_index
        self._compiled: dict[str, Compiled] = {}

    def compiled(self, name: str) -> Compiled:
        """Return the statement in the dialect called *name*."""
        found = self._compiled.get(name)
        if found is None:
            found = self._compiled[name] = self._compile(DIALECTS[name])
        return found

    def _compile(self, target: _Dialect) -> Compiled:
        statement = self._statement
        if not isinstance(statement, ClauseElement):
            statement = statement(target.insert)
        compiled = statement.compile(dialect=target.dialect)
        assert isinstance(compiled, SQLCompiler)
        names = tuple(compiled.positiontup or ())
        constants = {
            name: bind.effective_value for bind, name in compiled.bind_names.items() if not bind.required
        }
        text = str(compiled)
        if self._index is not None and target.dialect.name == "sqlite":
            table, index = self._index
            text = text.replace(f"FROM {table} \nWHERE", f"FROM {table} INDEXED BY {index} \nWHERE", 1)
        return Compiled(
            text=text,
            names=names,
            constants=constants,
            arrange=_arranger(names),
            watched=_watched(statement),
        )


def _arranger(names: tuple[str, ...]) -> Callable[[Mapping[str, object]], tuple[object, ...]]:
    if len(names) >= 2:
        return itemgetter(*names)
    if names:
        only = names[0]
        return lambda values: (values[only],)
    return lambda _: ()


class Cursor(Protocol):
    """What we need of a DB-API cursor."""

    @property
    def rowcount(self) -> int:
        """Rows changed by the last statement."""
        ...

    def execute(self, sql: str, parameters: Any, /) -> object:
        """Run one statement."""
        ...

    def fetchone(self) -> Any:
        """Return the next row or None."""
        ...

    def fetchall(self) -> list[Any]:
        """Return all remaining rows."""
        ...


class Executor:
    """Runs prepared statements on one cursor of one dialect, and remembers what they change of what gives authority."""

    __slots__ = ("_cursor", "_dialect", "_touched", "_trust")

    def __init__(self, cursor: Cursor, dialect: str) -> None:
        self._cursor = cursor
        self._trust: Callable[[], bool] | None = getattr(cursor, "changes_one", None)
        self._dialect = dialect
        # Rows of authority that the unit touched and no entry told of yet: their keys, and digests before.
        self._touched: dict[tuple[str, str], tuple[AuthorityTable, Mapping[str, object], str | None]] = {}

    def _execute(self, statement: Prepared, values: Mapping[str, object]) -> Cursor:
        compiled = statement.compiled(self._dialect)
        if compiled.watched is not None:
            # Before the constants of this statement, which another may have under the same names.
            self._touch(compiled.watched, values, compiled.constants)
        if compiled.constants:
            values = {**compiled.constants, **values}
        self._cursor.execute(compiled.text, compiled.arrange(values))
        return self._cursor

    def _touch(self, watched: Watched, values: Mapping[str, object], constants: Mapping[str, object]) -> None:
        """Remember what the rows are that are about to change."""
        kind = watched.kind
        rows = self.rows(watched.before, **values)
        if watched.inserts and not rows:
            key = {name: values[name] if name in values else constants[name] for name in kind.key}
            self._touched.setdefault((kind.name, key_of(key.values())), (kind, key, None))
        for row in rows:
            text, before = row_of(kind, row)
            key = dict(zip(kind.key, row, strict=False))
            self._touched.setdefault((kind.name, text), (kind, key, before))

    def changes(self) -> list[Change]:
        """Take what changed of what gives authority since this was asked last, for an entry to tell."""
        found = []
        touched, self._touched = self._touched, {}
        for (name, text), (kind, key, before) in touched.items():
            row = self.row(_by_key(kind), **key)
            after = None if row is None else row_of(kind, row)[1]
            if before != after:
                found.append(Change(name, text, before, after))
        return found

    def take_for_new(self, kind: AuthorityTable, rows: Sequence[Row]) -> None:
        """Let the next entry tell of *rows*, which `AuthorityTable.select` read, as if the unit had made them."""
        for row in rows:
            key = dict(zip(kind.key, row, strict=False))
            self._touched[kind.name, key_of(key.values())] = (kind, key, None)

    def forget(self) -> None:
        """Begin a unit: what the one before did is told, or undone."""
        self._touched.clear()

    def run(self, statement: Prepared, /, **values: object) -> int:
        """Run a statement and return how many rows it changed."""
        return self._execute(statement, values).rowcount

    def do(self, statement: Prepared, /, **values: object) -> None:
        """Run a statement of which nobody asks what it changed: where the database is far, this does not wait."""
        self._execute(statement, values)

    def one(self, statement: Prepared, /, **values: object) -> bool:
        """Run a statement that is to change one row, and return True if it did.

        Where the database is far this does not wait, and trusts that it did. Where it did not, the unit is undone and
        run again, and told so.
        """
        cursor = self._execute(statement, values)
        return cursor.rowcount == 1 if self._trust is None else self._trust()

    def row(self, statement: Prepared, /, **values: object) -> Row | None:
        """Return the one row of a statement, or None."""
        row: Row | None = self._execute(statement, values).fetchone()
        return row

    def rows(self, statement: Prepared, /, **values: object) -> list[Row]:
        """Return all rows of a statement."""
        return self._execute(statement, values).fetchall()
