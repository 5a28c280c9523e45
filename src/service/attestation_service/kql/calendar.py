"""Functions of time, and `bin`. The instant of the query is a constant that the binder puts in."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from attestation_service.kql import times
from attestation_service.kql.kinds import NUMBERS, WHOLE, Kind
from attestation_service.kql.sql import (
    SQL,
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

_AT = Parameter(name="at", kinds=frozenset({Kind.DATETIME}))
_OFFSET = Parameter(name="offset", kinds=WHOLE, constant=True)
_SPAN = Parameter(name="span", kinds=frozenset({Kind.TIMESPAN}))
_SUNDAY = times.FIRST - times.DAY
"""0001-01-01 was a Monday."""
MOST_OFFSET = 100_000


def _bin_kind(kinds: tuple[Kind, ...]) -> Kind | None:
    value, step = kinds
    if value in NUMBERS and step in NUMBERS:
        return Kind.REAL if Kind.REAL in kinds else Kind.LONG
    return value if value in (Kind.DATETIME, Kind.TIMESPAN) and step is Kind.TIMESPAN else None


def _bin(dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
    """Round down to a multiple of the step; datetimes count from 0001-01-01. A step that is not positive makes null."""
    value, step = arguments
    kind = _bin_kind((value.kind, step.kind))
    assert kind is not None
    if kind is Kind.REAL:
        return dialect.bounded_real(dialect.bin_real(as_real(value), as_real(step)))
    if kind is Kind.DATETIME and isinstance(step.constant, int) and step.constant > 0:
        return dialect.bin_fixed(value.sql, step.sql, times.FIRST)
    found = dialect.bin_whole(value.sql, step.sql, times.FIRST if kind is Kind.DATETIME else 0)
    return found if kind is Kind.LONG else dialect.bounded(found, kind)


_CUT = {
    86_400_000_000: (10, "T00:00:00.000000Z"),
    3_600_000_000: (13, ":00:00.000000Z"),
    60_000_000: (16, ":00.000000Z"),
    1_000_000: (19, ".000000Z"),
}
"""Steps that leave the beginning of a datetime that is text, how long that is, and what follows it."""


def _cut(text: SQL, length: int, rest: str) -> SQL:
    return sa.func.substr(text, constant(1), constant(length), type_=sa.Text()).concat(raw(f"'{rest}'"))


def _bin_of_text(arguments: tuple[Argument, ...]) -> SQL | None:
    value, step = arguments
    if value.text is None or step.constant not in _CUT:
        return None
    return _cut(value.text, *_CUT[int(step.constant)])


def _start_of_text(length: int, rest: str) -> Callable[[tuple[Argument, ...]], SQL | None]:
    def build(arguments: tuple[Argument, ...]) -> SQL | None:
        value, *offset = arguments
        return None if value.text is None or _offset(offset) else _cut(value.text, length, rest)

    return build


def _start(of: int, length: int) -> Callable[[Dialect, tuple[Argument, ...]], SQL]:
    """Make the function that goes back to the beginning of a period of fixed length, counted from *of*."""

    def build(dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
        value, *offset = arguments
        shift = constant(_offset(offset) * length)
        begin = dialect.bin_fixed(value.sql, constant(length), of)
        return dialect.bounded(infix("+", begin, shift), Kind.DATETIME)

    return build


def _offset(arguments: list[Argument]) -> int:
    value = arguments[0].constant if arguments else 0
    return max(-MOST_OFFSET, min(MOST_OFFSET, int(value or 0)))


def _month(dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
    value, *offset = arguments
    return dialect.bounded(dialect.start_of_month(value.sql, constant(_offset(offset))), Kind.DATETIME)


def _never(_dialect: Dialect, _arguments: tuple[Argument, ...]) -> SQL:
    raise AssertionError("the binder computes it")


FUNCTIONS: tuple[Function, ...] = (
    Function(
        name="now",
        parameters=(_SPAN,),
        optional=1,
        result=Kind.DATETIME,
        description="The instant of the query, or so much later.",
        build=_never,
    ),
    Function(
        name="ago",
        parameters=(_SPAN,),
        result=Kind.DATETIME,
        description="The instant that was so long before the query.",
        build=_never,
    ),
    Function(
        name="bin",
        aliases=("floor",),
        parameters=(
            Parameter(name="value", kinds=NUMBERS | {Kind.DATETIME, Kind.TIMESPAN}),
            Parameter(name="step", kinds=NUMBERS | {Kind.TIMESPAN}),
        ),
        result=_bin_kind,
        naming=Naming.AS_ARGUMENT,
        nullable=True,
        description="The greatest multiple of the step that is not above the value; for groups.",
        build=_bin,
        stored=_bin_of_text,
    ),
    *(
        Function(
            name=f"startof{name}",
            parameters=(_AT, _OFFSET),
            optional=1,
            result=Kind.DATETIME,
            nullable=True,
            # As Kusto does, which calls the others Column1.
            naming=Naming.AS_ARGUMENT if name == "day" else Naming.NUMBERED,
            description=f"Where the {name} of a datetime begins{extra}, or so many {name}s later.",
            build=build,
            stored=stored,
        )
        for name, extra, build, stored in (
            ("day", "", _start(times.FIRST, times.DAY), _start_of_text(*_CUT[times.DAY])),
            ("week", ", on Sunday", _start(_SUNDAY, 7 * times.DAY), None),
            ("month", "", _month, _start_of_text(7, "-01T00:00:00.000000Z")),
        )
    ),
)
