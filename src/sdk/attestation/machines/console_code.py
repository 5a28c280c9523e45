"""Codes that people read on a console and type elsewhere (RFC 8628 §6.1).

Eight letters of twenty: 34 bits. Nobody guesses one of a thousand that wait in ten tries a minute.
"""

from __future__ import annotations

from typing import Final

LETTERS: Final = "BCDFGHJKLMNPQRSTVWXZ"
"""No vowels, and no digits: nothing is mistaken for another, and no code is a word."""
HALF: Final = 4
PATTERN: Final = f"^[{LETTERS}]{{{HALF}}}-[{LETTERS}]{{{HALF}}}$"


def typed(text: str) -> str:
    """Return the code that somebody means by *text*: its letters alone count, in either case."""
    letters = "".join(letter for letter in text.upper() if letter in LETTERS)
    return f"{letters[:HALF]}-{letters[HALF:]}"
