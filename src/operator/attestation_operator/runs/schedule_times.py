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

SHORTEST: Final = timedelta(minutes=1)
"""Between two times of a schedule. A cron expression cannot say less."""
MAX_EXPRESSION: Final = 256
"""Longest cron expression, in characters."""

_DURATION: Final = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:h|ms|m|s))+")
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(h|ms|m|s)")
_SECONDS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_STEP_IN_ONE: Final = re.compile(r"(?:^|[\s,])(\w+)-\1/", re.IGNORECASE)
_MOST_SECONDS: Final = 366 * 86_400


class TimesInvalid(Exception):
    """No times follow from what a schedule says; the text says why."""


def duration(text: str) -> timedelta:
    """Return a duration as Go writes it: `90s`, `1h30m`; at most a year.

    Raises:
        TimesInvalid: It is none.
    """
    if len(text) > 64 or not _DURATION.fullmatch(text):
        raise TimesInvalid(f"{text[:64]!r} is no duration like 90s, 15m or 1h30m")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
    if seconds > _MOST_SECONDS:
        raise TimesInvalid(f"{text!r} is longer than a year")
    return timedelta(seconds=seconds)


class Times(Protocol):
    """Instants, ascending, without an end."""

    def last(self, at: datetime) -> datetime | None:
        """Return the last one at or before *at*, None where there is none."""
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
        # Backwards, the library begins below what it is given.
        return next(CronSim(self.expression, _whole(at) + timedelta(seconds=1), reverse=True), None)

    def next(self, at: datetime) -> datetime | None:
        """Return the first one after *at*."""
        return next(CronSim(self.expression, _whole(at)), None)


def read_times(*, schedule: str | None, every: str | None, begin: datetime) -> Times:
    """Return the times of a schedule.

    Args:
        schedule: A cron expression, or None.
        every: A duration, or None; one of both.
        begin: When it was made.

    Raises:
        TimesInvalid: Not one of both is there, or it cannot be read, or it never comes.
    """
    if (schedule is None) == (every is None):
        raise TimesInvalid("either schedule or every, and not both")
    if every is not None:
        step = timedelta(seconds=duration(every) // timedelta(seconds=1))
        if step < SHORTEST:
            raise TimesInvalid(f"every: {every} is shorter than a minute")
        return Every(_whole(begin), step)
    assert schedule is not None
    # The library would take six fields, the first for seconds; and it goes on to the end behind a range of one.
    if len(schedule) > MAX_EXPRESSION or len(schedule.split()) != 5:
        raise TimesInvalid("schedule: five fields: minute, hour, day of month, month, day of week")
    if _STEP_IN_ONE.search(schedule):
        raise TimesInvalid("schedule: a step in a range of one value")
    try:
        found = Cron(schedule)
        if found.next(begin) is None:
            raise TimesInvalid("schedule: it never comes")
    except (CronSimError, ValueError) as e:
        raise TimesInvalid(f"schedule: {e}") from None
    return found


def lately(times: Times, at: datetime, spread: timedelta) -> list[datetime]:
    """Return the times at or before *at*, newest first, back to the newest that is at least *spread* old."""
    return list(_lately(times, at, spread))


def _lately(times: Times, at: datetime, spread: timedelta) -> Iterator[datetime]:
    last = times.last(at)
    while last is not None:
        yield last
        if last <= at - spread:
            return
        last = times.last(last - timedelta(seconds=1))


def _whole(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(microsecond=0)
