"""What the kiosk says and asks: lines of at most 80 columns, so that a serial console shows them as a screen does."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable
from types import MappingProxyType
from typing import Final, TextIO

from attestation.text import clean

COLUMNS: Final = 79
BAR: Final = 30
PROGRESS_SECONDS: Final = 1.0
MAX_ANSWER: Final = 4096
MAX_SAID: Final = 4096
_SENTENCES: Final = MappingProxyType(
    {
        "activated": "Registered as {machine_id}: {status}",
        "waits.for_approval": "Waits for an operator, who compares the code. It asks every half minute.",
        "service_keys.pinned": "Keys of the service, believed by {by}: SHA-256 {sha256}",
    }
)
"""Events of the agent that each machine meets, as a person reads them; all others are looked up by their names."""


class Screen:
    """A console.

    Args:
        out: Where lines go.
        into: Where answers come from.
        attended: Somebody may be there: `into` is a terminal.
        monotonic: Tells the time, for how often progress is shown.
    """

    def __init__(
        self,
        out: TextIO | None = None,
        into: TextIO | None = None,
        *,
        attended: bool | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out, self._in = out or sys.stdout, into or sys.stdin
        self.attended = self._in.isatty() if attended is None else attended
        self._monotonic = monotonic
        self._shown: tuple[str, float] | None = None
        self._bar = False
        self._told = ""

    def say(self, text: str = "", *, indent: str = "  ") -> None:
        """Write *text*, wrapped; nothing in it is obeyed by the terminal, or begins a line of its own.

        Args:
            text: What.
            indent: Before its second line and later ones.
        """
        self._end_bar()
        self._told = ""
        wrapped = textwrap.wrap(clean(text)[:MAX_SAID], COLUMNS, subsequent_indent=indent)
        self._print("\n".join(wrapped))

    def ask(self, question: str) -> str | None:
        """Return the answer to *question*, None where nobody is there or the terminal has gone."""
        if not self.attended:
            return None
        self.say(question)
        if not self._print("> ", end=""):
            return None  # an answer to what nobody could read is none
        try:
            line = self._in.readline(MAX_ANSWER)
        except OSError:
            return None
        return line.strip() if line else None

    def progress(self, step: str, done_bytes: int, all_bytes: int | None) -> None:
        """Show how far *step* is, once a second at most; on one line where somebody looks."""
        now, finished = self._monotonic(), done_bytes == all_bytes
        if (
            self._shown
            and self._shown[0] == step
            and now < self._shown[1] + PROGRESS_SECONDS
            and not finished
        ):
            return
        self._shown = (step, now)
        size = f"{done_bytes / 1e6:.0f} MB"
        if all_bytes:
            filled = done_bytes * BAR // all_bytes
            size = f"[{'#' * filled}{'.' * (BAR - filled)}] {done_bytes * 100 // all_bytes:3d} %  {size}"
        end = "\r" if self.attended else "\n"
        self._print(f"{step:<9}{size}".ljust(COLUMNS if self.attended else 0), end=end)
        self._bar = self.attended

    # A log, as the agent wants it (`edge.Log`): on the same console, because there is no other place.

    def info(self, event: str, **fields: object) -> None:
        """Say what went as it should."""
        self._log("", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Say what somebody should look at."""
        self._log("WARNING: ", event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Say what failed."""
        self._log("ERROR: ", event, fields)

    def _log(self, level: str, event: str, fields: dict[str, object]) -> None:
        known = {name: value for name, value in fields.items() if value is not None}
        told = _SENTENCES.get(event, "").format_map(known) or " ".join(
            [event, *(f"{name}={value}" for name, value in known.items())]
        )
        # What is said again and again must not push away the code that people compare.
        if level or told != self._told:
            self.say(f"{level}{told}")
        self._told = told

    def _end_bar(self) -> None:
        if self._bar:
            self._print()
            self._bar = False

    def _print(self, text: str = "", end: str = "\n") -> bool:
        """Write *text*, and return True; a console that is gone is no reason to leave a disk half written."""
        try:
            print(text, end=end, file=self._out, flush=True)
        except OSError:
            return False
        return True
