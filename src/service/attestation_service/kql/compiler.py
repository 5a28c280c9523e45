"""Typed rows to SQLAlchemy Core: the same for both databases, but for what `Dialect` says.

Every column is called c0, c1 and so on, every value of the text is a bound parameter: nothing that somebody wrote is
part of the SQL. Operators that fit into one SELECT are one (`blocks`); around what does not, a common table expression
is made, under a name of ours. What its rows are sorted by is carried along as columns k0, k1 and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.elements import Grouping

from attestation_service.kql import tree
from attestation_service.kql.aggregates import AGGREGATES
from attestation_service.kql.blocks import MOST_KEYS, Block, Key, at, over, scan
from attestation_service.kql.kinds import Kind
from attestation_service.kql.shallow import shallow, split
from attestation_service.kql.sql import SQL, TYPES, Argument, Dialect, constant, null_of, raw

_NUMBER = sa.BigInteger()


def _same(left: Argument, right: Argument) -> SQL:
    """Tell whether keys of a join are the same, null and null too; so that both databases can look them up."""
    if not (left.nullable or right.nullable):
        return left.sql == right.sql
    if left.kind is Kind.BOOL:
        nothing: SQL = sa.false()
    else:
        nothing = sa.cast(
            constant(0), TYPES[Kind.REAL if Kind.REAL in (left.kind, right.kind) else left.kind]
        )
    return sa.and_(
        sa.func.coalesce(left.sql, nothing) == sa.func.coalesce(right.sql, nothing),
        left.sql.is_(None) == right.sql.is_(None),
    )


class Compiler:
    """Writes one statement for one database."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._shared: dict[int, Block] = {}
        self._parts: list[sa.CTE] = []

    def statement(self, rows: tree.Rows, count: int | None) -> sa.Select[Any]:
        """Write all rows, at most *count*, in their order where they have one."""
        block = self._rows(rows)
        if count is not None:
            block = block.limited(count)
        # In order, and each names those before it by their names alone: SQLAlchemy would nest, as deep as there are.
        return block.select(ordered=True).add_cte(*self._parts)

    @property
    def parts(self) -> frozenset[str]:
        """The names of the common table expressions."""
        return frozenset(part.name for part in self._parts)

    # ------------------------------------------------------------ rows

    def _part(self, select: sa.Select[Any] | sa.CompoundSelect[Any]) -> str:
        """Make a common table expression: a subquery in one in one is more than SQLite's parser takes."""
        name = f"r{len(self._parts)}"
        self._parts.append(select.cte(name))
        return name

    def _named(self, block: Block, *more: sa.Label[Any], ordered: bool = True) -> tuple[str, Block]:
        """Make a common table expression of rows and of *more* columns; return its name, and the rows that it has.

        What they are sorted by is carried along where they stay *ordered*.
        """
        columns = [column.sql.label(f"c{index}") for index, column in enumerate(block.columns)]
        columns += [
            column.text.label(f"t{index}")
            for index, column in enumerate(block.columns)
            if column.text is not None
        ]
        keys = block.order if ordered else ()
        if len(keys) > MOST_KEYS:
            place = sa.func.row_number().over(order_by=[key.written() for key in keys])
            keys = (Key(value=place, descending=False, nulls_first=None),)
        columns += [key.value.label(f"k{index}") for index, key in enumerate(keys)]
        select = block.select([*columns, *more])
        if not block.is_plain:
            # A column of these that is used twice later is computed once: without an offset, databases put what it
            # is made of in each of the places, which doubles with each operator.
            select = select.offset(constant(0))
        name = self._part(select)
        return name, Block(
            base=over(name),
            columns=tuple(_read(name, index, column) for index, column in enumerate(block.columns)),
            order=tuple(
                replace(key, value=at(name, f"k{index}", key.value.type)) for index, key in enumerate(keys)
            ),
        )

    def _whole(self, block: Block) -> Block:
        """Return rows that are not cut off: what comes now would choose among others."""
        return block if block.limit is None else self._named(block)[1]

    def _plain(self, block: Block) -> Block:
        """Return rows whose columns may be written wherever they are named."""
        block = self._whole(block)
        return block if block.is_plain else self._named(block)[1]

    def _ready(self, block: Block, *values: tree.Value) -> Block:
        """Return rows of whose columns *values* can be written."""
        return block if block.takes(*values) else self._named(block)[1]

    def _rows(self, rows: tree.Rows) -> Block:
        match rows:
            case tree.Scan():
                return scan(rows.table, self._dialect)
            case tree.Shared():
                if rows.number not in self._shared:
                    self._shared[rows.number] = self._named(self._rows(rows.rows))[1]
                return self._shared[rows.number]
            case tree.Filter() if (several := split(rows)) is not rows:
                return self._rows(several)
            case tree.Filter() | tree.Map() if (deep := shallow(rows)) is not rows:
                return self._rows(deep)
            case tree.Filter():
                block = self._ready(self._whole(self._rows(rows.rows)), rows.condition)
                condition = self.value(rows.condition, block.columns).sql
                return replace(block.using(rows.condition), where=(*block.where, condition))
            case tree.Map():
                block = self._ready(self._rows(rows.rows), *rows.values)
                block = block.using(*rows.values)
                return replace(block, columns=tuple(self._made(value, block) for value in rows.values))
            case tree.Sort():
                return self._sort(rows)
            case tree.Limit():
                return self._rows(rows.rows).limited(rows.count)
            case tree.Aggregate():
                return self._aggregate(rows)
            case tree.Join():
                return self._join(rows)
            case tree.Union():
                return self._union(rows)

    def _made(self, value: tree.Value, block: Block) -> Argument:
        """Write a value as a column."""
        written = self.value(value, block.columns)
        if isinstance(value, tree.Ref | tree.Const):
            return written
        return Argument(
            sql=written.sql,
            kind=written.kind,
            nullable=_may_be_null(written.kind) and written.text is None,
            plain=False,
            depth=block.depth_of(value),
            stored=written.text,
        )

    def _sort(self, rows: tree.Sort) -> Block:
        block = self._whole(self._rows(rows.rows))
        keys = []
        for each in rows.by:
            column = block.columns[each.column]
            keys.append(
                Key(
                    value=self._ordered(column),
                    descending=each.descending,
                    nulls_first=each.nulls_first if column.nullable else None,
                )
            )
        return replace(block, order=(*keys, *block.order))

    def _aggregate(self, rows: tree.Aggregate) -> Block:
        name, block, order = self._grouped(rows)
        # Datetimes that are text are grouped as such, and read once a group.
        made = [
            column.sql.label(f"c{index}") if column.text is None else column.text.label(f"t{index}")
            for index, column in enumerate(block.columns[key] for key in rows.keys)
        ]
        for number, each in enumerate(rows.aggregations):
            function, called = AGGREGATES[each.name], "c"
            argument = Argument(sql=sa.null(), kind=each.kind, nullable=True)
            if each.column is not None:
                argument = block.columns[each.column]
            if argument.text is not None and function.chooses:
                argument, called = Argument(sql=argument.text, kind=Kind.STRING, nullable=False), "t"
            if each.best is not None:
                best = sa.case((at(name, f"p{number}", _NUMBER) == constant(1), argument.sql))
                argument = Argument(sql=best, kind=argument.kind, nullable=True)
            made.append(function.build(self._dialect, argument, order).label(f"{called}{len(made)}"))
        # By their place: a parameter that is written twice is not the same to PostgreSQL.
        grouped = block.select(made).group_by(*(constant(index + 1) for index in range(len(rows.keys))))
        return self._finished(grouped, rows, {label.name for label in made})

    def _finished(self, grouped: sa.Select[Any], rows: tree.Aggregate, made: set[str]) -> Block:
        """Make values of their kinds of what aggregates gave."""
        name, width, columns = self._part(grouped), len(rows.keys), list[Argument]()
        for index, kind in enumerate(rows.kinds):
            is_key = index < width
            if f"t{index}" in made:
                text = at(name, f"t{index}", TYPES[Kind.STRING])
                columns.append(
                    Argument(
                        sql=self._dialect.micros(text),
                        kind=kind,
                        nullable=not is_key,
                        stored=text if is_key else None,
                    )
                )
                continue
            value = found = at(name, f"c{index}", TYPES[kind])
            if not is_key:
                value = AGGREGATES[rows.aggregations[index - width].name].finish(self._dialect, kind, found)
            plain = value is found
            if not is_key and kind is Kind.STRING:
                value = sa.func.coalesce(value, raw("''"), type_=TYPES[kind])
            columns.append(Argument(sql=value, kind=kind, nullable=_may_be_null(kind), plain=plain))
        return Block(base=over(name), columns=tuple(columns))

    def _grouped(self, rows: tree.Aggregate) -> tuple[str, Block, SQL | None]:
        """Return rows as they are put into groups, under a name where they have one, and the place of each.

        For each aggregate that picks a row, the rows of a group are numbered from the best one on.
        """
        block, more = self._whole(self._rows(rows.rows)), list[sa.Label[Any]]()
        of = [block.columns[each.column] for each in rows.aggregations if each.column is not None]
        listed = bool(block.order) and any(each.name == "make_list" for each in rows.aggregations)
        picked = any(each.best is not None for each in rows.aggregations)
        if not listed and not picked and all(column.plain for column in of):
            return "", block, None
        if picked:
            block = self._plain(block)
        if listed:
            place = sa.func.row_number().over(order_by=[key.written() for key in block.order])
            more.append(place.label("o"))
        for number, each in enumerate(rows.aggregations):
            if each.best is None:
                continue
            best = self._ordered(block.columns[each.best])
            first = best.asc() if each.name == "arg_min" else best.desc()
            # Of rows that are equally good, the same one in both databases.
            others = [self._ordered(column).asc().nulls_first() for column in block.columns]
            keys = [block.columns[key].sql for key in rows.keys]
            place = sa.func.row_number().over(
                partition_by=keys or None, order_by=[first.nulls_last(), *others]
            )
            more.append(place.label(f"p{number}"))
        name, block = self._named(block, *more, ordered=False)
        return name, block, at(name, "o", _NUMBER) if listed else None

    def _ordered(self, column: Argument) -> SQL:
        if column.text is not None:
            return self._dialect.ordered(column.text, Kind.STRING)
        return self._dialect.ordered(column.sql, column.kind)

    def _join(self, rows: tree.Join) -> Block:
        left, right = self._rows(rows.left), self._rows(rows.right)
        if rows.flavour == "innerunique":
            left = self._unique(left, rows)
        (a, one), (b, other) = self._named(left, ordered=False), self._named(right, ordered=False)
        same = sa.and_(*(_same(one.columns[left], other.columns[right]) for left, right in rows.on))
        if rows.flavour in ("leftsemi", "leftanti"):
            found = sa.exists(sa.select(constant(1)).select_from(sa.table(b)).where(same))
            return replace(one, where=(found if rows.flavour == "leftsemi" else sa.not_(found),))
        outer = rows.flavour == "leftouter"
        of_right = [_or_nothing(column) for column in other.columns] if outer else other.columns
        joined = sa.table(a).join(sa.table(b), same, isouter=outer)
        return Block(base=sa.select().select_from(joined), columns=(*one.columns, *of_right))

    def _unique(self, left: Block, rows: tree.Join) -> Block:
        """Keep one row for each key: the first by all columns, so that both databases keep the same."""
        left = self._plain(left)
        place = sa.func.row_number().over(
            partition_by=[left.columns[one].sql for one, _ in rows.on],
            order_by=[self._ordered(column).asc().nulls_first() for column in left.columns],
        )
        name, numbered = self._named(left, place.label("u"), ordered=False)
        return replace(numbered, where=(at(name, "u", _NUMBER) == constant(1),))

    def _union(self, rows: tree.Union) -> Block:
        parts = [self._named(self._rows(part), ordered=False)[1] for part in rows.parts]
        if len(parts) == 1:
            return parts[0]
        name = self._part(sa.union_all(*(part.select() for part in parts)))
        columns = (
            Argument(sql=at(name, f"c{index}", TYPES[kind]), kind=kind, nullable=_may_be_null(kind))
            for index, kind in enumerate(rows.kinds)
        )
        return Block(base=over(name), columns=tuple(columns))

    # ------------------------------------------------------------ values

    def value(self, value: tree.Value, columns: Sequence[Argument]) -> Argument:
        """Write a value of *columns*."""
        match value:
            case tree.Ref():
                return columns[value.index]
            case tree.Const():
                if value.value is None:
                    return Argument(
                        sql=null_of(value.kind),
                        kind=value.kind,
                        nullable=_may_be_null(value.kind),
                        fixed=True,
                    )
                bound = sa.literal(value.value, TYPES[value.kind])
                return Argument(sql=bound, kind=value.kind, nullable=False, constant=value.value, fixed=True)
            case tree.Member():
                inner = self.value(value.value, columns)
                return Argument(
                    sql=self._dialect.member(inner.sql, value.key), kind=Kind.DYNAMIC, nullable=True
                )
            case tree.Apply():
                arguments = tuple(self.value(each, columns) for each in value.arguments)
                stored = value.function.stored and value.function.stored(arguments)
                if stored is not None:
                    return Argument(
                        sql=self._dialect.micros(stored), kind=value.kind, nullable=False, stored=stored
                    )
                # In parentheses, so that no precedence matters.
                written = Grouping(value.function.build(self._dialect, arguments))
                nullable = value.function.nullable
                if nullable is None:
                    nullable = any(argument.nullable for argument in arguments)
                return Argument(
                    sql=written,
                    kind=value.kind,
                    nullable=nullable and _may_be_null(value.kind),
                    fixed=all(argument.fixed for argument in arguments),
                )
            case tree.InRows():
                return self._in_rows(value, columns)

    def _in_rows(self, value: tree.InRows, columns: Sequence[Argument]) -> Argument:
        _, inner = self._named(self._rows(value.rows), ordered=False)
        column, left = inner.columns[0].sql, self.value(value.value, columns).sql
        kept = replace(inner, where=(column.is_not(None),))
        if value.fold:
            column, left = self._dialect.lower(column), self._dialect.lower(left)
        asked = sa.func.coalesce(
            left.in_(kept.select([column.label("c0")])), sa.false(), type_=TYPES[Kind.BOOL]
        )
        return Argument(sql=sa.not_(asked) if value.negated else asked, kind=Kind.BOOL, nullable=False)


def _may_be_null(kind: Kind) -> bool:
    return kind is not Kind.STRING


def _read(name: str, index: int, column: Argument) -> Argument:
    """Return a column of a common table expression."""
    return Argument(
        sql=at(name, f"c{index}", TYPES[column.kind]),
        kind=column.kind,
        nullable=column.nullable,
        stored=None if column.text is None else at(name, f"t{index}", TYPES[Kind.STRING]),
    )


def _or_nothing(column: Argument) -> Argument:
    """Return a column as it is where no row was found for it."""
    value = column.sql
    if column.kind is Kind.STRING:
        value = sa.func.coalesce(value, raw("''"), type_=TYPES[Kind.STRING])
    return Argument(sql=value, kind=column.kind, nullable=_may_be_null(column.kind))
