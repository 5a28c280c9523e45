"""What a connection to SQLite must know before a query runs: deterministic functions without I/O.

Each takes what SQLite gives: None for NULL, 0 and 1 for a bool. On PostgreSQL expressions stand for them, which
`tests/integration/service/test_kql_databases.py` compares.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

import re2

from attestation_service.kql import json_text, times
from attestation_service.kql.kinds import Kind
from attestation_service.kql.lexer import MOST, REAL_LEAST, REAL_MOST

_LONG = re.compile(r"[ \t\r\n]*([+-]?[0-9]{1,19})[ \t\r\n]*", re.ASCII)
_REAL = re.compile(
    r"[ \t\r\n]*([+-]?[0-9]{1,400}(?:\.[0-9]{1,400})?(?:[eE][+-]?[0-9]{1,3})?)[ \t\r\n]*", re.ASCII
)
_FEW = 64
"""Places of a term that are looked for one after the other."""
_TERM = re.compile(r"[a-z0-9\u0080-\U0010ffff]")


def real_text(value: float | None) -> str | None:
    """Write a real with as few digits as tell it apart, an exponent below 1e-4 and from 1e15."""
    if value is None:
        return None
    text = repr(float(value))
    if abs(value) >= 1e15 and "e" not in text:
        digits = text.removesuffix(".0").lstrip("-")
        mantissa = f"{digits[0]}.{digits[1:]}".rstrip("0").rstrip(".")
        text = ("-" if value < 0 else "") + f"{mantissa}e+{len(digits) - 1:02}"
    return text


def datetime_text(value: int | None) -> str | None:
    """Write a datetime with seven digits after its second."""
    return None if value is None else times.print_datetime(value, digits=7)


def timespan_text(value: int | None) -> str | None:
    """Write a timespan."""
    return None if value is None else times.print_timespan(value)


def dynamic_text(value: str | None) -> str | None:
    """Write a string without its quotes, a bool as one that is not in JSON, all else as JSON."""
    if value is None:
        return None
    parsed = _parsed(value)
    if isinstance(parsed, bool):
        return str(parsed)
    return parsed if isinstance(parsed, str) else json_text.canonical(parsed)


def long(text: str | None) -> int | None:
    """Read a long."""
    found = _LONG.fullmatch(text or "")
    return int(found[1]) if found and abs(int(found[1])) < MOST else None


def real(text: str | None) -> float | None:
    """Read a real."""
    found = _REAL.fullmatch(text or "")
    if not found:
        return None
    exact = abs(Decimal(found[1]))
    if exact > Decimal(repr(REAL_MOST)):
        return None
    return 0.0 if exact < Decimal(repr(REAL_LEAST)) else float(found[1])


def has(text: str, term: str) -> bool:
    """Tell whether *term* is in *text* with no letter or digit beside it; of ASCII both have small letters alone."""
    begins, ends = bool(_TERM.match(term[:1])), bool(_TERM.match(term[-1:]))
    for at in _places(text, term):
        end = at + len(term)
        if not (begins and at and _TERM.match(text[at - 1])) and not (
            ends and end < len(text) and _TERM.match(text[end])
        ):
            return True
    return False


def _places(text: str, term: str) -> Iterator[int]:
    """Yield where *term* stands in *text*, also where it overlaps itself; in time that grows with both together.

    A search that begins anew after each place compares a long term as often as it overlaps itself: for hours.
    """
    at = text.find(term)
    for _ in range(_FEW):
        if at < 0:
            return
        yield at
        at = text.find(term, at + 1)
    if at < 0:
        return
    if not term:
        yield from range(at, len(text) + 1)
        return
    # By how much of its beginning it ends with (Knuth, Morris, Pratt): no character is looked at twice.
    borders, known = [0], 0
    for char in term[1:]:
        while known and char != term[known]:
            known = borders[known - 1]
        known += char == term[known]
        borders.append(known)
    known = 0
    for end in range(at, len(text)):
        while known and text[end] != term[known]:
            known = borders[known - 1]
        known += text[end] == term[known]
        if known == len(term):
            yield end + 1 - known
            known = borders[known - 1]


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 8 << 20
    options.never_capture = True
    # Of bytes: of a text it would count where each match is, which takes longer than to find it.
    return re2.compile(pattern.encode(), options)


def matches(text: str, pattern: str) -> bool:
    """Tell whether a regular expression is found in *text*."""
    return _compiled(pattern).search(text.encode()) is not None


def split(text: str, separator: str, index: int | None) -> str:
    """Split a text; nothing to split it by leaves it whole."""
    parts = text.split(separator) if separator else [text]
    if index is not None:
        parts = parts[index : index + 1] if index >= 0 else []
    return json_text.canonical(parts)


def parse_json(text: str | None) -> str | None:
    """Read JSON; what is none is a string; nothing and JSON's null are null."""
    if text is None or text == "":
        return None
    parsed = _parsed(text)
    return None if parsed is None else json_text.canonical(parsed)


def member(value: str | None, key: str | int) -> str | None:
    """Take what a dynamic value has under a name, or at a position, which counts from the end where it is negative."""
    parsed = None if value is None else _parsed(value)
    found = None
    if isinstance(key, str) and isinstance(parsed, dict):
        found = parsed.get(key)
    elif isinstance(key, int) and isinstance(parsed, list) and -len(parsed) <= key < len(parsed):
        found = parsed[key]
    return None if found is None else json_text.canonical(found)


def month(value: int | None, months: int) -> int | None:
    """Go to the first day of a month, so many months later; null beyond the years 1 to 9999."""
    if value is None:
        return None
    at = times.EPOCH + timedelta(microseconds=value)
    year, index = divmod(at.year * 12 + at.month - 1 + months, 12)
    if not 1 <= year <= 9999:
        return None
    return times.to_microseconds(times.EPOCH.replace(year=year, month=index + 1))


def sum_of(high: int | None, low: int | None) -> int | None:
    """Put together the sums of both halves of longs; 0 where there are none, null where a long has no room."""
    if high is None or low is None:
        return 0
    total = (high << 32) + low
    return total if abs(total) < MOST else None


def list_of(pairs: str, kind: str, distinct: int) -> str:
    """Write the JSON list of pairs of an order and a value."""
    found = [(order, _element(Kind(kind), value)) for order, value in json.loads(pairs)]
    if distinct:
        return "[" + ",".join(sorted({text for _, text in found})) + "]"
    return "[" + ",".join(text for _, text in sorted(found)) + "]"


def bounded(value: Any, low: int, high: int) -> int | None:
    """Make null of what is beyond the bounds, or no whole number, as SQLite makes of one that has no room."""
    if isinstance(value, float) or value is None:
        return None
    return value if low <= value <= high else None


def bounded_real(value: float | None) -> float | None:
    """Make 0 of a real that is too small, and null of one that is too great."""
    if value is None or not abs(value) <= REAL_MOST:
        return None
    return 0.0 if abs(value) < REAL_LEAST else float(value)


def truncated(value: float | None) -> int | None:
    """Cut off the fraction of a real; null where a long has no room for it."""
    return None if value is None or not abs(value) < 9.2e18 else int(value)


def equal(left: Any, right: Any) -> bool | None:
    """Compare: null where both are, false where one is."""
    return None if left is right is None else bool(left == right)


def _whole(compute: Callable[[int, int], int | None]) -> Callable[[Any, Any], int | None]:
    """Make arithmetic of longs: null of null, and of what has no room."""

    def computed(left: Any, right: Any) -> int | None:
        if left is None or right is None:
            return None
        return bounded(compute(left, right), -MOST + 1, MOST - 1)

    return computed


def _divide(left: int, right: int) -> int | None:
    if right == 0:
        return None
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


def bin_whole(value: int | None, step: int | None, origin: int) -> int | None:
    """Round down to a multiple of a step, counted from an origin."""
    if value is None or step is None or step <= 0:
        return None
    return bounded(value - (value - origin) % step, -MOST + 1, MOST - 1)


def bin_real(value: float | None, step: float | None) -> float | None:
    """Round down to a multiple of a step."""
    if value is None or step is None or step <= 0 or abs(value / step) > REAL_MOST:
        return None
    return math.floor(value / step) * step


def _element(kind: Kind, value: Any) -> str:
    """Write a member of a list."""
    if kind is Kind.STRING:
        return json_text.quoted(value)
    if kind is Kind.BOOL:
        return "true" if value else "false"
    if kind is Kind.DATETIME:
        return json_text.quoted(times.print_datetime(value, digits=7))
    if kind is Kind.TIMESPAN:
        return json_text.quoted(times.print_timespan(value))
    return str(value)


def _parsed(text: str) -> Any:
    try:
        return json_text.parse(text)
    except ValueError:
        return text


def _unless_null(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make null of what is asked of a null: no text is null, but a table may be wrong about it."""

    def called(text: str | None, *more: Any) -> Any:
        return None if text is None else function(text, *more)

    return called


FUNCTIONS: Mapping[str, tuple[int, Callable[..., Any]]] = {
    "kql_real_text": (1, real_text),
    "kql_datetime_text": (1, datetime_text),
    "kql_timespan_text": (1, timespan_text),
    "kql_dynamic_text": (1, dynamic_text),
    "kql_long": (1, long),
    "kql_real": (1, real),
    "kql_bounded": (3, bounded),
    "kql_bounded_real": (1, bounded_real),
    "kql_truncated": (1, truncated),
    "kql_equal": (2, equal),
    "kql_add": (2, _whole(operator.add)),
    "kql_subtract": (2, _whole(operator.sub)),
    "kql_multiply": (2, _whole(operator.mul)),
    "kql_divide": (2, _whole(_divide)),
    "kql_modulo": (2, _whole(lambda left, right: left % abs(right) if right else None)),
    "kql_bin": (3, bin_whole),
    "kql_bin_real": (2, bin_real),
    "kql_ends": (2, _unless_null(str.endswith)),
    "kql_has": (2, _unless_null(has)),
    "kql_matches": (2, _unless_null(matches)),
    "kql_split": (3, _unless_null(split)),
    "kql_json": (1, parse_json),
    "kql_member": (2, member),
    "kql_month": (2, month),
    "kql_sum": (2, sum_of),
    "kql_list": (3, list_of),
}
"""Name -> how many arguments, and the function."""


def parse_json_value(text: str) -> Any:
    """Return a dynamic value for an answer in JSON: numbers with a point as floats."""
    try:
        return json.loads(text)
    except ValueError:
        return text
