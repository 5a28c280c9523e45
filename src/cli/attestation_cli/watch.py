"""`attestation machine watch`: what changes, as it happens.

On a terminal a table is redrawn in place, and what was on the screen before is there again afterwards. Anywhere else
each change is a line, so that `grep` and `jq` can read along.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from attestation.client.errors import ServiceUnreachable
from attestation.client.text import clean, short_ids
from attestation.errors import RateLimited, Unavailable
from attestation_cli.machine_rows import LISTED, listed_row
from attestation_cli.render import instant, shorten, table

if TYPE_CHECKING:
    from attestation.client import Record
    from attestation_cli.session import Session

FOLLOWED = (
    *("status", "trust", "role", "hostname", "assigned_ip", "assurance", "wipe_pending", "wiped_at"),
    "configuration_not_delivered",
)
"""Members whose change is told."""
_ENTER = "\x1b[?1049h\x1b[?25l"
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME = "\x1b[H"
_CLEAR_REST_OF_LINE = "\x1b[K"
_CLEAR_BELOW = "\x1b[J"
_STEP_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to one machine between two looks.

    Args:
        event: `added`, `changed` or `removed`.
        machine_id: Which.
        name: What operators call it, clean.
        members: Name -> (before, after), for what changed; None where there was or is nothing.
    """

    event: str
    machine_id: str
    name: str
    members: Mapping[str, tuple[Any, Any]]


def changes(before: Mapping[str, Record], after: Mapping[str, Record]) -> Iterator[Change]:
    """Yield what changed between two looks, in the order of the newer one, removed machines last."""
    for machine_id, machine in after.items():
        known = before.get(machine_id)
        if known is None:
            members = {name: (None, machine.get(name)) for name in FOLLOWED if machine.get(name)}
            yield Change("added", machine_id, _name(machine), members)
            continue
        changed = {
            name: (known.get(name), machine.get(name))
            for name in FOLLOWED
            if known.get(name) != machine.get(name)
        }
        if changed:
            yield Change("changed", machine_id, _name(machine), changed)
    for machine_id, machine in before.items():
        if machine_id not in after:
            yield Change("removed", machine_id, _name(machine), {})


class Watch:
    """Looks again and again.

    Args:
        session: How to print.
        look: Returns the machines.
        seconds: Between two looks.
        sleep: How to pause.
    """

    def __init__(
        self,
        session: Session,
        look: Callable[[], Sequence[Record]],
        seconds: float,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._session, self._look, self._seconds, self._sleep = session, look, seconds, sleep
        self._known: dict[str, Record] = {}
        self._looked_at = datetime.now(UTC)
        self._trouble: str | None = None
        self._interrupted = False

    def run(self) -> None:
        """Follow until Ctrl-C, which is how one stops looking, so it is no failure.

        Raises:
            AttestationError: The first look failed, or a later one in a way that waiting does not cure.
        """
        # Before the screen is taken: who may not look is told so, as by every command.
        self._observe()
        before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            if sys.stdout.isatty() and not self._session.json:
                self._live()
            else:
                self._lines()
        except KeyboardInterrupt:
            return
        finally:
            signal.signal(signal.SIGINT, before)

    def _interrupt(self, _number: int, _frame: object) -> None:
        # Remembered too: an exception that arises while the collector runs a finaliser is lost.
        self._interrupted = True
        raise KeyboardInterrupt

    def _pause(self, seconds: float) -> None:
        if self._interrupted:
            raise KeyboardInterrupt
        self._sleep(seconds)

    def _observe(self) -> list[Change]:
        machines = {machine.text("machine_id"): machine for machine in self._look()}
        found = list(changes(self._known, machines))
        self._known, self._looked_at, self._trouble = machines, datetime.now(UTC), None
        return found

    def _again(self) -> list[Change]:
        try:
            return self._observe()
        except (ServiceUnreachable, RateLimited, Unavailable) as e:
            if self._trouble is None:
                self._trouble = clean(str(e))
                if not sys.stdout.isatty() or self._session.json:
                    self._session.note(f"waiting: {self._trouble}")
            return []

    # Lines

    def _lines(self) -> None:
        found = list(changes({}, self._known))
        while True:
            for change in found:
                self._session.emit(self._line(change))
            sys.stdout.flush()
            self._pause(self._seconds)
            found = self._again()

    def _line(self, change: Change) -> str:
        if self._session.json:
            return json.dumps(
                {
                    "at": instant(self._looked_at),
                    "event": change.event,
                    "machine_id": change.machine_id,
                    "changes": {name: list(pair) for name, pair in change.members.items()},
                },
                ensure_ascii=True,
            )
        told = [
            f"{name} {_word(after)}"
            if change.event == "added"
            else f"{name} {_word(before)} → {_word(after)}"
            for name, (before, after) in change.members.items()
        ]
        return f"{instant(self._looked_at)}  {change.event:<7}  {change.name}  {', '.join(told)}".rstrip()

    # A live table

    def _live(self) -> None:
        try:
            self._write(_ENTER)
            while True:
                self._draw()
                self._wait()
                self._again()
        finally:
            self._write(_LEAVE)

    def _wait(self) -> None:
        """Wait until the next look; a terminal that changes its size is redrawn at once."""
        size, left = _size(), self._seconds
        while left > 0:
            step = min(left, _STEP_SECONDS)
            self._pause(step)
            left -= step
            if (now := _size()) != size:
                size = now
                self._draw()

    def _draw(self) -> None:
        size = _size()
        lines = self._screen(size.columns, size.lines)
        # Written over what was there, line by line: clearing first would flicker.
        self._write(_HOME + "\r\n".join(f"{line}{_CLEAR_REST_OF_LINE}" for line in lines) + _CLEAR_BELOW)

    def _screen(self, columns: int, rows: int) -> list[str]:
        now = datetime.now(UTC)
        machines = list(self._known.values())
        head = (
            f"{len(machines)} machines at {instant(self._looked_at)}, every {self._seconds:g} s, Ctrl-C ends"
        )
        if self._trouble is not None:
            head = f"waiting for the service since {instant(self._looked_at)}: {self._trouble}"
        room = max(rows - 3, 1)
        shown = machines[: room if len(machines) <= room else room - 1]
        ids = short_ids(m.text("machine_id") for m in machines)
        cells = [listed_row(m, ids[m.text("machine_id")], now) for m in shown]
        told = [
            i
            for i, c in enumerate(LISTED)
            if not c.wide and (not c.drop or any(row[i].text != "-" for row in cells))
        ]
        body = table(
            [LISTED[i] for i in told],
            [[row[i] for i in told] for row in cells],
            width=columns,
            colour=self._session.colour,
        )
        lines = [shorten(head, columns), "", *body]
        if len(shown) < len(machines):
            lines.append(shorten(f"… and {len(machines) - len(shown)} more; --status shows fewer", columns))
        return lines[:rows]

    @staticmethod
    def _write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _size() -> os.terminal_size:
    """Return the size that the terminal has now; COLUMNS and LINES of the environment do not follow a resize."""
    try:
        return os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        return shutil.get_terminal_size()


def _name(machine: Record) -> str:
    short = short_ids([machine.text("machine_id")])[machine.text("machine_id")]
    hostname = machine.optional_text("hostname")
    return f"{clean(hostname)} ({short})" if hostname else short


def _word(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return clean(str(value.get("why")))
    return {True: "yes", False: "no"}.get(value, "") if isinstance(value, bool) else clean(str(value))
