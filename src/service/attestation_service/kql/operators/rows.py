"""Operators that choose, order and count rows: where, take, sort, top, count, distinct."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attestation_service.kql import tree
from attestation_service.kql.binder import Binder, Bound, name_of
from attestation_service.kql.expressions import PipelineParser, expression
from attestation_service.kql.kinds import Column, Kind, Place
from attestation_service.kql.lexer import Sort as TokenSort
from attestation_service.kql.operators.naming import Names
from attestation_service.kql.operators.operator import Operator
from attestation_service.kql.reader import Reader
from attestation_service.kql.syntax import Expression, Key, Stage, Star


@dataclass(frozen=True, slots=True, kw_only=True)
class Where(Stage):
    """Keep rows."""

    operator: ClassVar[str] = "where"
    condition: Expression


@dataclass(frozen=True, slots=True, kw_only=True)
class Take(Stage):
    """Keep so many rows."""

    operator: ClassVar[str] = "take"
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sort(Stage):
    """Order rows."""

    operator: ClassVar[str] = "sort"
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Top(Stage):
    """Order rows, and keep so many."""

    operator: ClassVar[str] = "top"
    count: int
    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Count(Stage):
    """Count rows."""

    operator: ClassVar[str] = "count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Distinct(Stage):
    """Keep one of equal rows."""

    operator: ClassVar[str] = "distinct"
    values: tuple[Expression, ...]


def _read_where(reader: Reader, pipeline: PipelineParser, place: Place) -> Where:
    return Where(place=place, condition=expression(reader, pipeline))


def _where(binder: Binder, stage: Where, rows: Bound) -> Bound:
    condition = binder.condition(stage.condition, rows)
    kept = tree.Filter(rows=rows.rows, condition=condition, kinds=rows.rows.kinds)
    return Bound(rows=kept, columns=rows.columns)


def _number(reader: Reader) -> int:
    """Read how many rows."""
    token = reader.token
    if token.sort is not TokenSort.LITERAL or token.kind not in (Kind.LONG, Kind.INT) or token.value is None:
        raise reader.expected("a number of rows")
    reader.take()
    return int(token.value)


def _read_take(reader: Reader, _pipeline: PipelineParser, place: Place) -> Take:
    return Take(place=place, count=_number(reader))


def _take(_binder: Binder, stage: Take, rows: Bound) -> Bound:
    return Bound(
        rows=tree.Limit(rows=rows.rows, count=stage.count, kinds=rows.rows.kinds), columns=rows.columns
    )


def _key(reader: Reader, pipeline: PipelineParser) -> Key:
    value = expression(reader, pipeline)
    descending = not reader.skip("asc")
    if descending:
        reader.skip("desc")
    nulls_first = not descending
    if reader.skip("nulls"):
        nulls_first = reader.is_word("first")
        reader.expect("first" if nulls_first else "last")
    return Key(value=value, descending=descending, nulls_first=nulls_first)


def _read_sort(reader: Reader, pipeline: PipelineParser, place: Place) -> Sort:
    reader.expect("by")
    return Sort(place=place, keys=reader.listed(lambda: _key(reader, pipeline)))


def _read_top(reader: Reader, pipeline: PipelineParser, place: Place) -> Top:
    count = _number(reader)
    reader.expect("by")
    return Top(place=place, count=count, keys=(_key(reader, pipeline),))


def _sort(binder: Binder, stage: Sort | Top, rows: Bound) -> Bound:
    """Compute what rows are sorted by as columns of its own, sort, and drop them."""
    width, values = len(rows.columns), list[tree.Value]()
    by = []
    for key in stage.keys:
        value = binder.value(key.value, rows)
        if value.kind is Kind.DYNAMIC:
            raise binder.source.invalid(
                key.value.place, "a dynamic value has no order", suggestion="tostring or tolong around it"
            )
        if isinstance(value, tree.Ref):
            column = value.index
        else:
            column = width + len(values)
            values.append(value)
        by.append(tree.Sorting(column=column, descending=key.descending, nulls_first=key.nulls_first))
    kinds = rows.rows.kinds
    if not values:
        return Bound(rows=tree.Sort(rows=rows.rows, by=tuple(by), kinds=kinds), columns=rows.columns)
    wide = tree.Map(
        rows=rows.rows, values=(*rows.refs(), *values), kinds=(*kinds, *(value.kind for value in values))
    )
    ordered = tree.Sort(rows=wide, by=tuple(by), kinds=wide.kinds)
    return Bound(rows=tree.Map(rows=ordered, values=rows.refs(), kinds=kinds), columns=rows.columns)


def _top(binder: Binder, stage: Top, rows: Bound) -> Bound:
    ordered = _sort(binder, stage, rows)
    first = tree.Limit(rows=ordered.rows, count=stage.count, kinds=ordered.rows.kinds)
    return Bound(rows=first, columns=rows.columns)


def _read_count(_reader: Reader, _pipeline: PipelineParser, place: Place) -> Count:
    return Count(place=place)


def _count(_binder: Binder, _stage: Count, rows: Bound) -> Bound:
    counted = tree.Aggregate(
        rows=rows.rows,
        keys=(),
        aggregations=(tree.Aggregation(name="count", kind=Kind.LONG),),
        kinds=(Kind.LONG,),
    )
    return Bound(rows=counted, columns=(Column(name="Count", kind=Kind.LONG),))


def _read_distinct(reader: Reader, pipeline: PipelineParser, place: Place) -> Distinct:
    return Distinct(place=place, values=reader.listed(lambda: expression(reader, pipeline)))


def _distinct(binder: Binder, stage: Distinct, rows: Bound) -> Bound:
    names, values = Names(binder.source), list[tree.Value]()
    for written in stage.values:
        if isinstance(written, Star):
            if len(stage.values) > 1:
                raise binder.source.invalid(written.place, "* stands alone: it is all columns")
            for column, ref in zip(rows.columns, rows.refs(), strict=True):
                names.add(written.place, column.name)
                values.append(ref)
        else:
            values.append(binder.value(written, rows))
            names.add_unnamed(written.place, name_of(written), written)
    for value, written in zip(values, stage.values * len(values), strict=False):
        if value.kind is Kind.DYNAMIC:
            raise binder.source.invalid(
                written.place, "dynamic values cannot be compared", suggestion="tostring around it"
            )
    kinds = tuple(value.kind for value in values)
    wanted = tree.Map(rows=rows.rows, values=tuple(values), kinds=kinds)
    different = tree.Aggregate(rows=wanted, keys=tuple(range(len(values))), aggregations=(), kinds=kinds)
    return Bound(rows=different, columns=names.columns(kinds))


OPERATORS = (
    Operator(
        name="where",
        aliases=("filter",),
        written="where condition",
        description="Keeps the rows for which the condition is true; not those for which it is null.",
        read=_read_where,
        meaning=_where,
    ),
    Operator(
        name="take",
        aliases=("limit",),
        written="take n",
        description="Keeps the first rows; any, where they are in no order.",
        read=_read_take,
        meaning=_take,
    ),
    Operator(
        name="sort",
        aliases=("order",),
        written="sort by value [asc | desc] [nulls first | nulls last], …",
        description="Orders rows, descending unless told otherwise; nulls come first ascending, last descending.",
        read=_read_sort,
        meaning=_sort,
    ),
    Operator(
        name="top",
        written="top n by value [asc | desc] [nulls first | nulls last]",
        description="Orders rows as sort does, and keeps the first.",
        read=_read_top,
        meaning=_top,
    ),
    Operator(
        name="count",
        written="count",
        description="Makes one row of all, with their number in the column Count.",
        read=_read_count,
        meaning=_count,
    ),
    Operator(
        name="distinct",
        written="distinct value, … | distinct *",
        description="Makes one row of each combination of values.",
        read=_read_distinct,
        meaning=_distinct,
    ),
)
