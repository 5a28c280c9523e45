"""Operators that choose, name and add columns: project and its kin, extend."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from attestation_service.kql import tree
from attestation_service.kql.binder import Binder, Bound, name_of
from attestation_service.kql.expressions import PipelineParser, expression
from attestation_service.kql.kinds import Column
from attestation_service.kql.lexer import Sort
from attestation_service.kql.operators.naming import Names
from attestation_service.kql.operators.operator import Operator
from attestation_service.kql.reader import Reader
from attestation_service.kql.syntax import Item, Name, NamePattern, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Project(Stage):
    """Make columns, and keep no others."""

    operator: ClassVar[str] = "project"
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extend(Stage):
    """Make columns, and keep the others."""

    operator: ClassVar[str] = "extend"
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectAway(Stage):
    """Drop columns."""

    operator: ClassVar[str] = "project-away"
    patterns: tuple[NamePattern, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectKeep(Stage):
    """Keep columns, where they are."""

    operator: ClassVar[str] = "project-keep"
    patterns: tuple[NamePattern, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectReorder(Stage):
    """Put columns before the others."""

    operator: ClassVar[str] = "project-reorder"
    patterns: tuple[NamePattern, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRename(Stage):
    """Call columns something else."""

    operator: ClassVar[str] = "project-rename"
    items: tuple[Item, ...]


def read_item(reader: Reader, pipeline: PipelineParser) -> Item:
    """Read `expression` or `name = expression`.

    Raises:
        QueryInvalid: Neither stands here.
    """
    begin, name = reader.token, None
    if begin.sort in (Sort.NAME, Sort.QUOTED) and reader.peek().is_mark("="):
        name = reader.take().text
        reader.take()
    value = expression(reader, pipeline)
    return Item(place=begin.place, name=name, value=value)


def _pattern(reader: Reader) -> NamePattern:
    """Read a name of columns, with `*` for any characters."""
    begin = last = reader.token
    if begin.sort is Sort.QUOTED:
        return NamePattern(place=begin.place, parts=(reader.take().text,))
    text, parts = "", [""]
    while reader.token.sort is Sort.NAME or reader.is_mark("*"):
        if text and last.place.offset + last.place.length != reader.token.place.offset:
            break
        last = reader.take()
        text += last.text
        if last.text == "*":
            parts.append("")
        else:
            parts[-1] += last.text
    if not text:
        raise reader.expected("a column")
    return NamePattern(place=begin.place.to(last.place), parts=tuple(parts))


def _fits(parts: tuple[str, ...], name: str) -> bool:
    """Tell whether a name is these parts with anything between them.

    Not by a regular expression: one with many `*` goes through a name again and again, and holds the interpreter.
    """
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return name == first
    at, end = len(first), len(name) - len(last)
    if at > end or not (name.startswith(first) and name.endswith(last)):
        return False
    for part in parts[1:-1]:
        # The first place that fits leaves the most room for those behind it.
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def _chosen(binder: Binder, patterns: tuple[NamePattern, ...], rows: Bound) -> list[int]:
    """Return which columns patterns name, in the order of the patterns."""
    found: dict[int, None] = {}
    for each in patterns:
        matching = [i for i, name in enumerate(rows.names) if _fits(each.parts, name)]
        if not matching:
            raise binder.source.unknown(each.place, "column", "*".join(each.parts), rows.names)
        found |= dict.fromkeys(matching)
    return list(found)


def _only(rows: Bound, indexes: list[int]) -> Bound:
    """Return these columns of rows."""
    columns = tuple(rows.columns[index] for index in indexes)
    values = tuple(rows.ref(index) for index in indexes)
    kinds = tuple(column.kind for column in columns)
    return Bound(rows=tree.Map(rows=rows.rows, values=values, kinds=kinds), columns=columns)


def _project(binder: Binder, stage: Project, rows: Bound) -> Bound:
    names, values = Names(binder.source), list[tree.Value]()
    for item in stage.items:
        values.append(binder.value(item.value, rows))
        if item.name is None:
            names.add_unnamed(item.place, name_of(item.value), item.value)
        else:
            names.add(item.place, item.name)
    kinds = tuple(value.kind for value in values)
    made = tree.Map(rows=rows.rows, values=tuple(values), kinds=kinds)
    return Bound(rows=made, columns=_described(names.columns(kinds), stage.items, rows))


def _described(columns: tuple[Column, ...], items: tuple[Item, ...], rows: Bound) -> tuple[Column, ...]:
    """Keep the description of columns that only have another name."""
    described = []
    for column, item in zip(columns, items, strict=True):
        index = rows.index(item.value.name) if isinstance(item.value, Name) else None
        old = "" if index is None else rows.columns[index].description
        described.append(replace(column, description=old))
    return tuple(described)


def _extend(binder: Binder, stage: Extend, rows: Bound) -> Bound:
    columns, values = list(rows.columns), list[tree.Value](rows.refs())
    here, written_here = Names(binder.source), set[str]()
    here.take(rows.names)
    for item in stage.items:
        value = binder.value(item.value, rows)
        name = item.name
        if name is None and isinstance(item.value, Name):
            name = item.value.name
        if name is None:
            derived = name_of(item.value)
            # What is made of a column alone, `tolong(x)`, replaces it.
            name = derived if derived and derived in rows.names else here.add_derived(derived)
        elif name in written_here:
            raise binder.source.invalid(item.place, f"two columns would be called {name}")
        written_here.add(name)
        column = Column(name=name, kind=value.kind)
        if name in (names := [each.name for each in columns]):
            columns[names.index(name)], values[names.index(name)] = column, value
        else:
            columns.append(column)
            values.append(value)
            here.take((name,))
    kinds = tuple(column.kind for column in columns)
    return Bound(rows=tree.Map(rows=rows.rows, values=tuple(values), kinds=kinds), columns=tuple(columns))


def _away(binder: Binder, stage: ProjectAway, rows: Bound) -> Bound:
    gone = set(_chosen(binder, stage.patterns, rows))
    return _at_least_one(binder, stage, _only(rows, [i for i in range(len(rows.columns)) if i not in gone]))


def _keep(binder: Binder, stage: ProjectKeep, rows: Bound) -> Bound:
    return _at_least_one(binder, stage, _only(rows, sorted(_chosen(binder, stage.patterns, rows))))


def _at_least_one(binder: Binder, stage: Stage, rows: Bound) -> Bound:
    if not rows.columns:
        raise binder.source.invalid(stage.place, "no column would be left")
    return rows


def _reorder(binder: Binder, stage: ProjectReorder, rows: Bound) -> Bound:
    first = _chosen(binder, stage.patterns, rows)
    return _only(rows, first + [i for i in range(len(rows.columns)) if i not in first])


def _rename(binder: Binder, stage: ProjectRename, rows: Bound) -> Bound:
    names = list(rows.names)
    for item in stage.items:
        if item.name is None or not isinstance(item.value, Name):
            raise binder.source.invalid(item.place, "expected new = old, both names of columns")
        index = rows.index(item.value.name)
        if index is None:
            raise binder.source.unknown(item.value.place, "column", item.value.name, rows.names)
        names[index] = item.name
        if names.count(item.name) > 1:
            raise binder.source.invalid(item.place, f"two columns would be called {item.name}")
    columns = tuple(replace(column, name=name) for column, name in zip(rows.columns, names, strict=True))
    return Bound(rows=rows.rows, columns=columns)


OPERATORS = (
    Operator(
        name="project",
        written="project [name =] value, …",
        description="Makes these columns, and keeps no others.",
        read=lambda reader, pipeline, place: Project(
            place=place, items=reader.listed(lambda: read_item(reader, pipeline))
        ),
        meaning=_project,
    ),
    Operator(
        name="project-away",
        written="project-away column, prefix*, …",
        description="Drops columns; * stands for any characters.",
        read=lambda reader, _, place: ProjectAway(
            place=place, patterns=reader.listed(lambda: _pattern(reader))
        ),
        meaning=_away,
    ),
    Operator(
        name="project-keep",
        written="project-keep column, prefix*, …",
        description="Keeps these columns alone, where they are.",
        read=lambda reader, _, place: ProjectKeep(
            place=place, patterns=reader.listed(lambda: _pattern(reader))
        ),
        meaning=_keep,
    ),
    Operator(
        name="project-rename",
        written="project-rename new = old, …",
        description="Gives columns other names.",
        read=lambda reader, pipeline, place: ProjectRename(
            place=place, items=reader.listed(lambda: read_item(reader, pipeline))
        ),
        meaning=_rename,
    ),
    Operator(
        name="project-reorder",
        written="project-reorder column, prefix*, …",
        description="Puts these columns before the others.",
        read=lambda reader, _, place: ProjectReorder(
            place=place, patterns=reader.listed(lambda: _pattern(reader))
        ),
        meaning=_reorder,
    ),
    Operator(
        name="extend",
        written="extend [name =] value, …",
        description="Adds columns; one that exists is replaced where it is.",
        read=lambda reader, pipeline, place: Extend(
            place=place, items=reader.listed(lambda: read_item(reader, pipeline))
        ),
        meaning=_extend,
    ),
)
