"""How a column of a logical table is declared, and what stands behind it in SQL."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Double,
    FromClause,
    Select,
    SQLColumnExpression,
    Text,
    select,
    type_coerce,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from attestation_service.context.identity import Right
from attestation_service.kql import Column, Kind, Table

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
    abs avg coalesce concat count floor instr json_array json_extract json_group_array json_group_object length lower
    ltrim max min nullif round row_number rtrim strftime substr sum total trim typeof upper
"""
BUILT_IN: Final = frozenset(_CALLED.split())
"""What queries and views may call of SQLite's own functions; none reads a file, waits or makes anything long."""

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
    """

    name: str
    kind: Kind
    of: SQLColumnExpression[Any]
    description: str
    rights: frozenset[Right]


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
            statement=carried((each.name, each.kind, each.of) for each in seen).select_from(self.rows),
        )


def carried(columns: Iterable[tuple[str, Kind, SQLColumnExpression[Any]]]) -> Select[Any]:
    """Select *columns* under their names, each as its kind is carried."""
    return select(*(type_coerce(of, _CARRIED[kind]).label(name) for name, kind, of in columns))


class micros_of(FunctionElement[int]):  # noqa: N801 -- it reads as a function
    """Microseconds since 1970 of text in RFC 3339 with six digits of fraction and `Z`, as the audit log keeps it."""

    type = BigInteger()
    inherit_cache = True


@compiles(micros_of, "sqlite")
def _on_sqlite(element: micros_of, compiler: SQLCompiler, **how: Any) -> str:
    text = compiler.process(element.clauses, **how)
    seconds = f"CAST(strftime('%s', substr({text}, 1, 19)) AS INTEGER)"
    return f"({seconds} * 1000000 + CAST(substr({text}, 21, 6) AS INTEGER))"


@compiles(micros_of, "postgresql")
def _on_postgresql(element: micros_of, compiler: SQLCompiler, **how: Any) -> str:
    text = compiler.process(element.clauses, **how)
    return f"CAST(extract(epoch FROM CAST({text} AS timestamptz)) * 1000000 AS BIGINT)"


class object_of(FunctionElement[str]):  # noqa: N801 -- likewise
    """A JSON object, as text, of the keys and values of a group of rows."""

    type = Text()
    inherit_cache = True


@compiles(object_of, "sqlite")
def _object_on_sqlite(element: object_of, compiler: SQLCompiler, **how: Any) -> str:
    return f"json_group_object({compiler.process(element.clauses, **how)})"


@compiles(object_of, "postgresql")
def _object_on_postgresql(element: object_of, compiler: SQLCompiler, **how: Any) -> str:
    return f"CAST(json_object_agg({compiler.process(element.clauses, **how)}) AS TEXT)"


class first_failed(FunctionElement[str]):  # noqa: N801 -- likewise
    """The name of the first check in a list of outcomes that failed; NULL where none did."""

    type = Text()
    inherit_cache = True


@compiles(first_failed, "sqlite")
def _failed_on_sqlite(element: first_failed, compiler: SQLCompiler, **how: Any) -> str:
    text = compiler.process(element.clauses, **how)
    return (
        f"(SELECT json_extract(value, '$[1]') FROM json_each({text})"  # noqa: S608 -- a column of ours
        " WHERE json_extract(value, '$[0]') = 'failed' LIMIT 1)"
    )


@compiles(first_failed, "postgresql")
def _failed_on_postgresql(element: first_failed, compiler: SQLCompiler, **how: Any) -> str:
    text = compiler.process(element.clauses, **how)
    return (
        f"(SELECT value ->> 1 FROM json_array_elements(CAST({text} AS json))"  # noqa: S608 -- likewise
        " WHERE value ->> 0 = 'failed' LIMIT 1)"
    )
