"""A SELECT that is still open: each operator that fits into it is written into it, not around it.

So a database sees one SELECT with its conditions, its order and its limit, and finds an index that serves them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql import visitors

from attestation_service.kql import tree
from attestation_service.kql.kinds import Kind, Table
from attestation_service.kql.shallow import DEEPEST
from attestation_service.kql.sql import SQL, TYPES, Argument, Dialect, constant, raw

MOST_KEYS = 16
"""Of an order that is carried along as columns; a longer one becomes one number for each row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What rows are sorted by.

    Args:
        value: As it is compared.
        nulls_first: Where nulls stand; None: there are none, and an index that says nothing of them serves.
    """

    value: SQL
    descending: bool
    nulls_first: bool | None

    def written(self) -> SQL:
        """Write it for ORDER BY."""
        by = self.value.desc() if self.descending else self.value.asc()
        if self.nulls_first is None:
            return by
        return by.nulls_first() if self.nulls_first else by.nulls_last()


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Rows that are still to be written.

    Args:
        base: Where they come from.
        columns: What each is made of.
        where: Conditions, all of which hold.
        order: What they are sorted by; nothing where they are in no order.
        limit: How many there are at most; what comes after it, but for columns, needs a SELECT around it.
    """

    base: sa.Select[Any]
    columns: tuple[Argument, ...]
    where: tuple[SQL, ...] = ()
    order: tuple[Key, ...] = ()
    limit: int | None = None

    def limited(self, count: int) -> Block:
        """Return the first of these rows."""
        return replace(self, limit=count if self.limit is None else min(count, self.limit))

    def takes(self, *values: tree.Value) -> bool:
        """Tell whether *values* can be written of these columns at once.

        Of a column that is computed one may be made, no deeper than what is computed at once, and it may be moved:
        written into each of its uses it would double with each operator.
        """
        moved, inside = self._computed(values)
        return (
            len(moved) == len(set(moved))
            and len(inside) == len(set(inside))
            and not any(self.columns[index].used for index in inside)
            and (not inside or all(self.depth_of(value) <= DEEPEST for value in values))
        )

    def depth_of(self, value: tree.Value) -> int:
        """Return how many functions are nested in a value, and in what it is made of."""
        return tree.depth_of(value) + max((self.columns[index].depth for index in _refs(value)), default=0)

    def using(self, *values: tree.Value) -> Block:
        """Return the same rows, where *values* have been made of the columns that they name."""
        _, inside = self._computed(values)
        return replace(
            self,
            columns=tuple(
                replace(column, used=True) if index in inside else column
                for index, column in enumerate(self.columns)
            ),
        )

    def _computed(self, values: Iterable[tree.Value]) -> tuple[list[int], list[int]]:
        """Return the computed columns that *values* are, and those that they are made of, as often as each is named."""
        moved, inside = list[int](), list[int]()
        for value in values:
            named = [index for index in _refs(value) if not self.columns[index].plain]
            if isinstance(value, tree.Ref):
                moved += named
            else:
                inside += named
        return moved, inside

    @property
    def is_plain(self) -> bool:
        """Tell whether each column may be written wherever it is named."""
        return all(column.plain for column in self.columns)

    def select(
        self, columns: Sequence[sa.Label[Any]] | None = None, *, ordered: bool = False
    ) -> sa.Select[Any]:
        """Write it, *columns* in place of its own; in order where that is asked for, or where it is cut off."""
        if columns is None:
            columns = [column.sql.label(f"c{index}") for index, column in enumerate(self.columns)]
        # What only counts rows needs none of their columns; SQLite has no SELECT of nothing.
        columns = columns or [constant(0).label("none")]
        found = self.base.with_only_columns(*columns, maintain_column_froms=True).where(*self.where)
        if ordered or self.limit is not None:
            found = found.order_by(*(key.written() for key in self.order))
        return found if self.limit is None else found.limit(self.limit)


def _refs(value: tree.Value) -> list[int]:
    """Return the columns that a value names, as often as it does."""
    match value:
        case tree.Ref():
            return [value.index]
        case tree.Apply():
            return [index for each in value.arguments for index in _refs(each)]
        case tree.Member() | tree.InRows():
            return _refs(value.value)
        case _:
            return []


def at(table: str, column: str, type_: Any) -> SQL:
    """Name a column of a table of a SELECT, without its table: SQLAlchemy adds that to each subquery that names it."""
    return raw(".".join('"' + name.replace('"', '""') + '"' for name in (table, column)), type_)


def over(name: str) -> sa.Select[Any]:
    """Return the SELECT of a common table expression, without columns."""
    return sa.select().select_from(sa.table(name))


def scan(table: Table, dialect: Dialect) -> Block:
    """Read a table, and hold its columns to what their kinds promise."""
    statement: Any = table.statement
    froms: Sequence[Any] = statement.get_final_froms()
    names = {each.name for of in froms for each in _tables(of)}

    def placed(element: Any, **_: Any) -> SQL | None:
        of: Any = element.table if isinstance(element, sa.ColumnClause) else None
        if of is None or of.name not in names:
            return None
        return at(of.name, element.name, element.type)

    def found(column: str) -> tuple[SQL, bool]:
        """Return what stands behind a column, and whether that is a column too."""
        of = _behind(statement.selected_columns[column])
        itself = placed(of)
        return (visitors.replacement_traverse(of, {}, placed), False) if itself is None else (itself, True)

    columns = []
    for column in table.columns:
        never_null = column.name in table.never_null
        of, is_column = found(column.name)
        # As its kind is carried, whatever the database takes it for.
        value: SQL = sa.type_coerce(of, TYPES[column.kind])
        stored = None
        match column.kind:
            case Kind.STRING if not never_null:
                stored = value if is_column else None
                value = sa.func.coalesce(value, raw("''"), type_=TYPES[Kind.STRING])
            case Kind.REAL:
                value = dialect.bounded_real(value)
            case Kind.DYNAMIC:
                value = sa.func.nullif(value, raw("'null'"), type_=TYPES[Kind.DYNAMIC])
            case Kind.DATETIME if column.name in table.as_text:
                stored = sa.type_coerce(of, TYPES[Kind.STRING])
                value = dialect.micros(stored)
        columns.append(
            Argument(
                sql=value,
                kind=column.kind,
                nullable=column.kind is not Kind.STRING and not never_null,
                stored=stored,
            )
        )
    return Block(base=statement, columns=tuple(columns))


def _behind(selected: Any) -> Any:
    """Return what a SELECT selects, without the name and the type that it is given there."""
    while isinstance(selected, sa.Label | sa.TypeCoerce):
        selected = selected.element if isinstance(selected, sa.Label) else selected.clause
    return selected


def _tables(of: Any) -> list[Any]:
    """Return the tables of a FROM."""
    return [*_tables(of.left), *_tables(of.right)] if isinstance(of, sa.Join) else [of]
