"""Patterns of command lines and paths: `*` inside a word, and nothing else."""

from __future__ import annotations

import fnmatch
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.reference.patterns import (
    MAX_LINE,
    MAX_PATTERN,
    MAX_STARS,
    parse_command_pattern,
    parse_glob,
    words_of,
)


@pytest.mark.threat("T68")
@pytest.mark.parametrize(
    ("pattern", "line", "holds"),
    [
        ("root=UUID=* ro quiet", "root=UUID=6e1f ro quiet", True),
        ("root=UUID=* ro quiet", "root=UUID= ro quiet", True),
        ("root=UUID=* ro quiet", " root=UUID=6e1f   ro quiet ", True),
        ("root=UUID=* ro quiet", "root=UUID=6e1f ro quiet init=/bin/sh", False),
        ("root=UUID=* ro quiet", "root=UUID=6e1f init=/bin/sh ro quiet", False),
        ("root=UUID=* ro quiet", "root=UUID=6e1f ro", False),
        ("root=UUID=* ro quiet", "ro root=UUID=6e1f quiet", False),
        ("root=UUID=* ro quiet", "root=UUID=6e1f\tro quiet", False),
        ("root=UUID=* ro quiet", "root=UUID=6e1f\u00a0init=/bin/sh ro quiet", False),
        ("*", "init=/bin/sh", True),
        ("*", "a b", False),
        ("*", "", False),
        ("a*b*c", "abc", True),
        ("a*b*c", "aXbXbXc", True),
        ("a*b*c", "aXcXb", False),
        ("a*a", "a", False),
        ("*b", "ab", True),
        ("*b", "ba", False),
        ("a.c", "abc", False),
        ("[a]", "a", False),
        ("a?", "ab", False),
    ],
)
def test_patterns(pattern: str, line: str, holds: bool) -> None:
    """Word by word; a star never reaches over a word; other characters mean themselves."""
    parsed = parse_command_pattern(pattern)
    assert parsed is not None
    words = words_of(line)
    assert (words is not None and parsed.matches(words)) is holds


@pytest.mark.parametrize("text", ["", " ", " a", "a ", "a  b", "a\n", "a\0b", "é\u2028", "x" * 2049, "*" * 9])
def test_what_is_no_pattern(text: str) -> None:
    """It would match nothing, or run away."""
    assert parse_command_pattern(text) is None


def test_lines_that_match_nothing() -> None:
    """Too long, or with characters that are no text."""
    assert words_of("x" * (MAX_LINE + 1)) is None
    assert words_of("a\0b") is None
    assert words_of("a\nb") is None
    assert words_of("x" * MAX_LINE) is not None


@given(st.text("ab*", min_size=1, max_size=8), st.text("abc", max_size=12))
def test_a_word_matches_as_a_shell_would(pattern: str, word: str) -> None:
    """The same as `fnmatch` where there is nothing but stars and letters."""
    glob = parse_glob(pattern)
    assert glob is not None
    assert glob.matches(word) == bool(re.fullmatch(fnmatch.translate(pattern), word))


@pytest.mark.threat("T68")
@pytest.mark.timeout(240)
def test_no_pattern_runs_away() -> None:
    """The worst pattern over the longest line is milliseconds of this thread's own time."""
    star = parse_glob("*".join(["a" * 200] * MAX_STARS) + "*b")
    assert star is None or len(star.text) <= MAX_PATTERN
    worst = parse_glob("*" + "*".join(["ab"] * (MAX_STARS - 2)) + "*c")
    assert worst is not None
    began = time.thread_time()
    assert not worst.matches("ab" * (MAX_LINE // 2) + "d")
    assert time.thread_time() - began < 0.2
