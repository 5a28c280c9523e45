"""SQLite: what it lacks, deterministic functions of ours stand for."""

from __future__ import annotations

from typing import ClassVar

import sqlalchemy as sa

from attestation_service.kql.kinds import Kind
from attestation_service.kql.sql import SQL, TYPES, Argument, Dialect, constant, infix, raw


class SQLite(Dialect):
    """SQLite, with the functions of `sqlite_functions.FUNCTIONS` on its connection."""

    name: ClassVar[str] = "sqlite"

    def whole(self, operator: str, left: SQL, right: SQL) -> SQL:
        """Compute in 64 bits; SQLite makes a real of what has no room, and that becomes null."""
        if operator == "%":
            # Never negative, as in Kusto. No long here is the least one, whose abs() would fail.
            return self.once(
                sa.func.abs(right),
                lambda d: infix(
                    "%", infix("+", infix("%", left, sa.func.nullif(d, 0)), d), sa.func.nullif(d, 0)
                ),
            )
        if operator == "/":
            right = sa.func.nullif(right, constant(0))
        return self.once(
            infix(operator, left, right),
            lambda v: sa.case((sa.func.typeof(v) == raw("'integer'"), v)),
        )

    def sum_of(self, value: SQL) -> SQL:
        """Sum both halves of each long: sum() itself fails where it has no room."""
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
                (value.sql, raw("'true'", text)),
                (sa.not_(value.sql), raw("'false'", text)),
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
        """Cut off the fraction, which CAST does."""
        return self.once(
            value, lambda v: sa.cast(sa.case((sa.func.abs(v) < constant(9.2e18), v)), TYPES[Kind.LONG])
        )

    def lower(self, text: SQL) -> SQL:
        """Make small letters, of ASCII alone: SQLite without ICU knows no others."""
        return sa.func.lower(text, type_=TYPES[Kind.STRING])

    def upper(self, text: SQL) -> SQL:
        """Make capital letters, likewise."""
        return sa.func.upper(text, type_=TYPES[Kind.STRING])

    def position(self, text: SQL, part: SQL) -> SQL:
        """Find a part."""
        return sa.func.instr(text, part, type_=TYPES[Kind.LONG])

    def last(self, text: SQL, count: SQL) -> SQL:
        """Cut from the end; all of it where it is shorter, none where *count* is 0."""
        return self.once(
            count,
            lambda n: sa.case(
                (n == constant(0), sa.literal("", TYPES[Kind.STRING])),
                else_=sa.func.substr(text, -n, type_=TYPES[Kind.STRING]),
            ),
        )

    def has_term(self, text: SQL, term: SQL) -> SQL:
        """Find a whole term."""
        return sa.func.kql_has(text, term, type_=TYPES[Kind.BOOL])

    def matches(self, text: SQL, pattern: str) -> SQL:
        """Ask RE2, which needs time in proportion to the text whatever the pattern."""
        return sa.func.kql_matches(text, sa.literal(pattern, TYPES[Kind.STRING]), type_=TYPES[Kind.BOOL])

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
