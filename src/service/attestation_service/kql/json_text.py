"""JSON as dynamic values carry it: one text for each value, the same in both databases.

Members in the order of PostgreSQL's jsonb (shorter names first, then by byte), no white space, numbers as they were
written but without exponent. What is no JSON is a string: so `parse_json` has it.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

MOST_DIGITS = 1000
"""A number with more digits, before or after its point, makes its text no JSON."""
MOST_DEPTH = 100


def parse(text: str) -> Any:
    """Read JSON; numbers with a point or an exponent become `Decimal`.

    Raises:
        ValueError: It is none, or holds what PostgreSQL's jsonb does not.
    """
    try:
        value = json.loads(text, parse_float=_number, parse_int=_whole, parse_constant=_refuse)
        return _checked(value, MOST_DEPTH)
    except RecursionError:
        raise ValueError("JSON is nested too deep") from None


def canonical(value: Any) -> str:
    """Write what `parse` has read."""
    if isinstance(value, dict):
        members = sorted(value.items(), key=lambda each: (len(each[0].encode()), each[0].encode()))
        return "{" + ",".join(f"{quoted(name)}:{canonical(member)}" for name, member in members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, Decimal):
        return format(abs(value) if value == 0 else value, "f")
    return json.dumps(value)


def quoted(text: str) -> str:
    """Write a string as PostgreSQL does."""
    return json.dumps(text, ensure_ascii=False)


def literal(text: str) -> str:
    """Return the text of what stands in `dynamic(…)`; strings in apostrophes are read too.

    Raises:
        ValueError: It is no JSON.
    """
    try:
        return canonical(parse(_STRING.sub(_in_quotes, text)))
    except ValueError:
        raise ValueError("this is no JSON") from None


_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"|\'(?:[^\'\\]|\\.)*+\'')


def _in_quotes(found: re.Match[str]) -> str:
    """Write a string in apostrophes as JSON has it."""
    if found[0][0] == '"':
        return found[0]
    return '"' + found[0][1:-1].replace("\\'", "'").replace('"', '\\"') + '"'


def _number(text: str) -> Decimal:
    value = Decimal(text)
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    if (value and (len(digits) + max(exponent, 0) > MOST_DIGITS or -exponent > MOST_DIGITS)) or abs(
        exponent
    ) > MOST_DIGITS:
        raise ValueError("a number in JSON has too many digits")
    return value


def _whole(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError("a number in JSON has too many digits")
    return int(text)


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _checked(value: Any, depth: int) -> Any:
    """Refuse NUL and lone surrogates, which no database keeps, and what is nested too deep."""
    if depth == 0:
        raise ValueError("JSON is nested too deep")
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError("a string in JSON holds no NUL here")
        value.encode()
    elif isinstance(value, dict):
        for name, member in value.items():
            _checked(name, depth)
            _checked(member, depth - 1)
    elif isinstance(value, list):
        for member in value:
            _checked(member, depth - 1)
    return value
