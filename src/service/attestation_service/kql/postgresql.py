"""PostgreSQL: expressions of its own, and two functions that a migration makes.

Nothing here may fail for any value: a query that fails at one row would tell of rows that it does not show. So what a
cast would refuse is made null before it, inside the cast: PostgreSQL computes constants before it looks at a CASE.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import ClassVar

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, aggregate_order_by
from sqlalchemy.sql.elements import BindParameter, ColumnClause, Grouping

from attestation_service.kql import regex, times
from attestation_service.kql.kinds import Kind
from attestation_service.kql.lexer import MOST, REAL_LEAST, REAL_MOST
from attestation_service.kql.sql import (
    BOUNDS,
    MOST_BYTES,
    SQL,
    TYPES,
    Argument,
    Dialect,
    constant,
    infix,
    raw,
)

FUNCTIONS = """\
CREATE FUNCTION kql_json(value text) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
  RETURN value::jsonb;
EXCEPTION WHEN data_exception OR program_limit_exceeded OR statement_too_complex THEN
  RETURN to_jsonb(value);
END $$;
CREATE FUNCTION kql_json_text(value jsonb) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  SELECT CASE jsonb_typeof(value)
    WHEN 'object' THEN '{' || coalesce((
      SELECT string_agg(to_json(m.key)::text || ':' || kql_json_text(m.value), ',' ORDER BY m.place)
      FROM jsonb_each(value) WITH ORDINALITY AS m(key, value, place)), '') || '}'
    WHEN 'array' THEN '[' || coalesce((
      SELECT string_agg(kql_json_text(m.value), ',' ORDER BY m.place)
      FROM jsonb_array_elements(value) WITH ORDINALITY AS m(value, place)), '') || ']'
    ELSE value::text END
$$;
"""
"""What a migration makes: JSON that may be none, and one text for each value of it."""

_TEXT, _LONG, _REAL, _NUMERIC = TYPES[Kind.STRING], TYPES[Kind.LONG], TYPES[Kind.REAL], sa.Numeric()
_BESIDE = r"[^a-z0-9\u0080-\U0010ffff]"
"""What may stand beside a whole term."""
_SMALL = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def _whole_term(small: str) -> str:
    """Return the pattern that finds a term, in small letters, beside which no letter or digit stands."""
    begins, ends = (re.fullmatch(f"{_BESIDE}?", each) for each in (small[:1], small[-1:]))
    inside = re.sub(f"({_BESIDE})", r"\\\1", small)
    return ("()" if begins else f"(^|{_BESIDE})") + inside + ("" if ends else f"({_BESIDE}|$)")


_LONG_NUMBER = r"(^|[\[,:[:space:]])[0-9.-]+[eE][+-]?0*[1-9][0-9]{3}"
"""A number in JSON with more digits than one has here; `json_text` refuses it too."""


class PostgreSQL(Dialect):
    """PostgreSQL, 13 and newer."""

    name: ClassVar[str] = "postgresql"

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def once(self, value: SQL, build: Callable[[SQL], SQL]) -> SQL:
        """Use *value* more than once in what *build* writes, though it is written and computed once."""
        if isinstance(value, ColumnClause | BindParameter):
            return build(value)
        number = next(self._numbers)
        # The offset keeps PostgreSQL from putting the value in each of the places, which doubles with each level.
        inner = sa.select(value.label(f"v{number}")).offset(raw("0")).subquery(f"s{number}")
        # Without its table: what encloses it has one of these names only, and SQLAlchemy adds no table to a FROM.
        column = sa.column(f"v{number}", value.type)
        return sa.select(build(column)).select_from(inner).scalar_subquery()

    def bounded(self, value: SQL, kind: Kind) -> SQL:
        """Compare with both bounds, before a cast that may have no room for it."""
        low, high = BOUNDS[kind]
        return self.once(
            value, lambda v: sa.cast(sa.case((v.between(constant(low), constant(high)), v)), TYPES[kind])
        )

    def bounded_real(self, value: SQL) -> SQL:
        """Compare with both bounds."""
        return self.once(
            value,
            lambda v: sa.case(
                (sa.func.abs(v) < constant(REAL_LEAST), sa.cast(constant(0.0), _REAL)),
                (sa.func.abs(v) <= constant(REAL_MOST), v),
            ),
        )

    def equal(self, left: SQL, right: SQL) -> SQL:
        """Compare what may be null on both sides."""
        return self.once(
            left,
            lambda a: self.once(
                right,
                lambda b: sa.case(
                    (sa.and_(a.is_(None), b.is_(None)), sa.cast(sa.null(), TYPES[Kind.BOOL])),
                    else_=sa.func.coalesce(a == b, sa.false(), type_=TYPES[Kind.BOOL]),
                ),
            ),
        )

    def bin_whole(self, value: SQL, step: SQL, origin: int) -> SQL:
        """Take the remainder away."""
        positive = self.once(step, lambda s: sa.case((s > constant(0), s)))

        def written(v: SQL) -> SQL:
            since = infix("-", v, constant(origin)) if origin else v
            return self.whole("-", v, self.whole("%", since, positive))

        return self.once(value, written)

    def bin_fixed(self, value: SQL, step: SQL, origin: int) -> SQL:
        """Take the remainder away, as longs: a datetime is far from where they end, and numerics are slow."""
        return self.once(value, lambda v: infix("-", v, infix("%", infix("-", v, constant(origin)), step)))

    def micros(self, text: SQL) -> SQL:
        """Read it as a timestamp."""
        epoch = sa.extract("epoch", sa.cast(text, sa.TIMESTAMP(timezone=True)))
        return sa.cast(Grouping(epoch) * constant(1_000_000), _LONG)

    def bin_real(self, value: SQL, step: SQL) -> SQL:
        """Divide, round down, multiply; what is beyond a real would fail, and is null."""

        def written(s: SQL) -> SQL:
            ratio = infix("/", value, sa.case((s > constant(0.0), s)), _REAL)
            return infix("*", self.bounded_real(sa.func.floor(ratio, type_=_REAL)), s, _REAL)

        return self.once(step, written)

    def whole(self, operator: str, left: SQL, right: SQL) -> SQL:
        """Compute in numeric, which has room; a long would fail where it has none."""
        a, b = sa.cast(left, _NUMERIC), sa.cast(right, _NUMERIC)
        if operator == "%":
            value = self.once(
                sa.func.nullif(sa.func.abs(b), constant(0), type_=_NUMERIC),
                lambda d: sa.func.mod(
                    infix("+", sa.func.mod(a, d, type_=_NUMERIC), d, _NUMERIC), d, type_=_NUMERIC
                ),
            )
        elif operator == "/":
            value = sa.func.div(a, sa.func.nullif(b, constant(0)), type_=_NUMERIC)
        else:
            value = infix(operator, a, b, _NUMERIC)
        return sa.cast(self._in_long(value), _LONG)

    def _in_long(self, value: SQL) -> SQL:
        """Make null of a numeric that is more than a long holds."""
        return self.once(value, lambda v: sa.case((v.between(constant(-MOST + 1), constant(MOST - 1)), v)))

    def sum_of(self, value: SQL, kind: Kind) -> SQL:
        """Sum, which PostgreSQL does in numeric for longs."""
        number = _REAL if kind is Kind.REAL else _NUMERIC
        return sa.func.coalesce(sa.func.sum(value, type_=number), constant(0), type_=number)

    def list_of(self, value: Argument, *, distinct: bool, order: SQL | None) -> SQL:
        """Put the texts of the members together."""
        text = self._c(self._element(value))
        if distinct:
            parts = sa.func.string_agg(sa.distinct(text), aggregate_order_by(raw("','"), text))
        else:
            by = [text] if order is None else [order, text]
            parts = sa.func.string_agg(text, aggregate_order_by(raw("','"), *by))
        return sa.func.concat(
            raw("'['"),
            sa.func.coalesce(parts, raw("''")),
            raw("']'"),
            type_=_TEXT,
        )

    def _element(self, value: Argument) -> SQL:
        """Write a member of a list as JSON."""
        if value.kind in (Kind.STRING, Kind.DATETIME, Kind.TIMESPAN):
            return sa.cast(sa.func.to_json(self.text_of(value)), _TEXT)
        if value.kind is Kind.DYNAMIC:
            return sa.func.kql_json_text(self._json(value.sql), type_=_TEXT)
        if value.kind is Kind.BOOL:
            return sa.cast(value.sql, _TEXT)
        return self.text_of(value)

    def text_of(self, value: Argument) -> SQL:
        """Write it as `tostring` has it."""
        if value.kind is Kind.STRING:
            return value.sql
        if value.kind is Kind.REAL:
            whole = raw("'^-?[0-9]+$'")
            return self.once(
                sa.cast(value.sql, _TEXT),
                lambda t: sa.case((t.op("~")(whole), sa.func.concat(t, raw("'.0'"))), else_=t),
            )
        if value.kind is Kind.DATETIME:
            pattern = raw("""'YYYY-MM-DD"T"HH24:MI:SS.US"0Z"'""")
            return self.once(value.sql, lambda v: sa.func.to_char(self._timestamp(v), pattern, type_=_TEXT))
        if value.kind is Kind.TIMESPAN:
            return self.once(
                value.sql,
                # concat() makes nothing of a null.
                lambda v: sa.case(
                    (v.is_not(None), self.once(sa.func.abs(v, type_=_LONG), lambda a: _timespan(v, a)))
                ),
            )
        if value.kind is Kind.DYNAMIC:
            return self.once(
                self._json(value.sql),
                lambda j: sa.case(
                    (
                        sa.func.jsonb_typeof(j) == raw("'string'"),
                        infix("#>>", j, raw("'{}'::text[]"), _TEXT),
                    ),
                    (
                        sa.func.jsonb_typeof(j) == raw("'boolean'"),
                        sa.func.initcap(self._c(sa.cast(j, _TEXT)), type_=_TEXT),
                    ),
                    else_=sa.func.kql_json_text(j, type_=_TEXT),
                ),
            )
        if value.kind is Kind.BOOL:
            return sa.case((value.sql, raw("'True'")), (sa.not_(value.sql), raw("'False'")))
        return sa.cast(value.sql, _TEXT)

    @staticmethod
    def _timestamp(value: SQL) -> SQL:
        """Make a timestamp of microseconds, by days and the rest: an interval would count in double precision."""
        since = infix("-", value, constant(times.FIRST))
        day = infix(
            "+",
            raw("DATE '0001-01-01'"),
            sa.cast(infix("/", since, constant(times.DAY)), sa.Integer()),
        )
        rest = infix("*", infix("%", since, constant(times.DAY)), raw("INTERVAL '1 microsecond'"))
        return infix("+", day, rest)

    @staticmethod
    def _json(value: SQL) -> SQL:
        return sa.func.kql_json(value, type_=JSONB())

    def long_of_text(self, text: SQL) -> SQL:
        """Read a long."""
        return sa.cast(self._in_long(self._numeric(text, r"^[ \t\r\n]*[+-]?[0-9]{1,19}[ \t\r\n]*$")), _LONG)

    def real_of_text(self, text: SQL) -> SQL:
        """Read a real."""
        # A PostgreSQL regular expression repeats at most 255 times.
        digits = "[0-9]{1,200}([0-9]{1,200})?"
        number = self._numeric(
            text, rf"^[ \t\r\n]*[+-]?{digits}(\.{digits})?([eE][+-]?[0-9]{{1,3}})?[ \t\r\n]*$"
        )
        return sa.cast(
            self.once(
                number,
                lambda v: sa.case(
                    (sa.func.abs(v) < constant(REAL_LEAST), constant(0)),
                    (sa.func.abs(v) <= constant(REAL_MOST), v),
                ),
            ),
            _REAL,
        )

    def _numeric(self, text: SQL, pattern: str) -> SQL:
        """Read a number that has a form, null where it has another."""
        form = raw(f"'{pattern}'")
        return self.once(
            text,
            lambda t: sa.cast(
                sa.func.btrim(sa.case((self._c(t).op("~")(form), t)), raw(r"E' \t\r\n'")),
                _NUMERIC,
            ),
        )

    def truncated(self, value: SQL) -> SQL:
        """Cut off the fraction: CAST would round."""
        return self.once(
            value, lambda v: sa.cast(sa.func.trunc(sa.case((sa.func.abs(v) < constant(9.2e18), v))), _LONG)
        )

    def lower(self, text: SQL) -> SQL:
        """Make small letters, of ASCII alone: the collation C knows no others."""
        return sa.func.lower(self._c(text), type_=_TEXT)

    def upper(self, text: SQL) -> SQL:
        """Make capital letters, likewise."""
        return sa.func.upper(self._c(text), type_=_TEXT)

    @staticmethod
    def _c(text: SQL) -> SQL:
        return sa.collate(text, "C")

    def position(self, text: SQL, part: SQL) -> SQL:
        """Find a part."""
        return sa.func.strpos(text, part, type_=_LONG)

    def ends(self, text: SQL, part: SQL) -> SQL:
        """Compare the end."""
        return self.once(part, lambda p: sa.func.right(text, sa.func.length(p), type_=_TEXT) == p)

    def has_term(self, text: SQL, term: Argument) -> SQL:
        """Find a whole term by a regular expression, in which every character of the term stands for itself."""
        small = self.lower(text)

        def found(part: SQL, pattern: SQL) -> SQL:
            # What it is not in at all is seen without a pattern, many times as fast.
            there = self.position(small, part) > constant(0)
            return Grouping(sa.and_(there, infix("~", small, pattern, TYPES[Kind.BOOL])))

        if isinstance(term.constant, str):
            part = term.constant.translate(_SMALL)
            return found(sa.literal(part, _TEXT), sa.literal(_whole_term(part), _TEXT))
        return self.once(self.lower(term.sql), lambda part: found(part, self._whole_term(part)))

    def _whole_term(self, small: SQL) -> SQL:
        """Write what `_whole_term` returns."""
        beside, inside = raw(f"'{_BESIDE}'"), raw(rf"'({_BESIDE})'")
        begins = sa.func.left(small, 1).op("~")(raw(f"'^({_BESIDE}|$)'"))
        ends = sa.func.right(small, 1).op("~")(raw(f"'^({_BESIDE}|$)'"))
        return sa.func.concat(
            sa.case((begins, raw("'()'")), else_=sa.func.concat(raw("'(^|'"), beside, raw("')'"))),
            sa.func.regexp_replace(small, inside, raw(r"'\\\1'"), raw("'g'")),
            sa.case((ends, raw("''")), else_=sa.func.concat(raw("'('"), beside, raw("'|$)'"))),
            type_=_TEXT,
        )

    def matches(self, text: SQL, pattern: str) -> SQL:
        """Ask the regular expressions of PostgreSQL, for what they mean as RE2 does."""
        return infix("~", self._c(text), sa.literal(regex.to_postgresql(pattern), _TEXT), TYPES[Kind.BOOL])

    def joined(self, texts: Sequence[SQL]) -> SQL:
        """Join all at once: in pairs, each pair would be a copy of all before it."""
        return self._held(sa.func.concat(*(sa.cast(each, _TEXT) for each in texts), type_=_TEXT))

    def _held(self, text: SQL) -> SQL:
        """End the query at a text that is too long, as SQLite does: made longer and longer, it would fill the memory.

        Of a number that is none the server says what stands there; no text of a query does.
        """
        said = f"a text of more than {MOST_BYTES:,} bytes"
        return self.once(
            text,
            lambda t: sa.case(
                (sa.func.octet_length(t) > constant(MOST_BYTES), self._refused(t, said)),
                else_=t,
            ),
        )

    @staticmethod
    def _refused(text: SQL, said: str) -> SQL:
        # With nothing of the text in front of it: the server would compute a constant before it looks at the CASE.
        words = sa.func.concat(sa.func.left(text, 0), raw(f"'{said}'"))
        return sa.cast(sa.cast(words, sa.Integer()), _TEXT)

    def split(self, text: SQL, separator: SQL, index: SQL | None) -> SQL:
        """Make a list of what stands between separators."""

        def written(t: SQL) -> SQL:
            parts: SQL = sa.case(
                (t == raw("''"), raw("ARRAY['']")),
                else_=sa.func.string_to_array(t, separator),
            )
            if index is not None:
                at = infix("+", index, constant(1))
                parts = Grouping(sa.type_coerce(parts, ARRAY(sa.Text())))[at:at]
            return sa.cast(sa.func.to_json(parts), _TEXT)

        return self._held(self.once(text, written))

    def parse_json(self, text: SQL) -> SQL:
        """Parse, or make a string of it."""
        number = raw(f"'{_LONG_NUMBER}'")

        def written(t: SQL) -> SQL:
            # A few characters would stand for a hundred thousand digits each.
            value = sa.case(
                (self._c(t).op("~")(number), sa.func.to_jsonb(t, type_=JSONB())),
                else_=self._json(sa.func.nullif(t, raw("''"), type_=_TEXT)),
            )
            return self._held(self._not_null(value))

        return self.once(sa.cast(text, _TEXT), written)

    def member(self, value: SQL, key: str | int) -> SQL:
        """Take a member."""
        if isinstance(key, str):
            return self._not_null(infix("->", self._json(value), sa.literal(key, _TEXT), JSONB()))
        # A value that is no list is one of itself to ->.
        return self._not_null(
            self.once(
                self._json(value),
                lambda j: sa.case(
                    (
                        sa.func.jsonb_typeof(j) == raw("'array'"),
                        infix("->", j, sa.literal(key, sa.Integer()), JSONB()),
                    )
                ),
            )
        )

    @staticmethod
    def _not_null(value: SQL) -> SQL:
        """Make null of JSON's null."""
        return sa.func.nullif(sa.cast(value, _TEXT), raw("'null'"), type_=_TEXT)

    def start_of_month(self, value: SQL, months: SQL) -> SQL:
        """Count in the calendar."""

        def written(v: SQL) -> SQL:
            later = infix("*", months, raw("INTERVAL '1 month'"))
            begin = infix("+", sa.func.date_trunc(raw("'month'"), self._timestamp(v)), later)
            days = infix("-", sa.cast(begin, sa.Date()), raw("DATE '1970-01-01'"))
            return infix("*", sa.cast(days, _LONG), constant(times.DAY))

        return self.once(value, written)

    def ordered(self, value: SQL, kind: Kind) -> SQL:
        """Compare strings by code point, which is by the bytes of UTF-8."""
        return self._c(value) if kind is Kind.STRING else value

    def best_of(self, value: SQL, kind: Kind) -> SQL:
        """Take the only value; there is no max() of booleans."""
        return sa.func.bool_or(value) if kind is Kind.BOOL else sa.func.max(value, type_=TYPES[kind])

    def greatest(self, value: SQL, kind: Kind, *, least: bool) -> SQL:
        """Write the greatest or the least value of a group; there is no max() of booleans."""
        if kind is Kind.BOOL:
            return (sa.func.bool_and if least else sa.func.bool_or)(value)
        return super().greatest(value, kind, least=least)


def _timespan(value: SQL, magnitude: SQL) -> SQL:
    """Write a timespan, given also without its sign."""

    def part(divisor: int, modulus: int, digits: int) -> SQL:
        of = infix("%", infix("/", magnitude, constant(divisor)), constant(modulus))
        return sa.func.lpad(sa.cast(of, _TEXT), constant(digits), raw("'0'"))

    empty = raw("''")
    days = infix("/", magnitude, constant(times.DAY))
    return sa.func.concat(
        sa.case((value < constant(0), raw("'-'")), else_=empty),
        sa.case((days > constant(0), sa.func.concat(sa.cast(days, _TEXT), raw("'.'"))), else_=empty),
        part(3_600_000_000, 24, 2),
        raw("':'"),
        part(60_000_000, 60, 2),
        raw("':'"),
        part(1_000_000, 60, 2),
        sa.case(
            (
                infix("%", magnitude, constant(1_000_000)) > constant(0),
                sa.func.concat(raw("'.'"), part(1, 1_000_000, 6), raw("'0'")),
            ),
            else_=empty,
        ),
        type_=_TEXT,
    )
