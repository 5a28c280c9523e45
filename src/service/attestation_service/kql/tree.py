"""What a query means: every name resolved to a column by its number, every value with its kind.

Rows have columns that are numbered, not named: what somebody called them reaches no database.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from attestation_service.kql.kinds import Kind, Table
from attestation_service.kql.sql import Function


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """A column of the rows that come in."""

    index: int
    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Const:
    """A value that the text has; None is null."""

    kind: Kind
    value: bool | int | float | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """A function of values."""

    function: Function
    arguments: tuple[Value, ...]
    kind: Kind
    depth: int = field(init=False, compare=False)
    size: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Know how deep and how large it is: asked often, of what may be either."""
        object.__setattr__(self, "depth", 1 + max((depth_of(each) for each in self.arguments), default=-1))
        object.__setattr__(self, "size", 1 + sum(map(size_of, self.arguments)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What a dynamic value has under a name or at a position."""

    value: Value
    key: str | int
    kind: Kind = Kind.DYNAMIC
    depth: int = field(init=False, compare=False)
    size: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Know how deep and how large it is, likewise."""
        object.__setattr__(self, "depth", 1 + depth_of(self.value))
        object.__setattr__(self, "size", 1 + size_of(self.value))


@dataclass(frozen=True, slots=True, kw_only=True)
class InRows:
    """Whether a value is in the only column of other rows."""

    value: Value
    rows: Rows
    fold: bool
    negated: bool
    kind: Kind = Kind.BOOL


Value = Ref | Const | Apply | Member | InRows


def depth_of(value: Value) -> int:
    """Return how many functions are nested in a value, and members."""
    match value:
        case Apply() | Member():
            return value.depth
        case InRows():
            return 1 + depth_of(value.value)
        case _:
            return 0


def size_of(value: Value) -> int:
    """Return how many values a value is made of, itself among them; the same one twice counts twice."""
    match value:
        case Apply() | Member():
            return value.size
        case InRows():
            return 1 + size_of(value.value)
        case _:
            return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """All rows of a table."""

    table: Table
    kinds: tuple[Kind, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Rows that `let` named: asked for once, however often they are named."""

    number: int
    rows: Rows
    kinds: tuple[Kind, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """The rows for which a bool is true; not those for which it is null."""

    rows: Rows
    condition: Value
    kinds: tuple[Kind, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """Other columns for each row."""

    rows: Rows
    values: tuple[Value, ...]
    kinds: tuple[Kind, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorting:
    """A column that rows are sorted by."""

    column: int
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sort:
    """The same rows in an order, which the stages after it keep."""

    rows: Rows
    by: tuple[Sorting, ...]
    kinds: tuple[Kind, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The first rows."""

    rows: Rows
    count: int
    kinds: tuple[Kind, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """One column of a summary.

    Args:
        name: Of the aggregate, in `aggregates.AGGREGATES`.
        column: What is aggregated; None for those that count rows.
        best: For arg_max and arg_min: the column that decides; *column* is what is taken from that row.
    """

    name: str
    kind: Kind
    column: int | None = None
    best: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """One row for each group: its keys, then its aggregates. Without keys, one row, whatever comes in."""

    rows: Rows
    keys: tuple[int, ...]
    aggregations: tuple[Aggregation, ...]
    kinds: tuple[Kind, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Rows of two sides whose keys are equal: columns of the left, then of the right where its flavour has them."""

    flavour: str
    left: Rows
    right: Rows
    on: tuple[tuple[int, int], ...]
    kinds: tuple[Kind, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Union:
    """All rows of several, which have the same columns."""

    parts: tuple[Rows, ...]
    kinds: tuple[Kind, ...] = field(default=())


Rows = Scan | Shared | Filter | Map | Sort | Limit | Aggregate | Join | Union
