"""Look-ups: who asks and is gone before it begins keeps no other from asking."""

from __future__ import annotations

import asyncio
import threading

import pytest

from attestation.errors import QueriesBusy
from attestation.store import Found, LookUp
from attestation.store.lookups import LookUps

WANTED = LookUp(
    sql="",
    parameters={},
    columns=0,
    reads=frozenset(),
    functions=frozenset(),
    rows=1,
    size_bytes=1,
    seconds=1.0,
)


class _Looker:
    """Finds nothing, after *goes_on* is set."""

    def __init__(self) -> None:
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def look_up(self, wanted: LookUp) -> Found:
        self.begun.set()
        self.goes_on.wait()
        return Found(rows=(), is_cut=False)

    def close(self) -> None:
        """There is nothing to close."""


def test_a_look_up_that_is_given_up_before_it_begins_frees_its_place() -> None:
    """Its thread ends something else still; then the place would be taken until the process ends."""
    asyncio.run(_given_up_before())


async def _given_up_before() -> None:
    looker = _Looker()
    lookups, ends = LookUps([looker]), threading.Event()
    lookups._threads.submit(ends.wait)
    asked = asyncio.create_task(lookups.ask(WANTED))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    ends.set()
    looker.goes_on.set()
    assert await lookups.ask(WANTED) == Found(rows=(), is_cut=False)
    lookups.close()


def test_a_look_up_that_is_given_up_while_it_runs_takes_its_place_until_it_ends() -> None:
    """The connection is still used: nobody else is given it."""
    asyncio.run(_given_up_meanwhile())


async def _given_up_meanwhile() -> None:
    looker = _Looker()
    lookups = LookUps([looker])
    asked = asyncio.create_task(lookups.ask(WANTED))
    await asyncio.to_thread(looker.begun.wait)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    with pytest.raises(QueriesBusy):
        await lookups.ask(WANTED)
    looker.goes_on.set()
    await asyncio.to_thread(lookups.close)
