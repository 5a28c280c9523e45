"""Functions that make one kind of another, and those of dynamic values."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from attestation_service.kql import times
from attestation_service.kql.kinds import NUMBERS, Kind
from attestation_service.kql.sql import (
    ANY,
    SQL,
    TYPES,
    Argument,
    Dialect,
    Function,
    Naming,
    Parameter,
    as_real,
    constant,
    infix,
    raw,
)
from attestation_service.kql.texts import text_or_empty

_ANY = (Parameter(name="value", kinds=ANY),)


def _to_long(dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
    (value,) = arguments
    if value.kind in (Kind.INT, Kind.LONG):
        return value.sql
    if value.kind is Kind.REAL:
        return dialect.truncated(value.sql)
    if value.kind is Kind.BOOL:
        return sa.cast(sa.case((value.sql, constant(1)), (sa.not_(value.sql), constant(0))), TYPES[Kind.LONG])
    if value.kind is Kind.DATETIME:
        # Ticks, of which there are ten in a microsecond.
        return infix("*", infix("-", value.sql, constant(times.FIRST)), constant(10))
    if value.kind is Kind.TIMESPAN:
        return infix("*", value.sql, constant(10))
    return dialect.long_of_text(dialect.text_of(value))


def _to_int(dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
    return dialect.bounded(_to_long(dialect, arguments), Kind.INT)


def _to_real(dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
    (value,) = arguments
    if value.kind in NUMBERS:
        return as_real(value)
    if value.kind in (Kind.STRING, Kind.DYNAMIC):
        return dialect.real_of_text(dialect.text_of(value))
    return sa.cast(_to_long(dialect, arguments), TYPES[Kind.REAL])


def _to_bool(dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
    (value,) = arguments
    if value.kind is Kind.BOOL:
        return value.sql
    if value.kind in NUMBERS:
        return value.sql != constant(0)
    return sa.case(
        {
            raw("'true'"): sa.true(),
            raw("'1'"): sa.true(),
            raw("'false'"): sa.false(),
            raw("'0'"): sa.false(),
        },
        value=dialect.lower(dialect.text_of(value)),
        else_=sa.cast(sa.null(), TYPES[Kind.BOOL]),
    )


def _to_dynamic(dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
    (value,) = arguments
    return value.sql if value.kind is Kind.DYNAMIC else dialect.parse_json(value.sql)


def _number(
    name: str,
    kind: Kind,
    article: str,
    build: Callable[[Dialect, tuple[Argument, ...]], SQL],
    aliases: tuple[str, ...] = (),
) -> Function:
    return Function(
        name=name,
        aliases=aliases,
        parameters=_ANY,
        result=kind,
        naming=Naming.AS_ARGUMENT,
        nullable=True,
        description=f"The value as {article} {kind}; null where it is none.",
        build=build,
    )


FUNCTIONS: tuple[Function, ...] = (
    Function(
        name="tostring",
        parameters=_ANY,
        result=Kind.STRING,
        naming=Naming.AS_ARGUMENT,
        description="The value as text; empty where it is null.",
        build=lambda dialect, a: text_or_empty(dialect, a[0]),
    ),
    _number("toint", Kind.INT, "an", _to_int),
    _number("tolong", Kind.LONG, "a", _to_long),
    _number("toreal", Kind.REAL, "a", _to_real, ("todouble",)),
    _number("tobool", Kind.BOOL, "a", _to_bool, ("toboolean",)),
    Function(
        name="parse_json",
        aliases=("todynamic",),
        parameters=(Parameter(name="text", kinds=frozenset({Kind.STRING, Kind.DYNAMIC})),),
        result=Kind.DYNAMIC,
        naming=Naming.AS_ARGUMENT,
        nullable=True,
        description=(
            "What JSON holds; a text that is none stays a string. "
            "Members are read as `value.name`, `value['name']`, `value[0]`."
        ),
        build=_to_dynamic,
    ),
)
