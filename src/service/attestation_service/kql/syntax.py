"""What was written, before anything of it has a meaning: names are not resolved, nothing has a kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from attestation_service.kql.kinds import Kind, Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A column, or a scalar that `let` named."""

    place: Place
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Literal:
    """A value; None is the null of its kind."""

    place: Place
    kind: Kind
    value: bool | int | float | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Star:
    """All columns: `distinct *`, `arg_max(x, *)`."""

    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A function, or an operator between its operands: both are looked up in the same table.

    Args:
        mark: Where the name or the operator itself stands: that is where it is said to be wrong.
    """

    place: Place
    mark: Place
    name: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """What a dynamic value has under a name or at a position: `a.b`, `a['b']`, `a[0]`."""

    place: Place
    value: Expression
    key: str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Values in parentheses after `in` and `has_any`, or the two ends of a `between`."""

    place: Place
    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of a pipeline, where an expression may stand: `x in (T | project y)`."""

    place: Place
    pipeline: Pipeline


Expression = Name | Literal | Star | Call | Index | Group | Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An expression that becomes a column, with the name that it is given, if any."""

    place: Place
    name: str | None
    value: Expression


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What rows are sorted by."""

    value: Expression
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NamePattern:
    """A name of columns, as the parts between its `*`, which stand for any characters each."""

    place: Place
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableName:
    """A table of the catalog, or one that `let` named."""

    place: Place
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One operator of a pipeline; each kind of stage adds what it takes."""

    place: Place
    operator: ClassVar[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Where rows come from, and what is done to them one after the other."""

    place: Place
    source: TableName | Pipeline | Stage
    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Let:
    """A name for a scalar or for a pipeline. A name alone may be either: what it names decides."""

    place: Place
    name: str
    value: Expression | Pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """All of a query."""

    lets: tuple[Let, ...]
    pipeline: Pipeline


Properties = Mapping[str, str]
