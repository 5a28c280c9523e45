"""How much work a JSON text can make, found out before it is parsed.

A text of a few megabytes can hold hundreds of thousands of members: seconds of work for whoever sent it without a
word of proof. What a parser builds is bounded by three bytes outside of strings: each value but the first stands
behind a comma or an opening bracket. They are counted at the speed of a copy, and in steps, so that a hostile text
is given up early. Pure; nothing here parses or allocates by what a text says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from attestation.errors import BodyTooComplex

MAX_ESCAPES: Final = 65_536
"""Backslashes in one text. A PEM file has one per 64 characters; evidence has none."""
BYTES_PER_VALUE: Final = 64
"""Outside of strings, per value and without blanks: numbers, words and punctuation."""

_STEP_BYTES: Final = 1 << 16
_BLANKS: Final = b" \t\r\n"
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"{}[]"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What one text may hold.

    Args:
        values: Members of objects and items of arrays, together.
        depth: Objects and arrays within one another.
    """

    values: int
    depth: int = 32


def demand(text: bytes, bounds: Bounds) -> None:
    """Refuse *text* where a parser would build more than *bounds* allow.

    It need not be JSON: of any other text, the bounds hold up to where a parser gives up.

    Raises:
        BodyTooComplex: More values, deeper, or more escapes and numbers than any honest text has.
    """
    # 1. Over-counted, at once: what stands in strings counts too. Nearly every text ends here.
    if _count(text, b"\\", MAX_ESCAPES) > MAX_ESCAPES:
        raise BodyTooComplex(f"more than {MAX_ESCAPES} escapes")
    longest = BYTES_PER_VALUE * bounds.values
    if len(text) <= longest and _openings(text) <= bounds.depth and _values(text) <= bounds.values:
        return
    # 2. Exactly, on what is left without strings. A value has at most two: its own and its name.
    quotes = 4 * bounds.values + 2
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if _count(text, b'"', quotes) > quotes:
        raise BodyTooComplex(f"more than {bounds.values} values")
    outside = b"".join(text.split(b'"')[::2]).translate(None, _BLANKS)
    if len(outside) > longest or _values(outside) > bounds.values:
        raise BodyTooComplex(f"more than {bounds.values} values")
    if _depth(outside) > bounds.depth:
        raise BodyTooComplex(f"more than {bounds.depth} levels")


def _openings(text: bytes) -> int:
    return text.count(b"{") + text.count(b"[")


def _values(text: bytes) -> int:
    return text.count(b",") + _openings(text)


def _count(text: bytes, byte: bytes, enough: int) -> int:
    """Count *byte* in *text*, in steps; stop behind the step in which there were more than *enough*."""
    found = 0
    for start in range(0, len(text), _STEP_BYTES):
        found += text.count(byte, start, start + _STEP_BYTES)
        if found > enough:
            break
    return found


def _depth(outside: bytes) -> int:
    """Return how deep the brackets of a text without strings stand within one another."""
    deepest = level = 0
    for byte in outside.translate(None, _NO_BRACKETS):
        level += 1 if byte in b"{[" else -1
        deepest = max(deepest, level)
    return deepest
