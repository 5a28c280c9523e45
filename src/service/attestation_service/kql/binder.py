"""Names to columns, values to kinds: what was written becomes what it means, or is refused where it stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from attestation_service.kql import regex, syntax, times, tree
from attestation_service.kql.aggregates import AGGREGATES
from attestation_service.kql.expressions import LONGEST_CHAIN
from attestation_service.kql.functions import FUNCTIONS
from attestation_service.kql.kinds import Catalog, Column, Kind, Place
from attestation_service.kql.source import Source
from attestation_service.kql.sql import Function, Naming, Parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Rows, and what their columns are called."""

    rows: tree.Rows
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    def index(self, name: str) -> int | None:
        """Return which column has a name; nothing where none has."""
        return self.names.index(name) if name in self.names else None

    def ref(self, index: int) -> tree.Ref:
        """Return a column as a value."""
        return tree.Ref(index=index, kind=self.columns[index].kind)

    def refs(self) -> tuple[tree.Ref, ...]:
        """Return each column as a value."""
        return tuple(self.ref(index) for index in range(len(self.columns)))


class OperatorOfRows(Protocol):
    """What the binder asks of an operator."""

    def bind(self, binder: Binder, stage: Any, rows: Bound) -> Bound:
        """Say what a stage means for the rows that come in."""


_LONG_WINDED = frozenset({"has", "!has", "has_any", "has_all"})
_WORDS = 20
"""Each term of these is as much for a database to read as so many columns."""

AggregateHook = Callable[[syntax.Call], tree.Value]


class Binder:
    """Gives meaning to one query."""

    def __init__(
        self,
        source: Source,
        catalog: Catalog,
        *,
        at: int,
        operators: Mapping[str, OperatorOfRows],
        most: int,
    ) -> None:
        self.source, self.catalog, self.at, self.operators = source, catalog, at, operators
        self._most, self._meant = most, 0
        self.tables: set[str] = set()
        self._rows: dict[str, Bound] = {}
        self._scalars: dict[str, tree.Value] = {}

    def means(self, count: int, place: Place) -> None:
        """Count so much more that the query means: columns, or functions and values that a name stands for.

        Raises:
            QueryInvalid: It is more than a query may mean.
        """
        self._meant += count
        if self._meant > self._most:
            raise self.source.invalid(
                place,
                f"all operators together make more than {self._most:,} columns and values: project fewer",
            )

    # ------------------------------------------------------------ rows

    def let(self, let: syntax.Let) -> None:
        """Give a name to a scalar or to rows.

        Raises:
            QueryInvalid: The name is taken.
        """
        if let.name in self._rows or let.name in self._scalars:
            raise self.source.invalid(let.place, f"{let.name} is already named")
        value = let.value
        if isinstance(value, syntax.Name) and self._is_rows(value.name):
            table = syntax.TableName(place=value.place, name=value.name)
            value = syntax.Pipeline(place=value.place, source=table, stages=())
        if isinstance(value, syntax.Pipeline):
            bound = self.pipeline(value)
            shared = tree.Shared(number=len(self._rows), rows=bound.rows, kinds=bound.rows.kinds)
            self._rows[let.name] = replace(bound, rows=shared)
        else:
            self._scalars[let.name] = self.value(value, NOTHING)

    def _is_rows(self, name: str) -> bool:
        return name not in self._scalars and (name in self._rows or name in self.catalog)

    def pipeline(self, pipeline: syntax.Pipeline) -> Bound:
        """Say what a pipeline means.

        Raises:
            QueryInvalid: Nothing.
        """
        source = pipeline.source
        if isinstance(source, syntax.TableName):
            bound = self._table(source)
        elif isinstance(source, syntax.Pipeline):
            bound = self.pipeline(source)
        else:
            bound = self.operators[source.operator].bind(self, source, NOTHING)
        self.means(len(bound.columns), pipeline.place)
        for stage in pipeline.stages:
            bound = self.operators[stage.operator].bind(self, stage, bound)
            self.means(len(bound.columns), stage.place)
        return bound

    def _table(self, named: syntax.TableName) -> Bound:
        if named.name in self._rows:
            return self._rows[named.name]
        table = self.catalog.get(named.name)
        if table is None:
            raise self.source.unknown(named.place, "table", named.name, [*self.catalog, *self._rows])
        self.tables.add(table.name)
        kinds = tuple(column.kind for column in table.columns)
        return Bound(rows=tree.Scan(table=table, kinds=kinds), columns=table.columns)

    # ------------------------------------------------------------ values

    def condition(self, written: syntax.Expression, rows: Bound) -> tree.Value:
        """Say what a value means that must be a bool.

        Raises:
            QueryInvalid: It is none.
        """
        value = self.value(written, rows)
        if value.kind is not Kind.BOOL:
            raise self.source.invalid(written.place, f"expected a bool, found {_a(value.kind)}")
        return value

    def value(
        self, written: syntax.Expression, rows: Bound, aggregate: AggregateHook | None = None
    ) -> tree.Value:
        """Say what an expression means.

        Raises:
            QueryInvalid: Nothing: a name that is unknown, a kind that does not fit.
        """
        match written:
            case syntax.Literal():
                return tree.Const(kind=written.kind, value=_without_null(written))
            case syntax.Name():
                return self._name(written, rows)
            case syntax.Index():
                inner = self.value(written.value, rows, aggregate)
                if inner.kind is not Kind.DYNAMIC:
                    raise self.source.invalid(
                        written.place, f"only a dynamic value has members; this is {_a(inner.kind)}"
                    )
                return tree.Member(value=inner, key=written.key)
            case syntax.Call():
                return self._call(written, rows, aggregate)
            case syntax.Star():
                raise self.source.invalid(written.place, "* stands here for no columns")
            case syntax.Rows():
                raise self.source.invalid(
                    written.place, "expected values; rows of a pipeline stand after in alone"
                )
            case _:
                raise self.source.invalid(written.place, "expected a value, found a list")

    def _name(self, written: syntax.Name, rows: Bound) -> tree.Value:
        index = rows.index(written.name)
        if index is not None:
            return rows.ref(index)
        if written.name in self._scalars:
            value = self._scalars[written.name]
            self.means(tree.size_of(value), written.place)
            return value
        if self._is_rows(written.name):
            raise self.source.invalid(written.place, f"{written.name} is rows, where a value is expected")
        raise self.source.unknown(written.place, "column", written.name, [*rows.names, *self._scalars])

    def _call(self, written: syntax.Call, rows: Bound, aggregate: AggregateHook | None) -> tree.Value:
        if written.name in AGGREGATES:
            if aggregate is None:
                raise self.source.invalid(
                    written.mark, f"{written.name} is an aggregate, which stands in summarize"
                )
            return aggregate(written)
        function = FUNCTIONS.get(written.name)
        if function is None:
            known = [name for name, each in FUNCTIONS.items() if not each.is_operator or name == "not"]
            raise self.source.unknown(written.mark, "function", written.name, [*known, *AGGREGATES])
        if function.name in ("in", "!in", "in~", "!in~") and (
            found := self._in_rows(written, rows, aggregate)
        ):
            return found
        listed: list[syntax.Expression] = []
        for each in written.arguments:
            listed += each.items if isinstance(each, syntax.Group) else [each]
        values = tuple(self.value(each, rows, aggregate) for each in listed)
        return self.apply(written, function, tuple(listed), values)

    def _in_rows(
        self, written: syntax.Call, rows: Bound, aggregate: AggregateHook | None
    ) -> tree.Value | None:
        """Say what `x in (rows)` means; nothing where a list of values stands there."""
        left, right = written.arguments
        pipeline: syntax.Pipeline
        if isinstance(right, syntax.Rows):
            pipeline = right.pipeline
        elif (
            isinstance(right, syntax.Group)
            and len(right.items) == 1
            and isinstance(name := right.items[0], syntax.Name)
            and name.name not in rows.names
            and self._is_rows(name.name)
        ):
            table = syntax.TableName(place=name.place, name=name.name)
            pipeline = syntax.Pipeline(place=name.place, source=table, stages=())
        else:
            return None
        bound, value = self.pipeline(pipeline), self.value(left, rows, aggregate)
        if len(bound.columns) != 1:
            raise self.source.invalid(right.place, f"expected rows of one column, found {len(bound.columns)}")
        function = FUNCTIONS[written.name]
        # The kinds must fit as those of a list must.
        applied = self.apply(written, function, (left, right), (value, bound.ref(0)))
        assert isinstance(applied, tree.Apply)
        return tree.InRows(
            value=applied.arguments[0],
            rows=bound.rows,
            fold="~" in written.name,
            negated=written.name.startswith("!"),
        )

    def apply(
        self,
        written: syntax.Call,
        function: Function,
        listed: tuple[syntax.Expression, ...],
        values: tuple[tree.Value, ...],
    ) -> tree.Value:
        """Say what a function means for these arguments.

        Raises:
            QueryInvalid: They are too few or too many, or it is not defined for their kinds.
        """
        parameters = self._parameters(written, function, len(values))
        fitted = tuple(
            self._fitted(function, parameter, value, at.place)
            for parameter, value, at in zip(parameters, values, listed, strict=True)
        )
        fitted = _without_dynamic(fitted) if function.is_operator else fitted
        kinds = tuple(value.kind for value in fitted)
        kind = function.result if isinstance(function.result, Kind) else function.result(kinds)
        if kind is None:
            shown = " and ".join(kinds)
            name = written.name[0] if written.name in ("-1", "+1") else written.name
            raise self.source.invalid(written.mark, f"{name} is not defined for {shown}")
        if function.name in _LONG_WINDED:
            self.means(_WORDS * len(fitted), written.mark)
        if function.name == "matches regex":
            self._check_pattern(fitted[1], listed[1].place)
        if function.name in ("now", "ago"):
            return self._instant(function.name, fitted, written)
        if function.name in ("and", "or"):
            first = fitted[0]
            if isinstance(first, tree.Apply) and first.function is function:
                # A chain is flat: as deep as it is long, it would be more than a database takes.
                fitted = (*first.arguments, *fitted[1:])
        if (moved := _moved(function.name, fitted)) is not None:
            return moved
        if function.unified is not None:
            fitted = tuple(
                _as(kind, value) if function.unified(index, len(fitted)) else value
                for index, value in enumerate(fitted)
            )
        return tree.Apply(function=function, arguments=fitted, kind=kind)

    def _parameters(self, written: syntax.Call, function: Function, count: int) -> tuple[Parameter, ...]:
        """Return one parameter for each argument."""
        parameters = function.parameters
        least, most = len(parameters) - function.optional, len(parameters)
        if function.repeated:
            step = function.repeated
            while len(parameters) < count:
                tail = parameters[-1:] if step == 1 else parameters[-3:-1]
                parameters = (
                    (*parameters[: len(parameters) - (step - 1)], *tail)
                    if step == 1
                    else (*parameters[:-1], *tail, parameters[-1])
                )
            most = len(parameters)
            if count > LONGEST_CHAIN and not function.is_operator:
                raise self.source.invalid(
                    written.mark, f"{function.name} takes at most {LONGEST_CHAIN} arguments, found {count}"
                )
        if not least <= count <= most:
            expected = (
                f"at least {least}"
                if function.repeated
                else str(least)
                if least == most
                else f"{least} to {most}"
            )
            raise self.source.invalid(
                written.mark, f"{function.name} takes {expected} arguments, found {count}"
            )
        return parameters[:count]

    def _fitted(
        self, function: Function, parameter: Parameter, value: tree.Value, place: Place
    ) -> tree.Value:
        """Return an argument as its parameter wants it."""
        if parameter.constant and not isinstance(value, tree.Const):
            raise self.source.invalid(place, f"the {parameter.name} of {function.name} must be a literal")
        if value.kind in parameter.kinds:
            return value
        if value.kind is Kind.DYNAMIC and Kind.STRING in parameter.kinds:
            return _as(Kind.STRING, value)
        wanted = " or ".join(sorted(parameter.kinds))
        raise self.source.invalid(place, f"{function.name} takes {wanted} here, found {value.kind}")

    def _check_pattern(self, value: tree.Value, place: Place) -> None:
        assert isinstance(value, tree.Const)
        try:
            regex.check(str(value.value))
        except regex.Unsupported as e:
            raise self.source.invalid(place, f"in this pattern, at character {e.at + 1}: {e}") from None

    def _instant(self, name: str, values: tuple[tree.Value, ...], written: syntax.Call) -> tree.Value:
        """Return the instant of the query, so much earlier or later."""
        if not values:
            return tree.Const(kind=Kind.DATETIME, value=self.at)
        span = values[0]
        now = tree.Const(kind=Kind.DATETIME, value=self.at)
        if isinstance(span, tree.Const) and isinstance(span.value, int):
            moved = self.at + (span.value if name == "now" else -span.value)
            if not times.FIRST <= moved <= times.LAST:
                raise self.source.invalid(written.place, "no datetime is so far away")
            return tree.Const(kind=Kind.DATETIME, value=moved)
        function = FUNCTIONS["+" if name == "now" else "-"]
        return tree.Apply(function=function, arguments=(now, span), kind=Kind.DATETIME)


def _moved(name: str, values: tuple[tree.Value, ...]) -> tree.Const | None:
    """Return a datetime so much earlier or later, where both are known and there is one: an index serves it."""
    match name, values:
        case "+" | "-", (
            tree.Const(kind=Kind.DATETIME, value=int(at)),
            tree.Const(kind=Kind.TIMESPAN, value=int(span)),
        ):
            moved = at + (span if name == "+" else -span)
            return tree.Const(kind=Kind.DATETIME, value=moved) if times.FIRST <= moved <= times.LAST else None
        case _:
            return None


NOTHING = Bound(rows=tree.Union(parts=()), columns=())
"""No rows: what a scalar of `let` sees."""


def name_of(written: syntax.Expression) -> str | None:
    """Return what a column is called whose writer gave it no name; nothing where it is numbered."""
    match written:
        case syntax.Name():
            return written.name
        case syntax.Index():
            inner = name_of(written.value)
            if inner is None:
                return None
            return (
                f"{inner}_" if isinstance(written.key, int) and written.key < 0 else f"{inner}_{written.key}"
            )
        case syntax.Call() if written.name in AGGREGATES:
            prefix = AGGREGATES[written.name].prefix
            inner = name_of(written.arguments[0]) if written.arguments else None
            return f"{prefix}_{inner or ''}" if prefix else inner
        case syntax.Call() if written.name in FUNCTIONS and written.arguments:
            naming = FUNCTIONS[written.name].naming
            inner = name_of(written.arguments[0])
            if naming is Naming.AS_ARGUMENT:
                return inner
            return f"{written.name}_{inner or ''}" if naming is Naming.PREFIXED else None
        case _:
            return None


def _as(kind: Kind, value: tree.Value) -> tree.Value:
    """Convert a value, if it has another kind."""
    if value.kind is kind:
        return value
    if isinstance(value, tree.Const) and isinstance(value.value, int) and kind in (Kind.LONG, Kind.REAL):
        return tree.Const(kind=kind, value=float(value.value) if kind is Kind.REAL else value.value)
    if isinstance(value, tree.Const) and value.value is None:
        return tree.Const(kind=kind, value=None)
    return tree.Apply(function=FUNCTIONS[f"to{kind}"], arguments=(value,), kind=kind)


def _without_dynamic(values: tuple[tree.Value, ...]) -> tuple[tree.Value, ...]:
    """Convert dynamic operands to the kind of the others, where there is such a conversion."""
    kinds = [value.kind for value in values if value.kind is not Kind.DYNAMIC]
    if not kinds or len(kinds) == len(values):
        return values
    target = Kind.LONG if kinds[0] is Kind.INT else kinds[0]
    if f"to{target}" not in FUNCTIONS:
        return values
    return tuple(_as(target, value) if value.kind is Kind.DYNAMIC else value for value in values)


def _without_null(written: syntax.Literal) -> bool | int | float | str | None:
    """Return the value of a literal; the null of dynamic is null."""
    return None if written.kind is Kind.DYNAMIC and written.value == "null" else written.value


def _a(kind: Kind) -> str:
    return f"{'an' if kind is Kind.INT else 'a'} {kind}"
