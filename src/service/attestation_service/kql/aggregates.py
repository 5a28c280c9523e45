"""The one table of aggregates: binder, compiler, schema, reference and completion derive from it. All skip nulls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from attestation_service.kql.kinds import NUMBERS, SCALARS, Kind
from attestation_service.kql.sql import ANY, SQL, TYPES, Argument, Dialect, constant


def _as_it_is(_dialect: Dialect, _kind: Kind, value: SQL) -> SQL:
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateFunction:
    """An aggregate: what makes one value of a group.

    Args:
        kinds: What it takes; nothing where it counts rows.
        result: The kind of its value.
        prefix: What its column is called, before the name of what it is of.
        takes: How its arguments are written in the reference.
        build: Writes it over a column of the group; given the column that rows are sorted by too, if any.
        finish: Makes a value of its kind of that: outside of the groups, where it may be used more than once.
        picks: Whether it picks a row, of which further arguments are taken: arg_max and arg_min.
        chooses: Whether it gives one of the values as it is, by their order.
    """

    name: str
    kinds: frozenset[Kind] | None
    result: Callable[[Kind], Kind | None]
    prefix: str
    takes: str
    description: str
    build: Callable[[Dialect, Argument, SQL | None], SQL]
    finish: Callable[[Dialect, Kind, SQL], SQL] = _as_it_is
    picks: bool = False
    chooses: bool = False


def _count(_dialect: Dialect, _value: Argument, _order: SQL | None) -> SQL:
    return sa.func.count()


def _countif(_dialect: Dialect, value: Argument, _order: SQL | None) -> SQL:
    return sa.func.count(sa.case((value.sql, constant(1))))


def _dcount(_dialect: Dialect, value: Argument, _order: SQL | None) -> SQL:
    return sa.func.count(sa.distinct(value.sql))


def _sum(dialect: Dialect, value: Argument, _order: SQL | None) -> SQL:
    # The sum of nothing is 0; one that has no room is null.
    return dialect.sum_of(value.sql, value.kind)


def _finish_sum(dialect: Dialect, kind: Kind, value: SQL) -> SQL:
    return dialect.bounded_real(value) if kind is Kind.REAL else dialect.bounded(value, kind)


def _avg(_dialect: Dialect, value: Argument, _order: SQL | None) -> SQL:
    return sa.func.avg(sa.cast(value.sql, TYPES[Kind.REAL]), type_=TYPES[Kind.REAL])


def _finish_avg(dialect: Dialect, kind: Kind, value: SQL) -> SQL:
    return dialect.truncated(value) if kind is Kind.TIMESPAN else value


def _extreme(*, least: bool) -> Callable[[Dialect, Argument, SQL | None], SQL]:
    def build(dialect: Dialect, value: Argument, _order: SQL | None) -> SQL:
        return dialect.greatest(value.sql, value.kind, least=least)

    return build


def _list(*, distinct: bool) -> Callable[[Dialect, Argument, SQL | None], SQL]:
    def build(dialect: Dialect, value: Argument, order: SQL | None) -> SQL:
        return dialect.list_of(value, distinct=distinct, order=order)

    return build


def _picked(dialect: Dialect, value: Argument, _order: SQL | None) -> SQL:
    return dialect.best_of(value.sql, value.kind)


def _summed(kind: Kind) -> Kind | None:
    return {Kind.INT: Kind.LONG}.get(kind, kind)


_MEASURES = NUMBERS | {Kind.TIMESPAN}

AGGREGATES: Mapping[str, AggregateFunction] = {
    each.name: each
    for each in (
        AggregateFunction(
            name="count",
            kinds=None,
            result=lambda _: Kind.LONG,
            prefix="count",
            takes="",
            description="How many rows.",
            build=_count,
        ),
        AggregateFunction(
            name="countif",
            kinds=frozenset({Kind.BOOL}),
            result=lambda _: Kind.LONG,
            prefix="countif",
            takes="condition",
            description="How many rows for which it is true.",
            build=_countif,
        ),
        AggregateFunction(
            name="dcount",
            kinds=SCALARS,
            result=lambda _: Kind.LONG,
            prefix="dcount",
            takes="value",
            description="How many different values: counted, not estimated.",
            build=_dcount,
        ),
        AggregateFunction(
            name="sum",
            kinds=_MEASURES,
            result=_summed,
            prefix="sum",
            takes="value",
            description="The sum; 0 of nothing, null where it has no room.",
            build=_sum,
            finish=_finish_sum,
        ),
        AggregateFunction(
            name="avg",
            kinds=_MEASURES,
            result=lambda kind: kind if kind is Kind.TIMESPAN else Kind.REAL,
            prefix="avg",
            takes="value",
            description="The mean; null of nothing.",
            build=_avg,
            finish=_finish_avg,
        ),
        AggregateFunction(
            name="min",
            kinds=SCALARS,
            result=lambda kind: kind,
            prefix="min",
            takes="value",
            description="The least value; null of nothing.",
            build=_extreme(least=True),
            chooses=True,
        ),
        AggregateFunction(
            name="max",
            kinds=SCALARS,
            result=lambda kind: kind,
            prefix="max",
            takes="value",
            description="The greatest value; null of nothing.",
            build=_extreme(least=False),
            chooses=True,
        ),
        AggregateFunction(
            name="make_list",
            kinds=ANY,
            result=lambda _: Kind.DYNAMIC,
            prefix="list",
            takes="value",
            description="All values as a list, as the rows are sorted.",
            build=_list(distinct=False),
        ),
        AggregateFunction(
            name="make_set",
            kinds=ANY,
            result=lambda _: Kind.DYNAMIC,
            prefix="set",
            takes="value",
            description="Each different value once, as a list in the order of their texts.",
            build=_list(distinct=True),
        ),
        AggregateFunction(
            name="arg_max",
            kinds=SCALARS,
            result=lambda kind: kind,
            prefix="",
            takes="value, column, … or value, *",
            description="The greatest value, and the columns of the row that has it.",
            build=_picked,
            picks=True,
            chooses=True,
        ),
        AggregateFunction(
            name="arg_min",
            kinds=SCALARS,
            result=lambda kind: kind,
            prefix="",
            takes="value, column, … or value, *",
            description="The least value, and the columns of the row that has it.",
            build=_picked,
            picks=True,
            chooses=True,
        ),
    )
}
