"""Bars for long work: on stderr, on a terminal, and nowhere else."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from attestation.client.text import clean
from attestation_cli.render import display_width, shorten

REDRAW_SECONDS = 0.1
BAR_CELLS = 24
_CLEAR_LINE = "\r\x1b[K"


class Progress:
    """How far some work has come; use as a context manager.

    Silent where stderr is no terminal, where `TERM=dumb`, and where *silent* says so: what is read by a program
    (`-o json`) stays free of it.

        with Progress("verifying", total=size, silent=session.json) as bar:
            for entry in entries:
                bar.advance()

    Args:
        label: What is being done, in a word or two.
        total: Units in all; None where nobody knows, and then a count is shown without a bar.
        unit: What is counted.
        silent: Show nothing.
        now: The clock, monotonic seconds.
    """

    def __init__(
        self,
        label: str,
        *,
        total: int | None = None,
        unit: str = "entries",
        silent: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label, self._total, self._unit, self._now = clean(label), total, unit, now
        self._shown = not silent and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._done = 0
        self._start = self._drawn = now()

    def advance(self, count: int = 1) -> None:
        """Note that *count* more units are done; cheap, it draws ten times a second at most."""
        self._done += count
        if self._shown and (at := self._now()) - self._drawn >= REDRAW_SECONDS:
            self._drawn = at
            self._write(_CLEAR_LINE + self._line(at))

    def __enter__(self) -> Self:
        if self._shown:
            self._write(self._line(self._start))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Nothing is left behind: what happened is told by the command's own words.
        if self._shown:
            self._write(_CLEAR_LINE)

    def _line(self, at: float) -> str:
        import shutil

        width = shutil.get_terminal_size().columns - 1
        seconds = max(at - self._start, 1e-3)
        rate = self._done / seconds
        if not self._total:
            return shorten(f"{self._label}  {self._done:,} {self._unit}  {rate:,.0f}/s", width)
        part = min(self._done / self._total, 1.0)
        left = (self._total - self._done) / rate if rate and self._done < self._total else 0.0
        tail = f"{part:4.0%}  {self._done:,} of {self._total:,} {self._unit}"
        if self._done and left >= 1:
            tail += f"  {_span(left)} left"
        room = width - display_width(self._label) - display_width(tail) - 4
        if room < 5:
            return shorten(f"{self._label} {tail}", width)
        cells = min(BAR_CELLS, room)
        full = int(part * cells)
        return f"{self._label}  {'█' * full}{'░' * (cells - full)}  {tail}"

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def _span(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole} s" if whole < 120 else f"{whole // 60} min"
