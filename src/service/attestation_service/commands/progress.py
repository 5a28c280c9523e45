"""How far long work has come, on standard error: a bar on a terminal, else a line for each table that is done."""

from __future__ import annotations

import os
import shutil
import sys
import time
from types import TracebackType
from typing import Final, Self

REDRAW_SECONDS: Final = 0.1
BAR_CELLS: Final = 24
_CLEAR_LINE: Final = "\r\x1b[K"


class Progress:
    """Use as a context manager.

    Args:
        verb: What is being done.
        totals: How many rows each table has.
    """

    def __init__(self, verb: str, totals: dict[str, int]) -> None:
        self._verb, self._totals = verb, totals
        self._total, self._done = sum(totals.values()), 0
        self._of: dict[str, int] = dict.fromkeys(totals, 0)
        self._bar = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._drawn = 0.0

    def advance(self, table: str, rows: int) -> None:
        """Note that *rows* more of *table* are done; cheap, it draws ten times a second at most."""
        self._done += rows
        self._of[table] += rows
        if not self._bar:
            if rows and self._of[table] >= self._totals[table]:
                self._write(f"{self._verb} {table}: {self._of[table]:,} rows\n")
        elif (at := time.monotonic()) - self._drawn >= REDRAW_SECONDS:
            self._drawn = at
            self._write(_CLEAR_LINE + self._line(table))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._write(_CLEAR_LINE)

    def _line(self, table: str) -> str:
        part = min(self._done / self._total, 1.0) if self._total else 1.0
        full = int(part * BAR_CELLS)
        bar = f"{'█' * full}{'░' * (BAR_CELLS - full)}"
        text = f"{self._verb} {bar} {part:4.0%} {self._done:,} of {self._total:,} rows, {table}"
        text = text[: shutil.get_terminal_size().columns - 1]
        return text.encode(sys.stderr.encoding, "replace").decode(sys.stderr.encoding)

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
