"""When a schedule is due: a table, and what holds for all times."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from attestation_operator.runs import schedule_times
from attestation_operator.runs.schedule_times import (
    Cron,
    Times,
    TimesInvalid,
    cron,
    lately,
    repeated,
)

BEGIN = datetime(2026, 11, 23, 12, 0, 7, 250_000, tzinfo=UTC)
SECOND = timedelta(seconds=1)

INSTANTS = st.integers(-90_000_000, 170_000_000).map(lambda seconds: BEGIN + timedelta(seconds=seconds))


def _field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    span = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    wide = span.filter(lambda text: len(set(text.split("-"))) == 2)
    step = st.tuples(st.just("*") | wide, st.integers(1, high)).map(lambda pair: f"{pair[0]}/{pair[1]}")
    one = number.map(str) | span | step
    return st.just("*") | st.lists(one, min_size=1, max_size=3).map(",".join)


EXPRESSIONS = st.tuples(_field(0, 59), _field(0, 23), _field(1, 28), _field(1, 12), _field(0, 7)).map(
    " ".join
)


def read_times(*, schedule: str | None = None, every: int = 0) -> Times:
    """Return times from cron's five fields, or so many seconds apart."""
    if schedule is not None:
        return cron(schedule, at=BEGIN)
    return repeated(timedelta(seconds=every), begin=BEGIN)


TIMES = EXPRESSIONS.map(lambda text: read_times(schedule=text)) | st.integers(60, 400_000).map(
    lambda seconds: read_times(every=seconds)
)


@pytest.mark.parametrize(
    ("said", "at", "last", "following"),
    [
        ({"schedule": "0 3 * * *"}, "2026-11-26T02:59:59", "2026-11-25T03:00", "2026-11-26T03:00"),
        ({"schedule": "0 3 * * *"}, "2026-11-26T03:00:00", "2026-11-26T03:00", "2026-11-27T03:00"),
        ({"schedule": "*/15 * * * *"}, "2026-12-31T23:59:00", "2026-12-31T23:45", "2027-01-01T00:00"),
        ({"schedule": "0 0 29 2 *"}, "2026-11-26T00:00:00", "2024-02-29T00:00", "2028-02-29T00:00"),
        ({"schedule": "0 0 1 * mon"}, "2026-11-26T00:00:00", "2026-11-23T00:00", "2026-11-30T00:00"),
        ({"every": 21_600}, "2026-11-23T12:00:06", None, "2026-11-23T12:00:07"),
        ({"every": 21_600}, "2026-11-23T12:00:07", "2026-11-23T12:00:07", "2026-11-23T18:00:07"),
        ({"every": 5400}, "2026-11-23T15:00:06", "2026-11-23T13:30:07", "2026-11-23T15:00:07"),
    ],
)
def test_times_are_those_of_the_table(
    said: dict[str, Any], at: str, last: str | None, following: str
) -> None:
    """A cron expression is read as Debian's cron reads it, in UTC; `every` counts from when it was made."""
    times = read_times(**said)
    assert times.last(_utc(at)) == (None if last is None else _utc(last))
    assert times.next(_utc(at)) == _utc(following)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("* * * *", "five fields"),
        ("* * * * * *", "five fields"),
        ("@daily", "five fields"),
        ("60 * * * *", "minute"),
        ("0 0 30 2 *", "day-of-month"),
        ("0 0 31 2 1#5,2#5,x", "day"),
        ("0 0 * * " + "1," * 200 + "1", "five fields"),
        ("5-5/2 * * * *", "range of one"),
        ("*/1000 * * * *", "step"),
        ("0 3,4-9/24 * * *", "step"),
        (f"{'9' * 200} * * * *", "minute"),
    ],
)
def test_what_cannot_be_followed_is_refused(schedule: str, words: str) -> None:
    """With words that say what is wrong."""
    with pytest.raises(TimesInvalid, match=words):
        cron(schedule, at=BEGIN)


@given(st.text(max_size=40) | EXPRESSIONS.map(lambda text: text.replace("-", "#").replace("*", "L")))
def test_whatever_is_written_is_read_or_refused(text: str) -> None:
    """Somebody with a right on one namespace writes it: nothing but `TimesInvalid` may come of it."""
    with contextlib.suppress(TimesInvalid):
        assert cron(text, at=BEGIN).next(BEGIN) is not None


@given(TIMES, INSTANTS)
def test_last_and_next_are_neighbours(times: Times, at: datetime) -> None:
    """Nothing lies between them, and each is found from the other."""
    last, following = times.last(at), times.next(at)
    assert following is not None
    assert following > at
    assert times.next(following - SECOND) == following
    assert times.last(following) == following
    if last is not None:
        assert last <= at
        assert times.next(last) == following
        assert times.last(following - SECOND) == last


@given(EXPRESSIONS, INSTANTS)
def test_a_time_fits_its_expression(text: str, at: datetime) -> None:
    """Judged by a reader of one screen: each field apart, and the day by either where neither is a star."""
    found = read_times(schedule=text).next(at)
    assert found is not None
    minute, hour, day, month, weekday = text.split()
    assert found.second == found.microsecond == 0
    assert found.minute in _read(minute, 0, 59)
    assert found.hour in _read(hour, 0, 23)
    assert found.month in _read(month, 1, 12)
    by_day = found.day in _read(day, 1, 31)
    by_weekday = found.isoweekday() % 7 in {each % 7 for each in _read(weekday, 0, 7)}
    starred = day.startswith("*") or weekday.startswith("*")
    assert (by_day and by_weekday) if starred else (by_day or by_weekday)


@given(TIMES, INSTANTS, st.integers(0, 3600))
def test_lately_goes_back_as_far_as_jitter(times: Times, at: datetime, seconds: int) -> None:
    """Each node finds the time that it is at, however late in the spread it is."""
    found = lately(times, at, timedelta(seconds=seconds))
    assert found == sorted(found)
    for offset in (0, seconds // 2, seconds):
        then = at - timedelta(seconds=offset)
        assert max((time for time in found if time <= then), default=None) == times.last(then)


def test_an_expression_is_read_once_for_all_its_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's may be long and of each minute: read for each of a day's, a few schedules held up all else."""
    read: list[str] = []

    class Counted(CronSim):
        def __init__(self, expression: str, *args: Any, **kwargs: Any) -> None:
            read.append(expression)
            super().__init__(expression, *args, **kwargs)

    monkeypatch.setattr(schedule_times, "CronSim", Counted)
    at = datetime(2026, 11, 26, 12, tzinfo=UTC)
    assert len(lately(Cron("* * * * *"), at, timedelta(hours=24))) == 24 * 60 + 1
    assert len(read) == 1


def _read(text: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, end = span.partition("-")
        whole = range(low, high + 1) if span == "*" else range(int(first), int(end or first) + 1)
        found |= set(whole[:: int(step or 1)])
    return found


def _utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)
