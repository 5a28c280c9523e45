"""Bars: on a terminal only, never in the way, never more than there is."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from attestation_cli.progress import Progress


class Terminal(io.StringIO):
    """A stderr that is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    terminal = Terminal()
    # The module's own name: pytest puts its own stderr into `sys` between fixture and test.
    monkeypatch.setattr("attestation_cli.progress.sys", SimpleNamespace(stderr=terminal))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return terminal


class Clock:
    """Monotonic seconds that pass when told."""

    seconds = 0.0

    def __call__(self) -> float:
        """Return them."""
        return self.seconds


def last(terminal: Terminal) -> str:
    return terminal.getvalue().split("\r\x1b[K")[-1]


def test_a_bar_grows_and_is_gone_at_the_end(stderr: Terminal) -> None:
    """Part, count, and how long it will take; the line is empty afterwards."""
    clock = Clock()
    with Progress("verifying", total=1000, now=clock) as bar:
        assert "0%" in stderr.getvalue()
        clock.seconds = 10
        bar.advance(250)
        assert last(stderr) == "verifying  ██████░░░░░░░░░░░░░░░░░░   25%  250 of 1,000 entries  30 s left"
        clock.seconds = 40
        bar.advance(750)
        assert "100%" in last(stderr)
        assert "left" not in last(stderr)
    assert last(stderr) == ""


def test_it_is_drawn_ten_times_a_second_at_most(stderr: Terminal) -> None:
    """A million steps must not become a million lines."""
    clock = Clock()
    with Progress("verifying", total=100_000, now=clock) as bar:
        for _ in range(10_000):
            clock.seconds += 0.001
            bar.advance()
    assert stderr.getvalue().count("\r") <= 10 / 0.1 + 2


def test_without_a_total_it_counts(stderr: Terminal) -> None:
    """Nobody knows the end: how many, how fast."""
    clock = Clock()
    with Progress("reading", unit="lines", now=clock) as bar:
        clock.seconds = 2
        bar.advance(500)
        assert last(stderr) == "reading  500 lines  250/s"


@pytest.mark.parametrize("columns", [1, 10, 30, 79, 200])
def test_it_fits_the_terminal(stderr: Terminal, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """A line that wraps could not be erased."""
    monkeypatch.setenv("COLUMNS", str(columns))
    clock = Clock()
    with Progress("a label of some length", total=10**9, now=clock) as bar:
        clock.seconds = 3
        bar.advance(10**6)
        assert len(last(stderr)) < max(columns, 2)


def test_more_than_the_total_is_all_of_it(stderr: Terminal) -> None:
    """A total that was wrong draws no bar beyond its end."""
    clock = Clock()
    with Progress("x", total=10, now=clock) as bar:
        clock.seconds = 1
        bar.advance(25)
        assert "100%" in last(stderr)
        assert last(stderr).count("█") == 24


def test_it_is_silent_where_nobody_looks(stderr: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-o json`, a dumb terminal, a file."""
    clock = Clock()

    def use(*, silent: bool = False) -> None:
        with Progress("x", total=10, now=clock, silent=silent) as bar:
            clock.seconds += 1
            bar.advance(5)

    use(silent=True)
    monkeypatch.setenv("TERM", "dumb")
    use()
    assert stderr.getvalue() == ""
    plain = io.StringIO()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("attestation_cli.progress.sys", SimpleNamespace(stderr=plain))
    use()
    assert plain.getvalue() == ""


def test_what_fails_leaves_no_bar_behind(stderr: Terminal) -> None:
    """The error's text begins on an empty line."""
    with pytest.raises(RuntimeError), Progress("x", total=10):
        raise RuntimeError
    assert last(stderr) == ""
