"""Text to tokens. Each character belongs to a token, a comment or white space, or the text is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, auto

from attestation_service.kql import json_text, times
from attestation_service.kql.kinds import Kind, Place
from attestation_service.kql.source import Source


class Sort(Enum):
    """What a token is."""

    NAME = auto()
    QUOTED = auto()  # a name in brackets, ['so']: never a word of the language
    LITERAL = auto()
    MARK = auto()
    END = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token. A literal has a kind and a value, None where it is null; all else has its text."""

    sort: Sort
    place: Place
    text: str
    kind: Kind | None = None
    value: bool | int | float | str | None = None

    def is_mark(self, text: str) -> bool:
        """Tell whether this is that mark."""
        return self.sort is Sort.MARK and self.text == text


TYPED = {
    "bool": Kind.BOOL,
    "boolean": Kind.BOOL,
    "date": Kind.DATETIME,
    "datetime": Kind.DATETIME,
    "double": Kind.REAL,
    "dynamic": Kind.DYNAMIC,
    "int": Kind.INT,
    "long": Kind.LONG,
    "real": Kind.REAL,
    "time": Kind.TIMESPAN,
    "timespan": Kind.TIMESPAN,
}
"""Words that make a literal of what stands in the parentheses after them, `datetime(2026-01-31)`: no functions."""

_SKIPPED = re.compile(r"(?:[ \t\r\n\f\u00a0]+|//[^\n]*)+")
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_]*", re.ASCII)
_TYPED = re.compile(rf"({'|'.join(TYPED)})\s*\(", re.ASCII)
_HEX = re.compile(r"0[xX]([0-9a-fA-F]+)", re.ASCII)
_REAL = re.compile(r"[0-9]+(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)", re.ASCII)
_SPAN = re.compile(r"([0-9]+)(?:\.([0-9]+))?([A-Za-z]+)", re.ASCII)
_WHOLE = re.compile(r"[0-9]+", re.ASCII)
_MARKS = re.compile(r"==|!=|=~|!~|<=|>=|\.\.|[|()\[\]{},;.:=<>+\-*/%!?@#~^&]")
_ESCAPES = {
    "\\": "\\",
    "'": "'",
    '"': '"',
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "v": "\v",
}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)

MOST = 1 << 63
REAL_MOST, REAL_LEAST = 1e150, 1e-150
"""A real is 0 or its magnitude is between these: so no product and no sum of them is more than a double holds."""


def tokens_of(source: Source) -> Iterator[Token]:
    """Yield the tokens of a query, the last one an END.

    Raises:
        QueryInvalid: Something is no token.
    """
    text, at = source.text, 0
    while True:
        if skipped := _SKIPPED.match(text, at):
            at = skipped.end()
        if at == len(text):
            yield Token(sort=Sort.END, place=Place(offset=at, length=0), text="")
            return
        token = _token(source, at)
        yield token
        at = token.place.offset + token.place.length


def _token(source: Source, at: int) -> Token:
    """Read the token at an offset where one begins."""
    text = source.text
    if text[at] in "\"'" or text.startswith(('@"', "@'", "```", "~~~"), at):
        value, end = _string(source, at)
        return Token(
            sort=Sort.LITERAL, place=_place(at, end), text=text[at:end], kind=Kind.STRING, value=value
        )
    if text.startswith(("['", '["'), at) and (quoted := _quoted_name(source, at)):
        return quoted
    if found := _TYPED.match(text, at):
        return _typed(source, at, found)
    if found := _NAME.match(text, at):
        word = found[0]
        if word in ("true", "false"):
            return _literal(at, found.end(), word, Kind.BOOL, word == "true")
        return Token(sort=Sort.NAME, place=_place(at, found.end()), text=word)
    if text[at].isascii() and text[at].isdigit():
        return _number(source, at)
    if found := _MARKS.match(text, at):
        return Token(sort=Sort.MARK, place=_place(at, found.end()), text=found[0])
    raise source.invalid(_place(at, at + 1), f"the character {text[at]!a} has no meaning here")


def _number(source: Source, at: int) -> Token:
    text = source.text
    found = _HEX.match(text, at) or _REAL.match(text, at)
    # 1e3 is a real, 1d a timespan: a letter that belongs to neither is refused below.
    if found and not _NAME.match(text, found.end()):
        place = _place(at, found.end())
        if found.re is _HEX:
            return _literal(
                at, found.end(), found[0], Kind.LONG, _whole(source, place, int(found[1], 16), Kind.LONG)
            )
        return _literal(at, found.end(), found[0], Kind.REAL, _real(source, place, float(found[0])))
    if found := _SPAN.match(text, at):
        try:
            value = times.counted(found[1], found[2] or "", found[3])
        except ValueError as e:
            raise source.invalid(_place(at, found.end()), str(e)) from None
        return _literal(at, found.end(), found[0], Kind.TIMESPAN, value)
    found = _WHOLE.match(text, at)
    assert found is not None
    place = _place(at, found.end())
    return _literal(
        at, found.end(), found[0], Kind.LONG, _whole(source, place, int(found[0][:40]), Kind.LONG)
    )


def _string(source: Source, at: int) -> tuple[str, int]:
    """Read the string literal that begins at *at*; return its value and where it ends."""
    text = source.text
    for fence in ("```", "~~~"):
        if text.startswith(fence, at):
            end = text.find(fence, at + 3)
            if end < 0:
                raise source.invalid(_place(at, at + 3), f"this string has no end; {fence} is missing")
            return _clean(source, at, end + 3, text[at + 3 : end]), end + 3
    if text[at] == "@":
        quote, begin = text[at + 1], at + 2
        found = re.compile(f"(?:[^{quote}\n]|{quote}{quote})*+").match(text, begin)
        assert found is not None
        value = found[0].replace(quote * 2, quote)
    else:
        quote, begin = text[at], at + 1
        found = re.compile(rf"(?:[^{quote}\\\n]|\\[^\n])*+").match(text, begin)
        assert found is not None
        value = _ESCAPE.sub(lambda each: _unescaped(source, begin, each), found[0])
    if not text.startswith(quote, found.end()):
        raise source.invalid(
            _place(at, found.end()), f"this string has no end; {quote} is missing on its line"
        )
    return _clean(source, at, found.end() + 1, value), found.end() + 1


def _unescaped(source: Source, begin: int, found: re.Match[str]) -> str:
    """Return what one escape of a string stands for."""
    if digits := found[1] or found[2] or found[3]:
        if int(digits, 16) <= 0x10FFFF:
            return chr(int(digits, 16))
    elif found[4] in _ESCAPES:
        return _ESCAPES[found[4]]
    place = _place(begin + found.start(), begin + found.end())
    raise source.invalid(place, r"no such escape; a backslash is written \\, or the string begins with @")


def _clean(source: Source, begin: int, end: int, value: str) -> str:
    """Refuse what no database keeps in a text."""
    if "\0" in value:
        raise source.invalid(_place(begin, end), "a string holds no NUL")
    if any("\ud800" <= each <= "\udfff" for each in value):
        raise source.invalid(_place(begin, end), "half of a surrogate pair is no character")
    return value


def _quoted_name(source: Source, at: int) -> Token | None:
    """Read `['a name']`; nothing where it is an index of more than a string, `['a' ]` or `['a'+…]`."""
    text = source.text
    value, end = _string(source, at + 1)
    if not text.startswith("]", end):
        return None
    return Token(sort=Sort.QUOTED, place=_place(at, end + 1), text=value)


def _typed(source: Source, at: int, found: re.Match[str]) -> Token:
    """Read a literal that says its kind, such as `datetime(2026-01-31)` or `long(null)`."""
    text, kind = source.text, TYPED[found[1]]
    begin = found.end()
    end = _end_of_json(source, begin) if kind is Kind.DYNAMIC else text.find(")", begin)
    if end < 0:
        raise source.invalid(_place(at, found.end()), f"this {found[1]} has no end; ) is missing")
    inside, place = text[begin:end].strip(), _place(at, end + 1)
    if inside == "null":
        return _literal(at, end + 1, text[at : end + 1], kind, None)
    if (
        inside[:1] in ("'", '"')
        and kind is not Kind.DYNAMIC
        and inside[-1:] == inside[:1]
        and len(inside) > 1
    ):
        inside = inside[1:-1]
    try:
        value = _VALUES[kind](source, place, inside)
    except ValueError as e:
        raise source.invalid(place, str(e)) from None
    return _literal(at, end + 1, text[at : end + 1], kind, value)


def _end_of_json(source: Source, begin: int) -> int:
    """Return where the parenthesis that closes `dynamic(` stands, or -1."""
    text, depth, where = source.text, 1, begin
    while where < len(text):
        if text[where] in "\"'":
            _, where = _string(source, where)
            continue
        depth += (text[where] in "([{") - (text[where] in ")]}")
        if depth == 0:
            return where
        where += 1
    return -1


def _bool(_source: Source, _place: Place, inside: str) -> bool:
    words = {"true": True, "false": False, "1": True, "0": False}
    if inside.lower() not in words:
        raise ValueError("a bool is true, false or null")
    return words[inside.lower()]


def _whole_of(kind: Kind) -> Callable[[Source, Place, str], int]:
    def read(source: Source, place: Place, inside: str) -> int:
        found = re.fullmatch(r"([+-]?)(?:0[xX]([0-9a-fA-F]{1,16})|([0-9]{1,19}))", inside, re.ASCII)
        if found is None:
            raise ValueError(f"this is no {kind}")
        return _whole(source, place, int(found[1] + (found[2] or found[3]), 16 if found[2] else 10), kind)

    return read


def _real_of(source: Source, place: Place, inside: str) -> float:
    if not re.fullmatch(r"[+-]?[0-9]{1,400}(?:\.[0-9]{1,400})?(?:[eE][+-]?[0-9]{1,4})?", inside, re.ASCII):
        raise ValueError("this is no real; there is none that is infinite or not a number either")
    return _real(source, place, float(inside))


def _dynamic(_source: Source, _place: Place, inside: str) -> str:
    return json_text.literal(inside)


_VALUES: dict[Kind, Callable[[Source, Place, str], bool | int | float | str]] = {
    Kind.BOOL: _bool,
    Kind.INT: _whole_of(Kind.INT),
    Kind.LONG: _whole_of(Kind.LONG),
    Kind.REAL: _real_of,
    Kind.DATETIME: lambda _source, _place, inside: times.parse_datetime(inside),
    Kind.TIMESPAN: lambda _source, _place, inside: times.parse_timespan(inside),
    Kind.DYNAMIC: _dynamic,
}


def _whole(source: Source, place: Place, value: int, kind: Kind) -> int:
    most = MOST if kind is Kind.LONG else 1 << 31
    if not -most < value < most:
        raise source.invalid(place, f"this is more than {'a' if kind is Kind.LONG else 'an'} {kind} holds")
    return value


def _real(source: Source, place: Place, value: float) -> float:
    if value and not REAL_LEAST <= abs(value) <= REAL_MOST:
        raise source.invalid(place, f"a real is 0 or between {REAL_LEAST} and {REAL_MOST}")
    return value


def _literal(begin: int, end: int, text: str, kind: Kind, value: bool | float | str | None) -> Token:
    return Token(sort=Sort.LITERAL, place=_place(begin, end), text=text, kind=kind, value=value)


def _place(begin: int, end: int) -> Place:
    return Place(offset=begin, length=end - begin)
