"""Strangers' texts for people: nothing in them that a terminal obeys or that deceives a reader."""

from __future__ import annotations

import unicodedata
from typing import Final

SHORT_ID: Final = 8
"""Characters of a machine's id that are shown at least."""


def clean(text: str) -> str:
    """Return *text* without anything that a terminal obeys or that deceives a reader.

    Control characters (C0, C1, DEL, line breaks), invisible and direction-changing ones, private-use and
    unassigned code points and lone surrogates become U+FFFD.
    """
    # Most texts have nothing of that, which the interpreter says at once.
    if text.isprintable():
        return text
    return "".join("\ufffd" if _is_unprintable(c) else c for c in text)


def clean_lines(text: str) -> str:
    """Return *text* as `clean` does, but with its line breaks and tabs: for where lines are shown as lines."""
    if text.isprintable():
        return text
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join("\t".join(map(clean, line.split("\t"))) for line in lines)


def _is_unprintable(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] == "C" or category in ("Zl", "Zp")
