"""How values become SQL: what both databases write alike, and the protocol of what they write differently."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, ClassVar, TypeAlias

import sqlalchemy as sa
from sqlalchemy.sql.elements import Grouping

from attestation_service.kql import times
from attestation_service.kql.kinds import SCALARS, Kind
from attestation_service.kql.lexer import MOST

SQL: TypeAlias = sa.ColumnElement[Any]

TYPES: dict[Kind, Any] = {
    Kind.BOOL: sa.Boolean(),
    Kind.INT: sa.BigInteger(),
    Kind.LONG: sa.BigInteger(),
    Kind.REAL: sa.Double(),
    Kind.STRING: sa.Text(),
    Kind.DATETIME: sa.BigInteger(),
    Kind.TIMESPAN: sa.BigInteger(),
    Kind.DYNAMIC: sa.Text(),
}
"""How each kind is carried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """A value on its way into SQL.

    Args:
        constant: What the text has there, where it is a literal.
        fixed: It is the same for all rows.
        plain: It is a column of a table, or a literal: it may be written wherever it is named.
        depth: How many functions are nested in it, where it is not.
        used: A value has been made of it already, where it is not.
        stored: A column that the database keeps otherwise, as that, so that an index of it serves: a string that may
            be NULL there, or a datetime that is text there (`Table.as_text`).
    """

    sql: SQL
    kind: Kind
    nullable: bool
    constant: bool | int | float | str | None = None
    fixed: bool = False
    plain: bool = True
    depth: int = 0
    used: bool = False
    stored: SQL | None = None

    @property
    def text(self) -> SQL | None:
        """The text that it is in the database, if it is a datetime that is."""
        return self.stored if self.kind is Kind.DATETIME else None


class Naming(Enum):
    """What a column is called whose writer gave it no name."""

    NUMBERED = auto()  # Column1
    AS_ARGUMENT = auto()  # as the first argument is
    PREFIXED = auto()  # strlen_x


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """What a function takes.

    Args:
        kinds: Any of these. Where string is one of them, a dynamic value is taken as its text.
        constant: Only a literal will do.
    """

    name: str
    kinds: frozenset[Kind]
    constant: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function or an operator: everything that parser, binder, reference, schema and completion know of it.

    Args:
        name: Of an operator, the operator itself; with `1` behind it, one that stands before its only operand.
        parameters: In order; `optional` of them may be missing, and the last one may be there *repeated* times more.
        result: Its kind, or what makes it of the arguments' kinds: None where it is not defined for them.
        unified: Whether an argument becomes of the result's kind, by its position and how many there are.
        build: Writes it.
        nullable: Whether it can be null; None: where an argument can.
        stored: Writes it as `Argument.stored` has it, where it can be made of that of its arguments.
    """

    name: str
    parameters: tuple[Parameter, ...]
    result: Kind | Callable[[tuple[Kind, ...]], Kind | None]
    description: str
    build: Callable[[Dialect, tuple[Argument, ...]], SQL]
    optional: int = 0
    repeated: int = 0
    naming: Naming = Naming.NUMBERED
    aliases: tuple[str, ...] = ()
    unified: Callable[[int, int], bool] | None = None
    nullable: bool | None = None
    stored: Callable[[tuple[Argument, ...]], SQL | None] | None = None

    @property
    def is_operator(self) -> bool:
        """Tell whether it stands between or before its operands."""
        return not self.name[0].isalpha() or self.name in OPERATOR_WORDS


MOST_BYTES = 512 << 10
"""Longest text that a query may make: SQLite is set to it, PostgreSQL is asked at each function that makes longer ones.
"""

OPERATOR_WORDS = frozenset(
    {
        *("and", "or", "in", "in~", "between", "has", "has_all", "has_any", "matches regex"),
        *("contains", "contains_cs", "startswith", "startswith_cs", "endswith", "endswith_cs"),
    }
)
"""Operators that are words; all others begin with a mark."""
ANY = SCALARS | {Kind.DYNAMIC}


class Dialect(ABC):
    """One database, while one statement is written for it."""

    name: ClassVar[str]

    @abstractmethod
    def bounded(self, value: SQL, kind: Kind) -> SQL:
        """Make null of what a kind does not hold; what is beyond a bigint too, where the database has it."""

    @abstractmethod
    def bounded_real(self, value: SQL) -> SQL:
        """Keep a real within what is one here: 0 where it is too small, null where it is too great."""

    @abstractmethod
    def equal(self, left: SQL, right: SQL) -> SQL:
        """Compare what may be null on both sides: null where both are, false where one is."""

    @abstractmethod
    def whole(self, operator: str, left: SQL, right: SQL) -> SQL:
        """Write `+ - * / %` of two longs: null where it is more than a long holds, or divided by 0."""

    @abstractmethod
    def sum_of(self, value: SQL, kind: Kind) -> SQL:
        """Write the sum of a group: 0 of nothing, whatever is more than a long holds where it has no room."""

    @abstractmethod
    def list_of(self, value: Argument, *, distinct: bool, order: SQL | None) -> SQL:
        """Write the JSON list of the values of a group that are not null: as sorted by *order*, or ascending."""

    @abstractmethod
    def text_of(self, value: Argument) -> SQL:
        """Write a value that is not null as `tostring` has it."""

    @abstractmethod
    def long_of_text(self, text: SQL) -> SQL:
        """Read a long out of a text; null where there is none."""

    @abstractmethod
    def real_of_text(self, text: SQL) -> SQL:
        """Read a real out of a text; null where there is none."""

    @abstractmethod
    def truncated(self, value: SQL) -> SQL:
        """Make a long of a real, towards 0; null where a long does not hold it."""

    @abstractmethod
    def lower(self, text: SQL) -> SQL:
        """Write a text with its capital ASCII letters made small."""

    @abstractmethod
    def upper(self, text: SQL) -> SQL:
        """Write a text with its small ASCII letters made capital."""

    @abstractmethod
    def position(self, text: SQL, part: SQL) -> SQL:
        """Write where *part* begins in *text*, from 1; 0 where it is not in it."""

    @abstractmethod
    def ends(self, text: SQL, part: SQL) -> SQL:
        """Tell whether a text ends with *part*."""

    @abstractmethod
    def has_term(self, text: SQL, term: Argument) -> SQL:
        """Tell whether *term* is in *text* with no letter or digit beside it."""

    @abstractmethod
    def matches(self, text: SQL, pattern: str) -> SQL:
        """Tell whether a regular expression, checked by `regex`, is found in *text*."""

    def joined(self, texts: Sequence[SQL]) -> SQL:
        """Write texts one after the other."""
        joined, *more = texts
        for each in more:
            joined = joined.concat(each)
        return joined

    @abstractmethod
    def split(self, text: SQL, separator: SQL, index: SQL | None) -> SQL:
        """Write the parts of a text as a JSON list."""

    @abstractmethod
    def parse_json(self, text: SQL) -> SQL:
        """Write a text as dynamic value: what is no JSON is a string."""

    @abstractmethod
    def member(self, value: SQL, key: str | int) -> SQL:
        """Write what a dynamic value has under a name or at a position."""

    @abstractmethod
    def bin_whole(self, value: SQL, step: SQL, origin: int) -> SQL:
        """Round a bigint down to a multiple of *step*, counted from *origin*; null where that is not positive."""

    @abstractmethod
    def bin_fixed(self, value: SQL, step: SQL, origin: int) -> SQL:
        """Round a datetime down to a multiple of *step*, positive, the same for all rows, counted from *origin*."""

    @abstractmethod
    def micros(self, text: SQL) -> SQL:
        """Read a datetime out of the text of `Table.as_text`."""

    @abstractmethod
    def bin_real(self, value: SQL, step: SQL) -> SQL:
        """Round a real down to a multiple of *step*; null where that is not positive."""

    @abstractmethod
    def start_of_month(self, value: SQL, months: SQL) -> SQL:
        """Write the beginning of the month of a datetime, so many months later."""

    def instant(self, value: Argument) -> SQL:
        """Write a datetime that is the same for all rows as the text of `Table.as_text`."""
        if isinstance(value.constant, int):
            return sa.literal(times.print_datetime(value.constant, digits=6), TYPES[Kind.STRING])
        seven_digits = self.text_of(value)
        return Grouping(
            sa.func.substr(seven_digits, constant(1), constant(26), type_=TYPES[Kind.STRING]).concat(
                raw("'Z'")
            )
        )

    @abstractmethod
    def ordered(self, value: SQL, kind: Kind) -> SQL:
        """Write what values of a kind are sorted by: strings by code point."""

    @abstractmethod
    def best_of(self, value: SQL, kind: Kind) -> SQL:
        """Write the only value of a group that is not null."""

    def greatest(self, value: SQL, kind: Kind, *, least: bool) -> SQL:
        """Write the greatest or the least value of a group."""
        return (sa.func.min if least else sa.func.max)(self.ordered(value, kind))


def constant(value: bool | float | str) -> SQL:
    """Write a number or word of ours, never of a query."""
    return sa.literal_column(str(value).lower() if isinstance(value, bool) else repr(value))


def raw(text: str, type_: Any = None) -> SQL:
    """Write SQL of ours as it is, never anything of a query; a text unless told otherwise."""
    return sa.literal_column(text, type_ or TYPES[Kind.STRING])


def null_of(kind: Kind) -> SQL:
    """Write the null of a kind; a string has none."""
    return sa.literal("", sa.Text()) if kind is Kind.STRING else sa.cast(sa.null(), TYPES[kind])


def infix(operator: str, left: SQL, right: SQL, type_: Any = None) -> SQL:
    """Write an operator between its operands, in parentheses, so that no precedence matters."""
    written = left.op(operator, precedence=100, return_type=type_ or TYPES[Kind.LONG])(right)
    return Grouping(written)


BOUNDS = {
    Kind.DATETIME: (times.FIRST, times.LAST),
    Kind.TIMESPAN: (-times.LONGEST, times.LONGEST),
    Kind.INT: (-(1 << 31), (1 << 31) - 1),
    Kind.LONG: (-MOST + 1, MOST - 1),
}
"""What each kind holds that is carried as a bigint."""


def as_real(value: Argument) -> SQL:
    """Write a number as a real."""
    return value.sql if value.kind is Kind.REAL else sa.cast(value.sql, TYPES[Kind.REAL])
