"""When a schedule is due: a cron expression of five fields, in UTC, or every so often since it was made.

Only whole seconds count. Both kinds answer the same two questions, and neither looks at a clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from cronsim import CronSim, CronSimError

MAX_EXPRESSION: Final = 256
"""Longest cron expression, in characters."""

_HIGHEST: Final = (59, 23, 31, 12, 7)
"""Of each field: a step that is longer never steps, and whoever wrote `*/1000` for minutes meant another time."""
_STEP: Final = re.compile(r"/([0-9]+)")
_STEP_IN_ONE: Final = re.compile(r"(?:^|[\s,])(\w+)-\1/", re.IGNORECASE)


class TimesInvalid(Exception):
    """No times follow from what a schedule says; the text says why."""


class Times(Protocol):
    """Instants, ascending, without an end."""

    def last(self, at: datetime) -> datetime | None:
        """Return the last one at or before *at*, None where there is none."""
        ...

    def back(self, at: datetime) -> Iterator[datetime]:
        """Yield those at or before *at*, the newest first."""
        ...

    def next(self, at: datetime) -> datetime | None:
        """Return the first one after *at*, None where there is none within fifty years."""
        ...


@dataclass(frozen=True, slots=True)
class Every:
    """At *begin*, and then after each *step*; both of whole seconds."""

    begin: datetime
    step: timedelta

    def last(self, at: datetime) -> datetime | None:
        """Return the last one at or before *at*, None before the first."""
        return None if at < self.begin else self.begin + (at - self.begin) // self.step * self.step

    def back(self, at: datetime) -> Iterator[datetime]:
        """Yield those at or before *at*, the newest first."""
        last = self.last(at)
        while last is not None:
            yield last
            last = self.last(last - timedelta(seconds=1))

    def next(self, at: datetime) -> datetime | None:
        """Return the first one after *at*."""
        last = self.last(at)
        return self.begin if last is None else last + self.step


@dataclass(frozen=True, slots=True)
class Cron:
    """As Debian's cron reads *expression*, in UTC: minute, hour, day of month, month, day of week."""

    expression: str

    def last(self, at: datetime) -> datetime | None:
        """Return the last one at or before *at*."""
        return next(self.back(at), None)

    def back(self, at: datetime) -> Iterator[datetime]:
        """Yield those at or before *at*, the newest first; the expression is read once for all of them."""
        # Backwards, the library begins below what it is given.
        return iter(CronSim(self.expression, _whole(at) + timedelta(seconds=1), reverse=True))

    def next(self, at: datetime) -> datetime | None:
        """Return the first one after *at*."""
        return next(CronSim(self.expression, _whole(at)), None)


def repeated(every: timedelta, *, begin: datetime) -> Every:
    """Return the times of `every`, in whole seconds: at *begin*, when the schedule was made, and then again."""
    return Every(_whole(begin), timedelta(seconds=every // timedelta(seconds=1)))


def cron(schedule: str, *, at: datetime) -> Cron:
    """Return the times of `schedule`.

    Args:
        schedule: A cron expression; a stranger's text.
        at: Any instant: after it one must come.

    Raises:
        TimesInvalid: It cannot be read, or it never comes.
    """
    # The library would take six fields, the first for seconds; it goes on to the end behind a range of one; and a step
    # may be of any length there.
    if len(schedule) > MAX_EXPRESSION or len(schedule.split()) != 5:
        raise TimesInvalid("five fields: minute, hour, day of month, month, day of week")
    if _STEP_IN_ONE.search(schedule):
        raise TimesInvalid("a step in a range of one value")
    for field, highest in zip(schedule.split(), _HIGHEST, strict=True):
        if any(int(step) > highest for step in _STEP.findall(field)):
            raise TimesInvalid(f"a step in {field!r} that is longer than {highest}")
    try:
        found = Cron(schedule)
        if found.next(at) is None:
            raise TimesInvalid("it never comes")
    except (CronSimError, ValueError) as e:
        raise TimesInvalid(str(e)) from None
    return found


def lately(times: Times, at: datetime, spread: timedelta) -> list[datetime]:
    """Return the times at or before *at*, ascending, from the newest that is at least *spread* old."""
    found: list[datetime] = []
    for each in times.back(at):
        found.append(each)
        if each <= at - spread:
            break
    return found[::-1]


def _whole(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(microsecond=0)
