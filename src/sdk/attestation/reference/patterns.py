"""Patterns for kernel command lines and file paths: `*` and nothing else, so that no pattern can run away.

A command line is a list of words. A pattern is one too, and matches where each of its words matches the word
of the line in the same place: `root=UUID=* ro quiet` matches no line with one word more, whatever it is. In a
word, `*` stands for any characters of that word. Regular expressions are not used: a slow one would let a log
of the machine stop the verifier, and a loose one would let `init=/bin/sh` through.

The cost of a match is bounded by the length of the line times the number of stars of one word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MAX_PATTERN: Final = 2048
"""Characters of a pattern."""
MAX_STARS: Final = 8
"""Stars in one word."""
MAX_LINE: Final = 8192
"""Characters of a line that is compared; a longer one matches nothing."""


@dataclass(frozen=True, slots=True)
class Glob:
    """One word in which `*` stands for any characters.

    Args:
        text: As written.
        parts: The text between the stars.
    """

    text: str
    parts: tuple[str, ...]

    def matches(self, word: str) -> bool:
        """True where the whole of *word* is matched."""
        if len(self.parts) == 1:
            return word == self.text
        first, *middle, last = self.parts
        if not word.startswith(first) or len(word) < len(first) + len(last) or not word.endswith(last):
            return False
        at, end = len(first), len(word) - len(last)
        for part in middle:
            # The leftmost place leaves the most for what follows: no other need be tried.
            found = word.find(part, at, end)
            if found < 0:
                return False
            at = found + len(part)
        return True


@dataclass(frozen=True, slots=True)
class CommandPattern:
    """A pattern for a whole command line.

    Args:
        text: As written.
        words: One pattern per word.
    """

    text: str
    words: tuple[Glob, ...]

    def matches(self, words: Sequence[str]) -> bool:
        """True where each word of the line is matched by the word in its place."""
        return len(words) == len(self.words) and all(
            glob.matches(word) for glob, word in zip(self.words, words, strict=True)
        )


def parse_glob(text: str) -> Glob | None:
    """Return *text* as a pattern of one word, or None where it is none."""
    if not 0 < len(text) <= MAX_PATTERN or not text.isprintable() or text.count("*") > MAX_STARS:
        return None
    return Glob(text, tuple(text.split("*")))


def parse_command_pattern(text: str) -> CommandPattern | None:
    """Return *text* as a pattern of words with one space between two, or None where it is none."""
    if len(text) > MAX_PATTERN:
        return None
    globs = [parse_glob(word) for word in text.split(" ")]
    words = tuple(glob for glob in globs if glob is not None)
    return CommandPattern(text, words) if len(words) == len(globs) else None


def words_of(line: str) -> tuple[str, ...] | None:
    """Return the words of a command line, or None where no pattern can match it: too long, or not text.

    Spaces between and around words do not count, as for the kernel.
    """
    if len(line) > MAX_LINE or not line.isprintable():
        return None
    return tuple(line.split())
