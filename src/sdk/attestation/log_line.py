"""Log events as lines for people at a terminal; elsewhere logs are JSON.

Many texts in a log are a stranger's: a serial number, the path of a request. Nothing of them may steer the terminal
or look like another event.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from datetime import datetime
from typing import Any, Final, Literal, TextIO, cast

from attestation.text import clean

LogFormat = Literal["auto", "text", "json"]
FORMATS: Final[tuple[LogFormat, ...]] = ("auto", "text", "json")

_EVENT_WIDTH: Final = 30
_PLAIN: Final = re.compile(r"[!-~]+")
_COLOURS: Final = {"debug": "2", "warning": "33", "error": "31", "critical": "31"}
"""Parameters of SGR (ECMA-48 §8.3.117) by level."""


def is_for_people(chosen: LogFormat, stream: TextIO | None) -> bool:
    """True where log lines to *stream* are to be text: as chosen; by itself, where it is a terminal."""
    return chosen == "text" or (chosen == "auto" and stream is not None and stream.isatty())


def is_coloured(stream: TextIO | None) -> bool:
    """True where colours help: on a terminal that is not dumb, unless NO_COLOR says no (no-color.org)."""
    told = os.environ
    return stream is not None and stream.isatty() and not told.get("NO_COLOR") and told.get("TERM") != "dumb"


class _StandardError:
    """Standard error as it is when something is written, not as it was when logging was configured.

    What cannot be written is lost: a full disk, or a reader who has gone, stops nothing but the log.
    No file of `io`: Python would close, and so flush, it when it ends, and standard error is gone by then.
    """

    def write(self, text: str) -> int:
        """Write *text*, if that can be."""
        with contextlib.suppress(OSError):
            return sys.stderr.write(text)
        return 0

    def flush(self) -> None:
        """Write what is held, if that can be."""
        with contextlib.suppress(OSError):
            sys.stderr.flush()


def standard_error() -> TextIO:
    """Return standard error for a log: see `_StandardError`. It can write and flush, which is all that logging asks."""
    return cast("TextIO", _StandardError())


def log_line(event: Mapping[str, Any], *, colour: bool) -> str:
    """Return *event* as a line: time (UTC), level, what happened, its members; a traceback below it, indented.

    Args:
        event: With `event`; `at` (RFC 3339), `level` and `exception` where it has them.
        colour: Paint the level of what is not ordinary.
    """
    rest = dict(event)
    at, level = str(rest.pop("at", "")), clean(str(rest.pop("level", "")))
    what, trace = clean(str(rest.pop("event", ""))), rest.pop("exception", None)
    painted = f"\x1b[{_COLOURS[level]}m{level:<8}\x1b[0m" if colour and level in _COLOURS else f"{level:<8}"
    members = [f"{clean(str(name))}={_value(value)}" for name, value in rest.items() if value is not None]
    first = " ".join([_time(at), painted, f"{what:<{_EVENT_WIDTH}}" if members else what, *members])
    return "\n".join([first.rstrip(), *_indented(trace)])


class Lines:
    """The last processor of structlog where people read: `log_line`."""

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour

    def __call__(self, _logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
        """Return *event* as text."""
        return log_line(event, colour=self._colour)


def _time(at: str) -> str:
    try:
        return f"{datetime.fromisoformat(at):%H:%M:%SZ}"
    except ValueError:
        return clean(at)


def _value(value: object) -> str:
    """Return a value: a word as it is, everything else as JSON, in which each control character is escaped."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and not value.startswith('"'):
        return value
    return clean(json.dumps(value, ensure_ascii=False, default=str))


def _indented(trace: object) -> Iterator[str]:
    if trace is not None:
        yield from (f"    {clean(line)}" for line in str(trace).splitlines())
