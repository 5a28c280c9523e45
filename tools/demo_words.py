"""What the demo prints: what happens, and why it matters."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap

FACT_INDENT = 16


class Narrator:
    """Prints what happens, and why it matters."""

    def __init__(self) -> None:
        self._step = 0
        self._colour = (
            sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        )
        self._width = min(shutil.get_terminal_size((96, 24)).columns, 96)

    def _paint(self, text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self._colour else text

    def _lines(self, text: str, width: int) -> list[str]:
        """Break *text* for a terminal; elsewhere lines stay whole, to be searched."""
        return (textwrap.wrap(text, width, break_on_hyphens=False) if sys.stdout.isatty() else []) or [text]

    def say(self, text: str = "") -> None:
        """Print a line as it is."""
        print(text, flush=True)

    def step(self, title: str, why: str) -> None:
        """Open a step: what is done, and why."""
        self._step += 1
        self.say()
        self.say(self._paint(f"{self._step}. {title}", "1;36"))
        for line in textwrap.wrap(why, self._width - 3):
            self.say(f"   {self._paint(line, '2')}")

    def fact(self, who: str, what: str, *, good: bool = True) -> None:
        """Print what happened to somebody."""
        mark = self._paint("✓", "32") if good else self._paint("✗", "31")
        first, *rest = self._lines(what, self._width - FACT_INDENT)
        self.say(f"   {mark} {self._paint(f'{who:<10}', '1')} {first}")
        for line in rest:
            self.say(" " * FACT_INDENT + line)

    def warn(self, text: str) -> None:
        """Print a warning."""
        first, *rest = self._lines(text, self._width - 5)
        self.say(f"   {self._paint('!', '33')} {first}")
        for line in rest:
            self.say(f"     {line}")

    def item(self, number: int, text: str) -> None:
        """Print one of several things to do."""
        first, *rest = self._lines(text, self._width - 8)
        self.say(f"     {self._paint(f'{number}.', '1')} {first}")
        for line in rest:
            self.say(f"        {line}")

    def quote(self, text: str) -> None:
        """Print lines of a file."""
        for line in text.splitlines():
            room = self._width - 9
            shown = line if len(line) <= room or not sys.stdout.isatty() else line[: room - 1] + "…"
            self.say(f"       {self._paint('│ ' + shown, '2')}")
