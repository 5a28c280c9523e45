"""What one process does for all that share the database."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from attestation.errors import StoreUnavailable
from attestation.store import Store, open_store
from attestation_service.storage.chores import LENGTH, MAINTENANCE, Chores
from tests.unit.service.conftest import HeldClock

pytestmark = pytest.mark.anyio

LONG = LENGTH.total_seconds()


class World:
    """Two processes on one database, and the time of both."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = HeldClock()
        self.ticks = {"one": 0, "other": 0}
        self.one, self.other = (
            Chores(store, self.clock, lambda name=name: self.ticks[name])  # type: ignore[misc]
            for name in self.ticks
        )

    def pass_(self, seconds: float) -> None:
        """Let time pass for all."""
        self.clock.advance(seconds)
        for name in self.ticks:
            self.ticks[name] += round(seconds * 1_000_000)

    @property
    def holders(self) -> tuple[bool, bool]:
        """Who of the two holds the chore, as each of them believes."""
        return self.one.holds(MAINTENANCE), self.other.holds(MAINTENANCE)


@pytest.fixture
def world(empty_store: Store) -> World:
    """Two processes, of which the first has the chores."""
    return World(empty_store)


async def test_one_holds_it_and_keeps_it_by_looking(world: World) -> None:
    """However often the other one looks."""
    for _ in range(5):
        await world.one.look()
        await world.other.look()
        assert world.holders == (True, False)
        world.pass_(LONG / 3)


async def test_who_was_stopped_holds_it_no_more_when_it_wakes(world: World) -> None:
    """By its own clock, before it has asked anybody; the other one has it then, and keeps it."""
    await world.one.look()
    world.pass_(LONG)
    assert world.holders == (False, False)
    await world.other.look()
    await world.one.look()
    assert world.holders == (False, True)


async def test_a_clock_that_is_set_back_keeps_no_chore_for_the_dead(world: World) -> None:
    """It would be theirs until the clock is there again; who lives keeps it."""
    await world.one.look()
    world.clock.advance(-3600)
    await world.one.look()
    await world.other.look()
    assert world.holders == (True, False)
    world.clock.advance(-3600)
    await world.other.look()
    assert world.holders[1]


async def test_what_is_given_up_is_anybody_s_at_once(world: World) -> None:
    """As at a stop. Who has none gives up nothing."""
    await world.one.look()
    await world.other.give_up()
    await world.other.look()
    assert world.holders == (True, False)
    await world.one.give_up()
    await world.other.look()
    assert world.holders == (False, True)


async def test_without_the_database_it_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else could be known to have it."""
    await world.one.look()

    async def away(_: object) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(world.store, "write", away)
    world.pass_(LONG / 3)
    with pytest.raises(StoreUnavailable):
        await world.one.look()
    assert world.holders == (True, False)
    world.pass_(LONG * 2 / 3)
    assert world.holders == (False, False)
    await world.one.give_up()


async def test_who_takes_over_is_told_at_once(world: World) -> None:
    """And does not wait for its pause. At a first start nobody fell silent, and nothing hurries."""
    await world.other.look()
    await world.other.wait(MAINTENANCE, 0)
    waits = asyncio.create_task(world.one.wait(MAINTENANCE, 3600))
    await asyncio.sleep(0)
    world.pass_(LONG)
    await world.one.look()
    async with asyncio.timeout(60):
        await waits


@pytest.fixture
def empty_store(tmp_path: Path, migrated: Path) -> Iterator[Store]:
    """An open store."""
    path = tmp_path / "chores.db"
    path.write_bytes(migrated.read_bytes())
    opened = open_store(f"sqlite:///{path}")
    yield opened
    opened.close()
