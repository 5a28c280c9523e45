"""What somebody may ask: the tables of the service and of its extensions, with the columns that they may see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Float,
    Integer,
    LargeBinary,
    Numeric,
    String,
    Table,
    TypeDecorator,
)
from sqlalchemy.sql import visitors
from sqlalchemy.types import TypeEngine, to_instance

from attestation.extension import QueryTable
from attestation_service import kql
from attestation_service.context.identity import Right
from attestation_service.kql import Catalog, Kind
from attestation_service.query.columns import UNNESTED, Dialect, carried
from attestation_service.query.views import views

INSTANT: Final = "_at"
"""How the name of a whole number ends that is microseconds since 1970, in a table of an extension."""


def catalog(
    rights: frozenset[Right], at: datetime, added: Sequence[QueryTable] = (), *, dialect: Dialect = "sqlite"
) -> Catalog:
    """Return what somebody with *rights* may ask at *at*.

    Args:
        rights: What they may.
        at: Now: what is worth something until an instant depends on it.
        added: Tables of extensions.
        dialect: Of the database that is asked.
    """
    ours = (view.table(rights) for view in views(at, dialect))
    theirs = (of_extension(each) for each in added if each.right in rights)
    return Catalog([table for table in (*ours, *theirs) if table is not None])


def of_extension(asked: QueryTable) -> kql.Table:
    """Return a table of an extension as a query sees it.

    Raises:
        ValueError: It cannot be shown; in words.
    """
    found = asked.statement.subquery("of_extension").c
    shown = []
    for column in found:
        if (kind := kind_of(column)) is None:
            raise ValueError(f"{asked.name}.{column.name} is of a type that no query can show")
        shown.append((column.name, kind, column))
    return kql.Table(
        name=asked.name,
        description=asked.description,
        columns=tuple(
            kql.Column(name=name, kind=kind, description=asked.columns.get(name, ""))
            for name, kind, _ in shown
        ),
        statement=carried(shown),
    )


def kind_of(column: ColumnElement[Any]) -> Kind | None:
    """Return what a query takes a column of an extension for; None where it cannot be shown."""
    kind: TypeEngine[Any] = column.type
    if isinstance(kind, TypeDecorator):
        kind = to_instance(kind.impl)
    match kind:
        case Boolean():
            return Kind.BOOL
        case Integer() | BigInteger():
            return Kind.DATETIME if column.key is not None and column.key.endswith(INSTANT) else Kind.LONG
        case Float() | Numeric():
            return Kind.REAL
        case LargeBinary():
            return None
        case String():
            return Kind.STRING
        case _:
            return None


def reads(catalog: Catalog, names: Iterable[str]) -> frozenset[tuple[str, str]]:
    """Return table and column of all that the tables called *names* are made of."""
    found = {(each.table.name, each.name) for name in names for each in columns_of(catalog[name])}
    return frozenset(found) | UNNESTED


def columns_of(table: kql.Table) -> Iterable[Column[Any]]:
    """Return the columns of the database that *table* is made of."""
    for each in visitors.iterate(table.statement):
        if isinstance(each, Column) and isinstance(each.table, Table):
            yield each
