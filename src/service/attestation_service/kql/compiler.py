"""Typed rows to SQLAlchemy Core: the same for both databases, but for what `Dialect` says.

Every column is called c0, c1 and so on, every value of the text is a bound parameter: nothing that somebody wrote is
part of the SQL. Rows that are in an order have their place in it beside them, as the column `o`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.elements import Grouping

from attestation_service.kql import tree
from attestation_service.kql.aggregates import AGGREGATES
from attestation_service.kql.kinds import Kind
from attestation_service.kql.shallow import shallow
from attestation_service.kql.sql import SQL, TYPES, Argument, Dialect, constant, null_of, raw


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """Rows as a SELECT, and whether it has the column `o`."""

    select: sa.Select[Any]
    ordered: bool = False


def _column(index: int, kind: Kind) -> SQL:
    return sa.column(f"c{index}", TYPES[kind])


def _same(left: SQL, right: SQL, kind: Kind, other: Kind) -> SQL:
    """Tell whether keys of a join are the same, null and null too; so that both databases can look them up."""
    if kind is Kind.STRING:
        return left == right
    if kind is Kind.BOOL:
        nothing: SQL = sa.false()
    else:
        nothing = sa.cast(constant(0), TYPES[Kind.REAL if Kind.REAL in (kind, other) else kind])
    return sa.and_(
        sa.func.coalesce(left, nothing) == sa.func.coalesce(right, nothing), left.is_(None) == right.is_(None)
    )


_ORDER = sa.column("o", sa.BigInteger())


class Compiler:
    """Writes one statement for one database."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._shared: dict[int, tuple[sa.TableClause, bool]] = {}
        self._parts: list[sa.CTE] = []

    def statement(self, rows: tree.Rows, count: int | None) -> sa.Select[Any]:
        """Write all rows, at most *count*, in their order where they have one."""
        written = self._rows(rows)
        table = self._named(written)
        found = self._from(table, [_column(i, kind) for i, kind in enumerate(rows.kinds)], ordered=False)
        if written.ordered:
            found = found.order_by(_ORDER)
        if count is not None:
            found = found.limit(count)
        # In order, and each names those before it by their names alone: SQLAlchemy would nest, as deep as there are.
        return found.add_cte(*self._parts)

    @property
    def parts(self) -> frozenset[str]:
        """The names of the common table expressions."""
        return frozenset(part.name for part in self._parts)

    # ------------------------------------------------------------ rows

    def _named(self, written: _Written) -> sa.TableClause:
        """Make a common table expression of rows: a subquery in one in one is more than SQLite's parser takes."""
        return self._part(written.select)

    def _part(self, select: sa.Select[*tuple[Any, ...]]) -> sa.TableClause:
        self._parts.append(select.cte(f"r{len(self._parts)}"))
        return sa.table(f"r{len(self._parts) - 1}")

    def _from(self, table: sa.FromClause, columns: Sequence[SQL], *, ordered: bool) -> sa.Select[Any]:
        """Select columns under their numbers."""
        labelled = [column.label(f"c{index}") for index, column in enumerate(columns)]
        if not labelled:
            # What only counts rows needs none of their columns; SQLite has no SELECT of nothing.
            labelled = [constant(0).label("none")]
        return sa.select(*labelled, *([_ORDER.label("o")] if ordered else [])).select_from(table)

    def _rows(self, rows: tree.Rows) -> _Written:
        match rows:
            case tree.Scan():
                return self._scan(rows)
            case tree.Shared():
                return self._share(rows)
            case tree.Filter() if (deep := shallow(rows)) is not rows:
                return self._rows(deep)
            case tree.Map() if (deep := shallow(rows)) is not rows:
                return self._rows(deep)
            case tree.Filter():
                inner = self._rows(rows.rows)
                selected = self._all(inner, rows.kinds)
                return _Written(select=selected.where(self.value(rows.condition).sql), ordered=inner.ordered)
            case tree.Map():
                inner = self._rows(rows.rows)
                values = [self.value(value).sql for value in rows.values]
                selected = self._from(self._named(inner), values, ordered=inner.ordered)
                if not all(isinstance(value, tree.Ref | tree.Const) for value in rows.values):
                    # A column of these that is used twice later is computed once: without an offset, databases put
                    # what it is made of in each of the places, which doubles with each operator.
                    selected = selected.offset(constant(0))
                return _Written(select=selected, ordered=inner.ordered)
            case tree.Sort():
                return self._sort(rows)
            case tree.Limit():
                inner = self._rows(rows.rows)
                selected = self._all(inner, rows.kinds)
                if inner.ordered:
                    selected = selected.order_by(_ORDER)
                return _Written(select=selected.limit(rows.count), ordered=inner.ordered)
            case tree.Aggregate():
                return self._aggregate(rows)
            case tree.Join():
                return self._join(rows)
            case tree.Union():
                return self._union(rows)

    def _all(self, inner: _Written, kinds: tuple[Kind, ...]) -> sa.Select[Any]:
        columns = [_column(index, kind) for index, kind in enumerate(kinds)]
        return self._from(self._named(inner), columns, ordered=inner.ordered)

    def _scan(self, rows: tree.Scan) -> _Written:
        """Read a table, and hold it to what each kind promises."""
        table = self._part(rows.table.statement)
        columns = []
        for column in rows.table.columns:
            value: SQL = sa.column(column.name, TYPES[column.kind])
            if column.kind is Kind.STRING:
                value = sa.func.coalesce(value, raw("''"), type_=TYPES[Kind.STRING])
            elif column.kind is Kind.REAL:
                value = self._dialect.bounded_real(value)
            elif column.kind is Kind.DYNAMIC:
                value = sa.func.nullif(value, raw("'null'"), type_=TYPES[Kind.DYNAMIC])
            columns.append(value)
        return _Written(select=self._from(table, columns, ordered=False))

    def _share(self, rows: tree.Shared) -> _Written:
        """Write rows that have a name once, as a common table expression."""
        if rows.number not in self._shared:
            inner = self._rows(rows.rows)
            self._shared[rows.number] = (self._named(inner), inner.ordered)
        table, ordered = self._shared[rows.number]
        columns = [_column(index, kind) for index, kind in enumerate(rows.kinds)]
        return _Written(select=self._from(table, columns, ordered=ordered), ordered=ordered)

    def _sort(self, rows: tree.Sort) -> _Written:
        inner = self._rows(rows.rows)
        by: list[SQL] = []
        for each in rows.by:
            kind = rows.kinds[each.column]
            value = self._dialect.ordered(_column(each.column, kind), kind)
            value = value.desc() if each.descending else value.asc()
            by.append(value.nulls_first() if each.nulls_first else value.nulls_last())
        if inner.ordered:
            by.append(_ORDER)
        table = self._named(inner)
        columns = [_column(i, kind).label(f"c{i}") for i, kind in enumerate(rows.kinds)]
        place = sa.func.row_number().over(order_by=by).label("o")
        return _Written(select=sa.select(*columns, place).select_from(table), ordered=True)

    def _aggregate(self, rows: tree.Aggregate) -> _Written:
        inner = self._rows(rows.rows)
        kinds = rows.rows.kinds
        inner = self._ranked(inner, rows)
        keys = [_column(key, kinds[key]) for key in rows.keys]
        made: list[SQL] = []
        for number, each in enumerate(rows.aggregations):
            column = sa.null() if each.column is None else _column(each.column, kinds[each.column])
            kind = each.kind if each.column is None else kinds[each.column]
            if each.best is not None:
                column = sa.case((sa.column(f"p{number}", sa.BigInteger()) == constant(1), column))
            argument = Argument(
                sql=column, kind=kind, nullable=kind is not Kind.STRING or each.best is not None
            )
            value = AGGREGATES[each.name].build(self._dialect, argument, _ORDER if inner.ordered else None)
            made.append(value)
        grouped = self._from(self._named(inner), [*keys, *made], ordered=False)
        if rows.keys:
            grouped = grouped.group_by(*keys)
        return _Written(select=self._finished(grouped, rows))

    def _finished(self, grouped: sa.Select[Any], rows: tree.Aggregate) -> sa.Select[Any]:
        """Make values of their kinds of what aggregates gave."""
        width, values = len(rows.keys), list[SQL]()
        for index, kind in enumerate(rows.kinds):
            value = _column(index, kind)
            if index >= width:
                value = AGGREGATES[rows.aggregations[index - width].name].finish(self._dialect, kind, value)
                if kind is Kind.STRING:
                    value = sa.func.coalesce(value, raw("''"), type_=TYPES[Kind.STRING])
            values.append(value)
        return self._from(self._part(grouped), values, ordered=False)

    def _ranked(self, inner: _Written, rows: tree.Aggregate) -> _Written:
        """Number the rows of each group from the best one on, for each aggregate that picks a row."""
        kinds = rows.rows.kinds
        if all(each.best is None for each in rows.aggregations):
            return inner
        keys = [_column(key, kinds[key]) for key in rows.keys]
        extra = []
        for number, each in enumerate(rows.aggregations):
            if each.best is None:
                continue
            best = self._dialect.ordered(_column(each.best, kinds[each.best]), kinds[each.best])
            first = best.asc() if each.name == "arg_min" else best.desc()
            # Of rows that are equally good, the same one in both databases.
            others = [
                self._dialect.ordered(_column(i, kind), kind).asc().nulls_first()
                for i, kind in enumerate(kinds)
            ]
            place = sa.func.row_number().over(
                partition_by=keys or None, order_by=[first.nulls_last(), *others]
            )
            extra.append(place.label(f"p{number}"))
        columns = [_column(i, kind).label(f"c{i}") for i, kind in enumerate(kinds)]
        order = [_ORDER.label("o")] if inner.ordered else []
        selected = sa.select(*columns, *order, *extra).select_from(self._named(inner))
        return _Written(select=selected, ordered=inner.ordered)

    def _join(self, rows: tree.Join) -> _Written:
        left, right = self._rows(rows.left), self._rows(rows.right)
        if rows.flavour == "innerunique":
            left = self._unique(left, rows)
        a, b = self._sided(left, rows.left.kinds), self._sided(right, rows.right.kinds)
        same = sa.and_(
            *(
                _same(a.c[f"c{one}"], b.c[f"c{other}"], rows.left.kinds[one], rows.right.kinds[other])
                for one, other in rows.on
            )
        )
        of_left = [a.c[f"c{index}"] for index in range(len(rows.left.kinds))]
        if rows.flavour in ("leftsemi", "leftanti"):
            found = sa.exists(sa.select(constant(1)).select_from(b).where(same).correlate(a))
            selected = self._from(a, of_left, ordered=False)
            return _Written(select=selected.where(found if rows.flavour == "leftsemi" else sa.not_(found)))
        outer = rows.flavour == "leftouter"
        of_right = []
        for index, kind in enumerate(rows.right.kinds):
            column: SQL = b.c[f"c{index}"]
            if outer and kind is Kind.STRING:
                column = sa.func.coalesce(column, raw("''"), type_=TYPES[Kind.STRING])
            of_right.append(column)
        joined = a.join(b, same, isouter=outer)
        return _Written(select=self._from(joined, [*of_left, *of_right], ordered=False))

    def _sided(self, written: _Written, kinds: tuple[Kind, ...]) -> sa.TableClause:
        """Name rows whose columns are to be told from those of the other side."""
        columns = [sa.column(f"c{index}", TYPES[kind]) for index, kind in enumerate(kinds)]
        return sa.table(self._named(written).name, *columns)

    def _unique(self, left: _Written, rows: tree.Join) -> _Written:
        """Keep one row for each key: the first by all columns, so that both databases keep the same."""
        kinds = rows.left.kinds
        keys = [_column(one, kinds[one]) for one, _ in rows.on]
        by = [
            self._dialect.ordered(_column(i, kind), kind).asc().nulls_first() for i, kind in enumerate(kinds)
        ]
        columns = [_column(i, kind).label(f"c{i}") for i, kind in enumerate(kinds)]
        place = sa.func.row_number().over(partition_by=keys, order_by=by).label("u")
        numbered = self._part(sa.select(*columns, place).select_from(self._named(left)))
        first = self._from(numbered, [_column(i, kind) for i, kind in enumerate(kinds)], ordered=False)
        return _Written(select=first.where(sa.column("u", sa.BigInteger()) == constant(1)))

    def _union(self, rows: tree.Union) -> _Written:
        selects = []
        for part in rows.parts:
            inner = self._rows(part)
            columns = [_column(index, kind) for index, kind in enumerate(rows.kinds)]
            selects.append(self._from(self._named(inner), columns, ordered=False))
        if len(selects) == 1:
            return _Written(select=selects[0])
        united = sa.union_all(*selects)
        self._parts.append(united.cte(f"r{len(self._parts)}"))
        columns = [_column(index, kind) for index, kind in enumerate(rows.kinds)]
        return _Written(select=self._from(sa.table(f"r{len(self._parts) - 1}"), columns, ordered=False))

    # ------------------------------------------------------------ values

    def value(self, value: tree.Value) -> Argument:
        """Write a value."""
        match value:
            case tree.Ref():
                column = _column(value.index, value.kind)
                return Argument(sql=column, kind=value.kind, nullable=value.kind is not Kind.STRING)
            case tree.Const():
                if value.value is None:
                    return Argument(
                        sql=null_of(value.kind), kind=value.kind, nullable=value.kind is not Kind.STRING
                    )
                bound = sa.literal(value.value, TYPES[value.kind])
                return Argument(sql=bound, kind=value.kind, nullable=False, constant=value.value)
            case tree.Member():
                inner = self.value(value.value)
                return Argument(
                    sql=self._dialect.member(inner.sql, value.key), kind=Kind.DYNAMIC, nullable=True
                )
            case tree.Apply():
                arguments = tuple(self.value(each) for each in value.arguments)
                # In parentheses, so that no precedence matters.
                written = Grouping(value.function.build(self._dialect, arguments))
                nullable = value.function.nullable
                if nullable is None:
                    nullable = any(argument.nullable for argument in arguments)
                return Argument(
                    sql=written, kind=value.kind, nullable=nullable and value.kind is not Kind.STRING
                )
            case tree.InRows():
                return self._in_rows(value)

    def _in_rows(self, value: tree.InRows) -> Argument:
        inner = self._rows(value.rows)
        kind = value.rows.kinds[0]
        column = _column(0, kind)
        found = self._from(self._named(inner), [column], ordered=False).where(column.is_not(None))
        left = self.value(value.value).sql
        if value.fold:
            lowered = self._dialect.lower(column)
            found = self._from(self._named(inner), [lowered], ordered=False).where(column.is_not(None))
            left = self._dialect.lower(left)
        asked = sa.func.coalesce(left.in_(found), sa.false(), type_=TYPES[Kind.BOOL])
        return Argument(sql=sa.not_(asked) if value.negated else asked, kind=Kind.BOOL, nullable=False)
