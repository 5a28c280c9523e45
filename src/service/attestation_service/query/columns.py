"""How a column of a logical table is declared, and what stands behind it in SQL."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    ColumnElement,
    Double,
    FromClause,
    Join,
    Select,
    SQLColumnExpression,
    Text,
    cast,
    func,
    select,
    type_coerce,
)
from sqlalchemy import Column as DatabaseColumn
from sqlalchemy.types import TypeEngine

from attestation_service.context.identity import Right
from attestation_service.kql import Column, Kind, Table

Dialect = Literal["sqlite", "postgresql"]

_CARRIED: Final[dict[Kind, TypeEngine[Any]]] = {
    Kind.BOOL: Boolean(),
    Kind.INT: BigInteger(),
    Kind.LONG: BigInteger(),
    Kind.REAL: Double(),
    Kind.STRING: Text(),
    Kind.DATETIME: BigInteger(),
    Kind.TIMESPAN: BigInteger(),
    Kind.DYNAMIC: Text(),
}
"""As what a column is selected. Not as our own types, which encode what they are compared with."""

_CALLED: Final = """
    avg coalesce count instr json_array json_extract json_group_array json_group_object length lower max min nullif
    row_number strftime substr sum total upper
"""
BUILT_IN: Final = frozenset(_CALLED.split())
"""What queries and views may call of SQLite's own functions; none reads a file, waits or makes anything long.

By hand: made of what the compiler writes, it would believe what it is there to check. A test tries every word.
"""

UNNESTED: Final = frozenset({("json_each", name) for name in ("", "value", "json")})
"""What they read beside tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One column of a logical table.

    Args:
        name: As it is written in a query.
        kind: Of its values.
        of: What stands behind it.
        description: What it says, for who writes queries.
        rights: Who sees it: whoever has one of these.
        is_text: It is a datetime that stands there as text, as `Table.as_text` has it.
    """

    name: str
    kind: Kind
    of: SQLColumnExpression[Any]
    description: str
    rights: frozenset[Right]
    is_text: bool = False

    def is_never_null(self, rows: FromClause) -> bool:
        """Tell whether the database has a value of it in each of *rows*."""
        # What an outer join puts to the right may be missing.
        always = rows.left if isinstance(rows, Join) else rows
        return isinstance(self.of, DatabaseColumn) and self.of.table is always and not self.of.nullable


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One logical table.

    Args:
        name: As it is written in a query.
        description: What its rows are.
        columns: What may be seen of it, in the order in which it is shown.
        rows: Where they come from.
    """

    name: str
    description: str
    columns: tuple[Shown, ...]
    rows: FromClause

    def table(self, rights: frozenset[Right]) -> Table | None:
        """Return what somebody with *rights* sees of it; None where they see nothing.

        What they may not see is not selected: for them it does not exist.
        """
        seen = [each for each in self.columns if each.rights & rights]
        if not seen:
            return None
        return Table(
            name=self.name,
            description=self.description,
            columns=tuple(
                Column(name=each.name, kind=each.kind, description=each.description) for each in seen
            ),
            statement=carried(
                (each.name, Kind.STRING if each.is_text else each.kind, each.of) for each in seen
            ).select_from(self.rows),
            never_null=frozenset(each.name for each in seen if each.is_never_null(self.rows)),
            as_text=frozenset(each.name for each in seen if each.is_text),
        )


def carried(columns: Iterable[tuple[str, Kind, SQLColumnExpression[Any]]]) -> Select[Any]:
    """Select *columns* under their names, each as its kind is carried."""
    return select(*(type_coerce(of, _CARRIED[kind]).label(name) for name, kind, of in columns))


def object_of(
    key: SQLColumnExpression[str], value: SQLColumnExpression[str], dialect: Dialect
) -> ColumnElement[str]:
    """A JSON object, as text, of the keys and values of a group of rows."""
    if dialect == "postgresql":
        return cast(func.json_object_agg(key, value), Text())
    return func.json_group_object(key, value, type_=Text())


def first_failed(outcomes: SQLColumnExpression[Any], dialect: Dialect) -> ColumnElement[str]:
    """The name of the first check in a list of outcomes that failed; NULL where none did."""
    word: ColumnElement[Any]
    name: ColumnElement[Any]
    if dialect == "postgresql":
        each = func.json_array_elements(cast(outcomes, JSON())).table_valued("value").render_derived()
        word, name = each.c.value.op("->>")(0), each.c.value.op("->>")(1)
    else:
        each = func.json_each(type_coerce(outcomes, Text())).table_valued("value")
        word, name = func.json_extract(each.c.value, "$[0]"), func.json_extract(each.c.value, "$[1]")
    return select(type_coerce(name, Text())).where(word == "failed").limit(1).scalar_subquery()
