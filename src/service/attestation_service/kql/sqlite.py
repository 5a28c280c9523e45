"""SQLite: what it lacks, deterministic functions of ours stand for.

Functions also where an expression would do, if it named a value twice: what is nested would double with each level.
"""

from __future__ import annotations

from typing import ClassVar

import sqlalchemy as sa
from sqlalchemy.sql.elements import Grouping

from attestation_service.kql import regex
from attestation_service.kql.kinds import Kind
from attestation_service.kql.sql import BOUNDS, SQL, TYPES, Argument, Dialect, constant, infix, raw


class SQLite(Dialect):
    """SQLite, with the functions of `sqlite_functions.FUNCTIONS` on its connection."""

    name: ClassVar[str] = "sqlite"

    def bounded(self, value: SQL, kind: Kind) -> SQL:
        """Compare with both bounds."""
        low, high = BOUNDS[kind]
        return sa.func.kql_bounded(value, constant(low), constant(high), type_=TYPES[kind])

    def bounded_real(self, value: SQL) -> SQL:
        """Compare with both bounds."""
        return sa.func.kql_bounded_real(value, type_=TYPES[Kind.REAL])

    def equal(self, left: SQL, right: SQL) -> SQL:
        """Compare what may be null on both sides."""
        return sa.func.kql_equal(left, right, type_=TYPES[Kind.BOOL])

    def whole(self, operator: str, left: SQL, right: SQL) -> SQL:
        """Compute in whole numbers of any size."""
        name = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "modulo"}[operator]
        written: SQL = getattr(sa.func, f"kql_{name}")(left, right, type_=TYPES[Kind.LONG])
        return written

    def bin_whole(self, value: SQL, step: SQL, origin: int) -> SQL:
        """Compute in whole numbers of any size."""
        return sa.func.kql_bin(value, step, constant(origin), type_=TYPES[Kind.LONG])

    def bin_fixed(self, value: SQL, step: SQL, origin: int) -> SQL:
        """Compute in whole numbers: a function of ours, so that the value is computed once."""
        return self.bin_whole(value, step, origin)

    def micros(self, text: SQL) -> SQL:
        """Read seconds and fraction."""
        until_second = sa.func.substr(text, constant(1), constant(19))
        seconds = sa.cast(sa.func.strftime(raw("'%s'"), until_second), TYPES[Kind.LONG])
        fraction = sa.cast(sa.func.substr(text, constant(21), constant(6)), TYPES[Kind.LONG])
        return Grouping(seconds * constant(1_000_000) + fraction)

    def bin_real(self, value: SQL, step: SQL) -> SQL:
        """Compute in doubles."""
        return sa.func.kql_bin_real(value, step, type_=TYPES[Kind.REAL])

    def sum_of(self, value: SQL, kind: Kind) -> SQL:
        """Sum both halves of each long: sum() itself fails where it has no room."""
        if kind is Kind.REAL:
            return sa.func.total(value, type_=TYPES[kind])
        high = sa.func.sum(infix(">>", value, constant(32)))
        low = sa.func.sum(infix("&", value, constant(0xFFFFFFFF)))
        return sa.func.kql_sum(high, low, type_=TYPES[Kind.LONG])

    def list_of(self, value: Argument, *, distinct: bool, order: SQL | None) -> SQL:
        """Collect pairs of order and value; a function of ours sorts them and writes JSON."""
        # As text: json_array() would write a real with 15 digits.
        plain = self.text_of(value) if value.kind is Kind.REAL else value.sql
        pairs = sa.func.json_group_array(sa.func.json_array(constant(0) if order is None else order, plain))
        kept = pairs.filter(value.sql.is_not(None)) if value.nullable else pairs
        word = raw(f"'{value.kind}'")
        return sa.func.kql_list(kept, word, constant(int(distinct)), type_=TYPES[Kind.DYNAMIC])

    def text_of(self, value: Argument) -> SQL:
        """Write it as `tostring` has it."""
        text = TYPES[Kind.STRING]
        if value.kind is Kind.STRING:
            return value.sql
        if value.kind is Kind.BOOL:
            return sa.case(
                (value.sql, raw("'True'")),
                (sa.not_(value.sql), raw("'False'")),
            )
        if value.kind in (Kind.INT, Kind.LONG):
            return sa.cast(value.sql, text)
        written: SQL = getattr(sa.func, f"kql_{value.kind}_text")(value.sql, type_=text)
        return written

    def long_of_text(self, text: SQL) -> SQL:
        """Read a long."""
        return sa.func.kql_long(text, type_=TYPES[Kind.LONG])

    def real_of_text(self, text: SQL) -> SQL:
        """Read a real."""
        return sa.func.kql_real(text, type_=TYPES[Kind.REAL])

    def truncated(self, value: SQL) -> SQL:
        """Cut off the fraction."""
        return sa.func.kql_truncated(value, type_=TYPES[Kind.LONG])

    def lower(self, text: SQL) -> SQL:
        """Make small letters, of ASCII alone: SQLite without ICU knows no others."""
        return sa.func.lower(text, type_=TYPES[Kind.STRING])

    def upper(self, text: SQL) -> SQL:
        """Make capital letters, likewise."""
        return sa.func.upper(text, type_=TYPES[Kind.STRING])

    def position(self, text: SQL, part: SQL) -> SQL:
        """Find a part."""
        return sa.func.instr(text, part, type_=TYPES[Kind.LONG])

    def ends(self, text: SQL, part: SQL) -> SQL:
        """Compare the end."""
        return sa.func.kql_ends(text, part, type_=TYPES[Kind.BOOL])

    def has_term(self, text: SQL, term: Argument) -> SQL:
        """Find a whole term; ask for it only where it stands at all, which SQLite sees ten times as fast."""
        small, part = self.lower(text), self.lower(term.sql)
        there = self.position(small, part) > constant(0)
        return Grouping(sa.and_(there, sa.func.kql_has(small, part, type_=TYPES[Kind.BOOL])))

    def matches(self, text: SQL, pattern: str) -> SQL:
        """Ask RE2, which needs time in proportion to the text whatever the pattern."""
        return sa.func.kql_matches(
            text, sa.literal(regex.to_re2(pattern), TYPES[Kind.STRING]), type_=TYPES[Kind.BOOL]
        )

    def split(self, text: SQL, separator: SQL, index: SQL | None) -> SQL:
        """Make a list of what stands between separators."""
        at = sa.null() if index is None else index
        return sa.func.kql_split(text, separator, at, type_=TYPES[Kind.DYNAMIC])

    def parse_json(self, text: SQL) -> SQL:
        """Parse, or make a string of it."""
        return sa.func.kql_json(text, type_=TYPES[Kind.DYNAMIC])

    def member(self, value: SQL, key: str | int) -> SQL:
        """Take a member."""
        typed = sa.literal(key, TYPES[Kind.LONG if isinstance(key, int) else Kind.STRING])
        return sa.func.kql_member(value, typed, type_=TYPES[Kind.DYNAMIC])

    def start_of_month(self, value: SQL, months: SQL) -> SQL:
        """Count in the calendar."""
        return sa.func.kql_month(value, months, type_=TYPES[Kind.DATETIME])

    def ordered(self, value: SQL, kind: Kind) -> SQL:  # noqa: ARG002  # as the protocol has it
        """Compare as SQLite does: its strings by the bytes of UTF-8, which is by code point."""
        return value

    def best_of(self, value: SQL, kind: Kind) -> SQL:
        """Take the only value."""
        return sa.func.max(value, type_=TYPES[kind])
