"""summarize: one row for each group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attestation_service.kql import syntax, tree
from attestation_service.kql.aggregates import AGGREGATES, AggregateFunction
from attestation_service.kql.binder import Binder, Bound, name_of
from attestation_service.kql.expressions import PipelineParser
from attestation_service.kql.kinds import Column, Kind, Place
from attestation_service.kql.operators.columns import read_item
from attestation_service.kql.operators.naming import Names
from attestation_service.kql.operators.operator import Operator
from attestation_service.kql.reader import Reader
from attestation_service.kql.syntax import Item, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Summarize(Stage):
    """Make one row for each group."""

    operator: ClassVar[str] = "summarize"
    aggregates: tuple[Item, ...]
    by: tuple[Item, ...]


def _read(reader: Reader, pipeline: PipelineParser, place: Place) -> Summarize:
    aggregates: tuple[Item, ...] = ()
    if not reader.is_word("by"):
        aggregates = reader.listed(lambda: read_item(reader, pipeline))
    by: tuple[Item, ...] = ()
    if reader.skip("by"):
        by = reader.listed(lambda: read_item(reader, pipeline))
    return Summarize(place=place, aggregates=aggregates, by=by)


class _Summary:
    """Gathers what has to be computed before rows are grouped, what of the groups, and what after it."""

    def __init__(self, binder: Binder, rows: Bound) -> None:
        self.binder, self.rows = binder, rows
        self.before: list[tree.Value] = []
        self.keys: list[int] = []
        self.aggregations: list[tree.Aggregation] = []
        self._places: dict[tree.Aggregation, int] = {}
        self._columns: dict[tree.Value, int] = {}

    def column(self, value: tree.Value) -> int:
        """Have a value computed for each row; return its column."""
        if value not in self._columns:
            self._columns[value] = len(self.before)
            self.before.append(value)
        return self._columns[value]

    def key(self, value: tree.Value) -> None:
        """Group by a value."""
        self._columns.setdefault(value, len(self.before))
        self.keys.append(len(self.before))
        self.before.append(value)

    def aggregate(self, call: syntax.Call) -> tree.Value:
        """Have an aggregate computed; return it as a value, whose column is moved past the keys at the end."""
        function = AGGREGATES[call.name]
        if function.picks:
            raise self.binder.source.invalid(
                call.mark, f"{call.name} makes columns, so it stands alone, not inside an expression"
            )
        if function.kinds is None:
            self._arguments(call, 0, 0)
            return self._add(tree.Aggregation(name=call.name, kind=Kind.LONG))
        self._arguments(call, 1, 1)
        value = self._argument(function, call)
        kind = function.result(value.kind)
        assert kind is not None
        return self._add(tree.Aggregation(name=call.name, kind=kind, column=self.column(value)))

    def picked(self, call: syntax.Call) -> list[tuple[str | None, syntax.Expression, tree.Value]]:
        """Have what arg_max or arg_min picks computed; return the name and the value of each column."""
        function = AGGREGATES[call.name]
        self._arguments(call, 1, None)
        best = self._argument(function, call)
        decides = self.column(best)
        taken: list[tuple[str | None, syntax.Expression, tree.Value]] = [(None, call.arguments[0], best)]
        for each in call.arguments[1:]:
            if isinstance(each, syntax.Star):
                self.binder.means(len(self.rows.columns), each.place)
                grouped = [self.before[key] for key in self.keys]
                named = name_of(call.arguments[0])
                taken += [
                    (column.name, each, ref)
                    for column, ref in zip(self.rows.columns, self.rows.refs(), strict=True)
                    if ref not in grouped and column.name != named
                ]
            else:
                taken.append((None, each, self.binder.value(each, self.rows)))
        return [
            (
                name or name_of(written),
                written,
                self._add(
                    tree.Aggregation(name=call.name, kind=value.kind, column=self.column(value), best=decides)
                ),
            )
            for name, written, value in taken
        ]

    def _add(self, aggregation: tree.Aggregation) -> tree.Ref:
        if aggregation not in self._places:
            self._places[aggregation] = len(self.aggregations)
            self.aggregations.append(aggregation)
        return tree.Ref(index=len(self.keys) + self._places[aggregation], kind=aggregation.kind)

    def _arguments(self, call: syntax.Call, least: int, most: int | None) -> None:
        count = len(call.arguments)
        if count < least or (most is not None and count > most):
            expected = f"{least}" if most == least else f"at least {least}"
            raise self.binder.source.invalid(
                call.mark, f"{call.name} takes {expected} arguments, found {count}"
            )

    def _argument(self, function: AggregateFunction, call: syntax.Call) -> tree.Value:
        """Return what is aggregated, of a kind that can be."""
        written = call.arguments[0]
        value = self.binder.value(written, self.rows)
        assert function.kinds is not None
        if value.kind not in function.kinds:
            raise self.binder.source.invalid(
                written.place,
                f"{function.name} takes {' or '.join(sorted(function.kinds))}, found {value.kind}",
            )
        return value


def _meaning(binder: Binder, stage: Summarize, rows: Bound) -> Bound:
    summary, names, values = _Summary(binder, rows), Names(binder.source), list[tree.Value]()
    for item in stage.by:
        value = binder.value(item.value, rows)
        if value.kind is Kind.DYNAMIC:
            raise binder.source.invalid(
                item.value.place, "groups are not made by a dynamic value", suggestion="tostring around it"
            )
        _named(names, item)
        # Two keys may be the same value; each is a column.
        summary.key(value)
        values.append(tree.Ref(index=len(values), kind=value.kind))
    for item in stage.aggregates:
        call = item.value
        if isinstance(call, syntax.Call) and call.name in AGGREGATES and AGGREGATES[call.name].picks:
            for position, (name, _, value) in enumerate(summary.picked(call)):
                if item.name is not None and position == 0:
                    names.add(item.place, item.name)
                else:
                    names.add_derived(name)
                values.append(value)
            continue
        value = binder.value(call, NO_COLUMNS, summary.aggregate) if _constant(call) else _bind(summary, call)
        _named(names, item)
        values.append(value)
    if not values:
        raise binder.source.invalid(stage.place, "summarize has neither aggregates nor groups")
    return _finished(summary, names, values)


NO_COLUMNS = Bound(rows=tree.Union(parts=()), columns=())


def _constant(_written: syntax.Expression) -> bool:
    """Outside of its aggregates an expression sees no columns: which row's would they be?"""
    return True


def _bind(summary: _Summary, written: syntax.Expression) -> tree.Value:
    return summary.binder.value(written, NO_COLUMNS, summary.aggregate)


def _named(names: Names, item: Item) -> None:
    if item.name is None:
        names.add_unnamed(item.place, name_of(item.value), item.value)
    else:
        names.add(item.place, item.name)


def _finished(summary: _Summary, names: Names, values: list[tree.Value]) -> Bound:
    """Put together what is computed before, of, and after the groups."""
    before = tree.Map(
        rows=summary.rows.rows,
        values=tuple(summary.before),
        kinds=tuple(value.kind for value in summary.before),
    )
    kinds = (
        *(before.kinds[key] for key in summary.keys),
        *(aggregation.kind for aggregation in summary.aggregations),
    )
    grouped = tree.Aggregate(
        rows=before, keys=tuple(summary.keys), aggregations=tuple(summary.aggregations), kinds=kinds
    )
    final = tuple(value.kind for value in values)
    columns = tuple(Column(name=name, kind=kind) for name, kind in zip(names.names, final, strict=True))
    return Bound(rows=tree.Map(rows=grouped, values=tuple(values), kinds=final), columns=columns)


OPERATORS = (
    Operator(
        name="summarize",
        written="summarize [name =] aggregate, … by [name =] value, …",
        description="Makes one row for each group, of aggregates of its rows.",
        read=_read,
        meaning=_meaning,
    ),
)
