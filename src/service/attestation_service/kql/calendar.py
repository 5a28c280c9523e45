"""Functions of time, and `bin`. The instant of the query is a constant that the binder puts in."""

from __future__ import annotations

from collections.abc import Callable

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
    found = dialect.bin_whole(value.sql, step.sql, times.FIRST if kind is Kind.DATETIME else 0)
    return found if kind is Kind.LONG else dialect.bounded(found, kind)


def _start(of: int, length: int) -> Callable[[Dialect, tuple[Argument, ...]], SQL]:
    """Make the function that goes back to the beginning of a period of fixed length, counted from *of*."""

    def build(dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
        value, *offset = arguments
        shift = constant(_offset(offset) * length)
        begin = dialect.bin_whole(value.sql, constant(length), of)
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
        )
        for name, extra, build in (
            ("day", "", _start(times.FIRST, times.DAY)),
            ("week", ", on Sunday", _start(_SUNDAY, 7 * times.DAY)),
            ("month", "", _month),
        )
    ),
)
