"""The clock of a server, carried on by ticks of ours."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.store.remote_clock import DRIFT, RemoteClock

AT = datetime(2026, 11, 21, 3, 42, 0, 1, tzinfo=UTC)


class Ticks:
    """Microseconds that a test lets pass."""

    def __init__(self) -> None:
        self.micros = 7_000_000

    def __call__(self) -> int:
        """Return them."""
        return self.micros


def ask(clock: RemoteClock, ticks: Ticks, said: datetime, *, there: int = 100, back: int = 100) -> None:
    """Let *clock* ask one that says *said*, *there* and *back* microseconds of travel from it."""
    asked = clock.asking()
    ticks.micros += there + back
    clock.hear(said, asked)


@given(
    ahead=st.integers(-(10**9), 10**9),
    trips=st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**7)), min_size=1, max_size=8
    ),
)
def test_a_remote_clock_is_right_to_half_of_the_quickest_trip(
    ahead: int, trips: list[tuple[int, int, int]]
) -> None:
    """However the trips were delayed and whatever the host's own clock says."""
    ticks = Ticks()
    clock = RemoteClock(ticks)
    for there, back, pause in trips:
        ask(clock, ticks, AT + timedelta(microseconds=ahead + ticks.micros + there), there=there, back=back)
        ticks.micros += pause
    truth = AT + timedelta(microseconds=ahead + ticks.micros)
    quickest = min(there + back for there, back, _ in trips)
    drifted = 2 * DRIFT * (ticks.micros - 7_000_000)
    assert abs(clock.now() - truth) <= timedelta(microseconds=quickest / 2 + drifted + 2)


@pytest.mark.parametrize("minutes", [-5, 5])
def test_where_the_other_clock_is_set_its_next_word_counts(minutes: int) -> None:
    """Also where that word travelled slower than the one before: a step is no delay."""
    ticks = Ticks()
    clock = RemoteClock(ticks)
    ask(clock, ticks, AT, there=1, back=1)
    stepped = AT + timedelta(minutes=minutes)
    ask(clock, ticks, stepped, there=5_000, back=5_000)
    assert clock.now() == stepped + timedelta(microseconds=5_000)
