"""Regular expressions: the part of RE2's syntax that PostgreSQL's engine means alike, and how it is written there.

Both engines need no backtracking for it. Outside of it, and refused: look-around and back-references (RE2 has none),
lazy repetition (what is found does not matter, only whether), named groups, classes of Unicode, more than 200
repetitions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_REPETITIONS = 200
"""What a `{n,m}` may say; PostgreSQL ends at 255, RE2 at 1000."""
MOST_STATES = 2000
"""What the repetitions of one pattern may multiply to."""
_CLASSES = {
    "d": "0-9",
    "w": "A-Za-z0-9_",
    "s": r"\t\n\f\r ",
}
"""RE2's classes, which are of ASCII alone; those of PostgreSQL depend on a locale."""
_POSIX = ("alnum", "alpha", "digit", "lower", "upper", "punct", "space", "xdigit")
_POSIX_RANGES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "digit": "0-9",
    "lower": "a-z",
    "upper": "A-Z",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "xdigit": "0-9A-Fa-f",
}
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_SPECIAL = frozenset("\\^$.|?*+()[]{}")
_REPEAT = re.compile(r"\{([0-9]{1,4})(,?)([0-9]{0,4})\}", re.ASCII)


class Unsupported(ValueError):
    """A pattern is none, or outside of what both engines mean alike.

    Args:
        at: The character of the pattern that it is about, from 0.
    """

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.at = at


@dataclass(slots=True)
class _Cursor:
    """Where a pattern is read, and for which engine it is written; `fold` for letters of either case."""

    pattern: str
    re2: bool
    fold: bool
    at: int = 0
    depth: int = 0

    @property
    def next(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def take(self) -> str:
        found = self.next
        self.at += 1
        return found


def check(pattern: str) -> None:
    """Refuse a pattern that the engines do not mean alike.

    Raises:
        Unsupported: With the place.
    """
    _written(pattern, re2=True)


def to_re2(pattern: str) -> str:
    """Write a pattern, which `check` has let through, for RE2."""
    return _written(pattern, re2=True)


def to_postgresql(pattern: str) -> str:
    """Write a pattern, which `check` has let through, for PostgreSQL."""
    # Before all options: what follows is a regular expression of the advanced kind, whatever it begins with.
    return "***:" + _written(pattern, re2=False)


def _written(pattern: str, *, re2: bool) -> str:
    fold = pattern.startswith("(?i)")
    begin = 4 if fold else 0
    try:
        return _all(_Cursor(pattern[begin:], re2, fold))
    except Unsupported as e:
        raise Unsupported(str(e), e.at + begin) from None


def _all(cursor: _Cursor) -> str:
    written, _ = _alternatives(cursor)
    if cursor.next:
        raise Unsupported("this ) closes nothing", cursor.at)
    return written


def _alternatives(cursor: _Cursor) -> tuple[str, int]:
    """Read `a|b|c`; return it and how many states its repetitions make."""
    cursor.depth += 1
    if cursor.depth > 20:
        raise Unsupported("groups are nested more than 20 deep", cursor.at)
    parts, states = [], 0
    while True:
        written, weight = _sequence(cursor)
        parts.append(written)
        states += weight
        if cursor.next != "|":
            cursor.depth -= 1
            return "|".join(parts), states
        cursor.take()


def _sequence(cursor: _Cursor) -> tuple[str, int]:
    written, states = [], 0
    while cursor.next and cursor.next not in "|)":
        at = cursor.at
        atom, weight, repeatable = _atom(cursor)
        quantifier, times = _quantifier(cursor, repeatable=repeatable)
        states += weight * times
        if states > MOST_STATES:
            raise Unsupported("its repetitions make it too large", at)
        written.append(atom + quantifier)
    # An empty alternative is no expression to PostgreSQL.
    return "".join(written) or "()", states


def _quantifier(cursor: _Cursor, *, repeatable: bool) -> tuple[str, int]:
    """Read what says how often; return it and the factor."""
    at, found, times = cursor.at, "", 1
    if cursor.next and cursor.next in "*+?":
        found = cursor.take()
    elif repeat := _REPEAT.match(cursor.pattern, at):
        low, comma, high = repeat.groups()
        times = max(int(low), int(high or 0), 1)
        if times > MOST_REPETITIONS or (high and int(high) < int(low)):
            raise Unsupported(
                f"a repetition is at most {MOST_REPETITIONS}, and its end not before its beginning", at
            )
        found = f"{{{int(low)}{comma}{int(high) if high else ''}}}"
        cursor.at = repeat.end()
    elif cursor.next == "{":
        raise Unsupported(r"a { that is meant is written \{", at)
    if found and not repeatable:
        raise Unsupported(f"nothing stands before {found} that could be repeated", at)
    if found and cursor.next and cursor.next in "*+?{":
        raise Unsupported("a repetition follows a repetition; lazy ones find nothing else here", cursor.at)
    return found, times


def _atom(cursor: _Cursor) -> tuple[str, int, bool]:
    """Read one atom; return it, its states, and whether it can be repeated."""
    at, char = cursor.at, cursor.take()
    if char == "(":
        if cursor.pattern.startswith("?:", cursor.at):
            cursor.at += 2
        elif cursor.next == "?":
            raise Unsupported("of groups with ? there is (?:…) alone, and (?i) where the pattern begins", at)
        inside, states = _alternatives(cursor)
        if cursor.take() != ")":
            raise Unsupported("this ( is not closed", at)
        return f"(?:{inside})", max(states, 1), True
    if char == "[":
        return _bracket(cursor, at), 1, True
    if char == "\\":
        return _escape(cursor, at)
    if char in "^$":
        return _edge(cursor, begin=char == "^"), 0, False
    if char in "*+?":
        raise Unsupported(f"nothing stands before {char} that could be repeated", at)
    if char in "{}]":
        raise Unsupported(f"a {char} that is meant is written \\{char}", at)
    # RE2's . is no line feed.
    return (r"[^\n]" if char == "." else _plain(cursor, char)), 1, True


def _escape(cursor: _Cursor, at: int) -> tuple[str, int, bool]:
    char = cursor.take()
    if char in _CLASSES:
        return f"[{_CLASSES[char]}]", 1, True
    if char.lower() in _CLASSES and char:
        return f"[^{_CLASSES[char.lower()]}]", 1, True
    if char in ("A", "z"):
        return _edge(cursor, begin=char == "A"), 0, False
    if char == "b":
        if cursor.re2:
            return r"\b", 2, False
        return r"(?:(?=[A-Za-z0-9_])(?<![A-Za-z0-9_])|(?![A-Za-z0-9_])(?<=[A-Za-z0-9_]))", 2, False
    return _plain(cursor, _escaped(cursor, at, char)), 1, True


def _escaped(cursor: _Cursor, at: int, char: str) -> str:
    """Return the character that an escape stands for."""
    if char in _CONTROL:
        return _CONTROL[char]
    if char == "x":
        found = re.compile(r"([0-9a-fA-F]{2})|\{([0-9a-fA-F]{1,6})\}").match(cursor.pattern, cursor.at)
        code = int(found[1] or found[2], 16) if found else 0
        if found and 0 < code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF:
            cursor.at = found.end()
            return chr(code)
    elif char and char.isascii() and not char.isalnum():
        return char
    raise Unsupported(f"\\{char} is none of the escapes that both databases have", at)


def _bracket(cursor: _Cursor, at: int) -> str:
    """Read a class in brackets."""
    negated = cursor.next == "^"
    if negated:
        cursor.take()
    parts: list[str] = []
    while True:
        begin = cursor.at
        if not cursor.next:
            raise Unsupported("this [ is not closed", at)
        if cursor.next == "]" and parts:
            cursor.take()
            return f"[{'^' if negated else ''}{''.join(parts)}]"
        if cursor.pattern.startswith("[:", cursor.at):
            name = cursor.pattern[cursor.at + 2 : max(cursor.pattern.find(":]", cursor.at), cursor.at + 2)]
            if name not in _POSIX:
                raise Unsupported(f"of classes there are {', '.join(_POSIX)}", begin)
            cursor.at += len(name) + 4
            folds = cursor.fold and name in ("lower", "upper")
            parts.append(_POSIX_RANGES["alpha" if folds else name])
            continue
        low = _member(cursor)
        if len(low) > 1:
            parts.append(low)
            continue
        if cursor.next == "-" and cursor.pattern[cursor.at + 1 : cursor.at + 2] not in ("]", ""):
            cursor.take()
            high = _member(cursor)
            if len(high) > 1 or high < low:
                raise Unsupported("this range ends before it begins", begin)
            parts.append(f"{_in_class(low)}-{_in_class(high)}")
        else:
            high = low
            parts.append(_in_class(low))
        if cursor.fold:
            parts += _other_case(low, high)


def _member(cursor: _Cursor) -> str:
    """Read a character of a class, or the ranges of one inside it."""
    at, char = cursor.at, cursor.take()
    if char == "[":
        raise Unsupported(r"a [ that is meant is written \[", at)
    if char != "\\":
        return char
    escape = cursor.take()
    if escape in _CLASSES:
        return _CLASSES[escape]
    return _escaped(cursor, at, escape)


def _edge(cursor: _Cursor, *, begin: bool) -> str:
    """Write where a text begins or ends."""
    return r"\A" if begin else r"\z" if cursor.re2 else r"\Z"


def _plain(cursor: _Cursor, char: str) -> str:
    """Write a character that stands for itself."""
    if cursor.fold and char.isascii() and char.isalpha():
        return f"[{char.lower()}{char.upper()}]"
    return f"\\{char}" if char in _SPECIAL else char


def _other_case(low: str, high: str) -> list[str]:
    """Return the letters of ASCII in a range, in the other case, as ranges."""
    made = []
    for first, last, step in (("a", "z", -32), ("A", "Z", 32)):
        begin, end = max(low, first), min(high, last)
        if begin <= end:
            made.append(f"{chr(ord(begin) + step)}-{chr(ord(end) + step)}")
    return made


def _in_class(char: str) -> str:
    """Write a character that stands for itself in brackets."""
    return f"\\{char}" if char in "\\]^-[" else char
