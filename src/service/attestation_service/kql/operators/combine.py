"""Operators that put rows of several pipelines together: join, union."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attestation_service.kql import tree
from attestation_service.kql.binder import NOTHING, Binder, Bound
from attestation_service.kql.expressions import PipelineParser, expression
from attestation_service.kql.kinds import NUMBERS, Column, Kind, Place
from attestation_service.kql.lexer import Sort
from attestation_service.kql.operators.naming import Names
from attestation_service.kql.operators.operator import Operator
from attestation_service.kql.reader import Reader
from attestation_service.kql.source import nearest
from attestation_service.kql.syntax import Call, Expression, Index, Name, Pipeline, Stage, TableName

FLAVOURS = ("innerunique", "inner", "leftouter", "leftanti", "leftsemi")
ONE_SIDED = ("leftanti", "leftsemi")


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(Stage):
    """Put rows together whose keys are equal."""

    operator: ClassVar[str] = "join"
    flavour: str
    right: Pipeline
    on: tuple[Expression, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Union(Stage):
    """Put all rows together."""

    operator: ClassVar[str] = "union"
    inner: bool
    source_column: str | None
    parts: tuple[Pipeline, ...]


def _option(reader: Reader, name: str, words: tuple[str, ...]) -> str | None:
    """Read `name=word`, if it comes next."""
    if not (reader.is_word(name) and reader.peek().is_mark("=")):
        return None
    reader.take()
    reader.take()
    token = reader.name(f"one of {', '.join(words)}")
    if words and token.text not in words:
        raise reader.source.invalid(
            token.place, f"{name} is one of {', '.join(words)}", suggestion=nearest(token.text, words)
        )
    return token.text


def _read_join(reader: Reader, pipeline: PipelineParser, place: Place) -> Join:
    flavour = _option(reader, "kind", FLAVOURS) or "innerunique"
    if reader.skip("("):
        right = pipeline(reader)
        reader.expect(")")
    else:
        name = reader.name("a table")
        right = Pipeline(place=name.place, source=TableName(place=name.place, name=name.text), stages=())
    reader.expect("on")
    on = reader.listed(lambda: expression(reader, pipeline))
    return Join(place=place, flavour=flavour, right=right, on=on)


def _sides(written: Expression) -> list[tuple[Name, Name]] | None:
    """Read `column` or `$left.a == $right.b`, which `and` may link; nothing where it is neither."""
    if isinstance(written, Name):
        return [(written, written)]
    if not isinstance(written, Call):
        return None
    if written.name == "and":
        found = [_sides(each) for each in written.arguments]
        return None if None in found else [pair for each in found for pair in each or ()]
    if written.name != "==":
        return None
    named: dict[str, Name] = {}
    for each in written.arguments:
        if not isinstance(each, Index) or not isinstance(each.value, Name) or not isinstance(each.key, str):
            return None
        named[each.value.name] = Name(place=each.place, name=each.key)
    return [(named["$left"], named["$right"])] if named.keys() == {"$left", "$right"} else None


def _join(binder: Binder, stage: Join, left: Bound) -> Bound:
    right = binder.pipeline(stage.right)
    keys: list[tuple[int, int]] = []
    for written in stage.on:
        pairs = _sides(written)
        if pairs is None:
            raise binder.source.invalid(
                written.place, "expected a column of both sides, or $left.a == $right.b"
            )
        for one, other in pairs:
            keys.append((_key(binder, one, left, "left"), _key(binder, other, right, "right")))
            a, b = left.columns[keys[-1][0]].kind, right.columns[keys[-1][1]].kind
            if a is not b and not {a, b} <= NUMBERS:
                raise binder.source.invalid(written.place, f"a key of {a} is never one of {b}")
            if a is Kind.DYNAMIC:
                raise binder.source.invalid(written.place, "dynamic values cannot be compared")
    columns, kinds = left.columns, left.rows.kinds
    if stage.flavour not in ONE_SIDED:
        names = Names(binder.source)
        names.take(left.names)
        for column in right.columns:
            names.add_derived(column.name)
        added = zip(names.names[len(left.names) :], right.columns, strict=True)
        columns = (
            *columns,
            *(Column(name=name, kind=old.kind, description=old.description) for name, old in added),
        )
        kinds = (*kinds, *right.rows.kinds)
    joined = tree.Join(flavour=stage.flavour, left=left.rows, right=right.rows, on=tuple(keys), kinds=kinds)
    return Bound(rows=joined, columns=columns)


def _key(binder: Binder, written: Name, rows: Bound, side: str) -> int:
    index = rows.index(written.name)
    if index is None:
        raise binder.source.unknown(written.place, f"column of the {side} side", written.name, rows.names)
    return index


def _read_union(reader: Reader, pipeline: PipelineParser, place: Place) -> Union:
    inner, source_column = False, None
    while reader.token.sort is Sort.NAME and reader.peek().is_mark("="):
        if (kind := _option(reader, "kind", ("outer", "inner"))) is not None:
            inner = kind == "inner"
        elif (named := _option(reader, "withsource", ())) is not None:
            source_column = named
        else:
            raise reader.expected("kind= or withsource=")
    return Union(
        place=place,
        inner=inner,
        source_column=source_column,
        parts=reader.listed(lambda: _part(reader, pipeline)),
    )


def _part(reader: Reader, pipeline: PipelineParser) -> Pipeline:
    if reader.skip("("):
        rows = pipeline(reader)
        reader.expect(")")
        return rows
    name = reader.name("a table")
    return Pipeline(place=name.place, source=TableName(place=name.place, name=name.text), stages=())


def _union(binder: Binder, stage: Union, rows: Bound) -> Bound:
    """Put columns of one name and kind into one; those of one name and several kinds get their kind as suffix."""
    parts = [binder.pipeline(each) for each in stage.parts]
    sources = [_source_name(index, each) for index, each in enumerate(stage.parts, int(rows is not NOTHING))]
    if rows is not NOTHING:
        parts.insert(0, rows)
        sources.insert(0, "union_arg0")
    kinds_of: dict[str, list[Kind]] = {}
    for part in parts:
        for column in part.columns:
            if column.kind not in (kinds := kinds_of.setdefault(column.name, [])):
                kinds.append(column.kind)
    wanted: list[tuple[str, str, Kind]] = []
    for name, kinds in kinds_of.items():
        if stage.inner and any((name, kinds[0]) not in _typed(part) for part in parts):
            continue
        wanted += [(name, name if len(kinds) == 1 else f"{name}_{kind}", kind) for kind in kinds]
    if not wanted:
        raise binder.source.invalid(stage.place, "no column is in all of them")
    binder.means(len(parts) * len(wanted), stage.place)
    columns = [Column(name=shown, kind=kind) for _, shown, kind in wanted]
    made = [_columns_of(part, wanted) for part in parts]
    if stage.source_column is not None:
        columns.insert(0, Column(name=stage.source_column, kind=Kind.STRING))
        made = [
            (tree.Const(kind=Kind.STRING, value=name), *each)
            for name, each in zip(sources, made, strict=True)
        ]
    kinds_made = tuple(column.kind for column in columns)
    united = tree.Union(
        parts=tuple(
            tree.Map(rows=part.rows, values=values, kinds=kinds_made)
            for part, values in zip(parts, made, strict=True)
        ),
        kinds=kinds_made,
    )
    return Bound(rows=united, columns=tuple(columns))


def _typed(rows: Bound) -> set[tuple[str, Kind]]:
    return {(column.name, column.kind) for column in rows.columns}


def _source_name(index: int, part: Pipeline) -> str:
    """Return what `withsource` calls rows: the table, where they are no more than one."""
    if isinstance(part.source, TableName) and not part.stages:
        return part.source.name
    return f"union_arg{index}"


def _columns_of(part: Bound, wanted: list[tuple[str, str, Kind]]) -> tuple[tree.Value, ...]:
    """Return the columns that are wanted of a part, null where it has none."""
    made: list[tree.Value] = []
    for name, _, kind in wanted:
        index = part.index(name)
        if index is not None and part.columns[index].kind is kind:
            made.append(part.ref(index))
        else:
            made.append(tree.Const(kind=kind, value="" if kind is Kind.STRING else None))
    return tuple(made)


OPERATORS = (
    Operator(
        name="join",
        written="join [kind = flavour] (rows) on column, … | on $left.a == $right.b",
        description=(
            "Puts rows together whose keys are equal. Flavours: innerunique, the default, of the left side one row "
            "for each key; inner; leftouter; leftsemi, leftanti: left rows that have, or have no, right one."
        ),
        read=_read_join,
        meaning=_join,
    ),
    Operator(
        name="union",
        written="union [kind = outer | inner] [withsource = name] rows, …",
        description="All rows of several tables or pipelines, their columns by name.",
        read=_read_union,
        meaning=_union,
        is_source=True,
    ),
)
