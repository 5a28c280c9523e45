"""Expressions: a Pratt parser, whose table of operators is that of `functions`.

Binding powers are Kusto's, which differ from SQL's: `has` and its like bind tighter than `*`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from attestation_service.kql.kinds import Kind
from attestation_service.kql.lexer import Sort, Token
from attestation_service.kql.reader import Reader
from attestation_service.kql.syntax import (
    Call,
    Expression,
    Group,
    Index,
    Literal,
    Name,
    Pipeline,
    Rows,
    Star,
)

PipelineParser: TypeAlias = Callable[[Reader], Pipeline]
"""Reads a pipeline inside an expression; given by the caller, as pipelines are made of expressions."""

OR, AND, EQUALITY, RELATION, SUM, PRODUCT, STRING, PREFIX = range(1, 9)

POWERS = {
    "or": OR,
    "and": AND,
    **dict.fromkeys(("==", "!=", "in", "!in", "in~", "!in~", "between", "!between"), EQUALITY),
    **dict.fromkeys(("has_any", "has_all"), EQUALITY),
    **dict.fromkeys(("<", "<=", ">", ">="), RELATION),
    **dict.fromkeys(("+", "-"), SUM),
    **dict.fromkeys(("*", "/", "%"), PRODUCT),
    **dict.fromkeys(("=~", "!~", "matches regex"), STRING),
    **dict.fromkeys(("has", "!has"), STRING),
    **{
        f"{sign}{name}{case}": STRING
        for name in ("contains", "startswith", "endswith")
        for case in ("", "_cs")
        for sign in ("", "!")
    },
}
"""How tightly each operator binds."""

_SIGNED = frozenset({Kind.LONG, Kind.REAL, Kind.TIMESPAN})

ONCE = {EQUALITY, RELATION}
"""Powers at which nothing associates: `a == b == c` is refused."""

GROUPED = {"in", "!in", "in~", "!in~", "has_any", "has_all"}
"""Operators whose right side is a list in parentheses, or the rows of a pipeline."""

LONGEST_CHAIN = 100
"""`a and b and …`, `a + b + …`: more than so many in a row are refused, as each is one level to a database."""


def expression(reader: Reader, pipeline: PipelineParser, power: int = 0) -> Expression:
    """Read an expression whose operators bind tighter than *power*.

    Raises:
        QueryInvalid: There is none.
    """
    with reader.deeper():
        left, links = _prefix(reader, pipeline), 0
        while (found := _operator(reader)) and POWERS[found.text] > power:
            links += 1
            if links > LONGEST_CHAIN:
                raise reader.source.invalid(
                    found.place, f"more than {LONGEST_CHAIN} operators in a row; use in, or parentheses"
                )
            while reader.token.place.offset < found.place.offset + found.place.length:
                reader.take()
            right = _right(reader, pipeline, found.text)
            left = Call(
                place=left.place.to(right.place), mark=found.place, name=found.text, arguments=(left, right)
            )
            again = _operator(reader) if POWERS[found.text] in ONCE else None
            if again and POWERS[again.text] == POWERS[found.text]:
                raise reader.source.invalid(
                    again.place, f"{again.text} after {found.text}: use and, or parentheses"
                )
        return left


def _operator(reader: Reader) -> Token | None:
    """Return the operator that comes next as one token, whatever it is made of; nothing where none does."""
    token, after, then = reader.token, reader.peek(), reader.peek(2)
    parts = [token]
    if token.is_mark("!") and after.sort is Sort.NAME and _close(token, after):
        parts.append(after)
        if then.is_mark("~") and _close(after, then):
            parts.append(then)
    elif token.sort is Sort.NAME and after.is_mark("~") and _close(token, after):
        parts.append(after)
    elif (
        token.sort is Sort.NAME
        and token.text == "matches"
        and after.sort is Sort.NAME
        and after.text == "regex"
    ):
        return Token(sort=Sort.MARK, place=token.place.to(after.place), text="matches regex")
    elif token.sort not in (Sort.NAME, Sort.MARK):
        return None
    text = "".join(part.text for part in parts)
    if text not in POWERS:
        return None
    return Token(sort=Sort.MARK, place=token.place.to(parts[-1].place), text=text)


def _right(reader: Reader, pipeline: PipelineParser, operator: str) -> Expression:
    """Read what stands right of an operator."""
    if operator in GROUPED:
        return _group(reader, pipeline)
    if operator in ("between", "!between"):
        begin = reader.expect("(")
        low = expression(reader, pipeline)
        reader.expect("..")
        high = expression(reader, pipeline)
        return Group(place=begin.place.to(reader.expect(")").place), items=(low, high))
    return expression(reader, pipeline, POWERS[operator])


def _group(reader: Reader, pipeline: PipelineParser) -> Expression:
    """Read a list of values, or a pipeline."""
    begin = reader.expect("(")
    if reader.token.sort in (Sort.NAME, Sort.QUOTED) and (
        reader.peek().is_mark("|") or reader.is_word("union")
    ):
        rows = pipeline(reader)
        return Rows(place=begin.place.to(reader.expect(")").place), pipeline=rows)
    items = reader.listed(lambda: expression(reader, pipeline))
    return Group(place=begin.place.to(reader.expect(")").place), items=items)


def _prefix(reader: Reader, pipeline: PipelineParser) -> Expression:
    """Read what an expression begins with, and what is taken from it: `-x`, `f(x).y[0]`."""
    token = reader.token
    if reader.is_mark("-", "+"):
        sign = reader.take()
        operand = expression(reader, pipeline, STRING)
        if (
            isinstance(operand, Literal)
            and operand.kind in _SIGNED
            and not isinstance(operand.value, str | None)
        ):
            value = -operand.value if sign.text == "-" else operand.value
            return Literal(place=sign.place.to(operand.place), kind=operand.kind, value=value)
        return Call(
            place=sign.place.to(operand.place), mark=sign.place, name=f"{sign.text}1", arguments=(operand,)
        )
    found, members = _primary(reader, pipeline), -1
    while True:
        members += 1
        if members > reader.limits.nesting:
            raise reader.source.invalid(
                reader.token.place, f"more than {reader.limits.nesting} members of members"
            )
        if reader.is_mark("."):
            reader.take()
            name = reader.name("the name of a member")
            found = Index(place=token.place.to(name.place), value=found, key=name.text)
        elif reader.token.sort is Sort.QUOTED:
            name = reader.take()
            found = Index(place=token.place.to(name.place), value=found, key=name.text)
        elif reader.is_mark("["):
            reader.take()
            found = _index(reader, found, token)
        else:
            return found


def _index(reader: Reader, value: Expression, begin: Token) -> Expression:
    """Read a position or a name in brackets."""
    sign = -1 if reader.skip("-") else 1
    key = reader.take()
    if key.sort is not Sort.LITERAL or key.kind not in (Kind.LONG, Kind.STRING) or key.value is None:
        raise reader.source.invalid(key.place, "in brackets stands a position or a name, not an expression")
    end = reader.expect("]")
    at = key.value if isinstance(key.value, str) else sign * int(key.value)
    if isinstance(at, int) and abs(at) >= 1 << 31:
        raise reader.source.invalid(key.place, "no list has such a position")
    return Index(place=begin.place.to(end.place), value=value, key=at)


def _primary(reader: Reader, pipeline: PipelineParser) -> Expression:
    token = reader.token
    if token.sort is Sort.LITERAL:
        reader.take()
        return _literal(reader, token)
    if token.is_mark("("):
        reader.take()
        inside = expression(reader, pipeline)
        reader.expect(")")
        return inside
    if token.is_mark("*"):
        reader.take()
        return Star(place=token.place)
    if token.sort is Sort.NAME and reader.peek().is_mark("("):
        return _call(reader, pipeline)
    if token.sort in (Sort.NAME, Sort.QUOTED):
        reader.take()
        return Name(place=token.place, name=token.text)
    raise reader.expected("a value")


def _literal(reader: Reader, token: Token) -> Literal:
    """Return a literal; strings that follow one another are one."""
    assert token.kind is not None
    value, place = token.value, token.place
    while isinstance(value, str) and token.kind is Kind.STRING and reader.token.kind is Kind.STRING:
        following = reader.take()
        value, place = value + str(following.value), place.to(following.place)
    return Literal(place=place, kind=token.kind, value=value)


def _call(reader: Reader, pipeline: PipelineParser) -> Call:
    name = reader.take()
    if name.text in POWERS:
        raise reader.source.invalid(name.place, f"{name.text} stands between two values")
    reader.expect("(")
    arguments: tuple[Expression, ...] = ()
    if not reader.is_mark(")"):
        arguments = reader.listed(lambda: expression(reader, pipeline))
    end = reader.expect(")")
    return Call(place=name.place.to(end.place), mark=name.place, name=name.text, arguments=arguments)


def _close(left: Token, right: Token) -> bool:
    return left.place.offset + left.place.length == right.place.offset
