"""Units of work: all or none, each for itself, answered only once durable."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from datetime import timedelta
from typing import Any

import pytest

from attestation.errors import ChallengeUsed, StoreUnavailable
from attestation.store import MachineFilter, Store, StoreSettings, open_store
from tests.contract.store_samples import a_challenge, a_machine

ANY = MachineFilter()


def stored(store: Store) -> set[str]:
    """Return the ids of all machines."""
    return {m.machine_id for m in store.read_sync(lambda tx: tx.machines.page(ANY, None, 1000)).items}


@pytest.mark.threat("T27")
def test_a_unit_that_raises_stores_nothing(store: Store) -> None:
    """What a unit did before it raised is undone, and its caller gets its error."""

    def work(tx: Any) -> None:
        tx.machines.add(a_machine())
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        store.write_sync(work)
    assert stored(store) == set()


def test_a_unit_that_raises_behind_a_race_that_it_lost_ends_itself_alone(store: Store) -> None:
    """PostgreSQL has not said yet that the challenge was spent before: the writer goes on, and the race is told."""

    def work(tx: Any) -> None:
        tx.challenges.redeem(spent.challenge_id, spent.purpose, spent.machine_id, spent.issued_at)
        raise LookupError("mine")

    spent = a_challenge()
    store.write_sync(lambda tx: tx.machines.add(a_machine()))
    store.write_sync(lambda tx: tx.challenges.issue(spent))
    store.write_sync(
        lambda tx: tx.challenges.redeem(spent.challenge_id, spent.purpose, spent.machine_id, spent.issued_at)
    )
    for _ in range(2):
        with pytest.raises(ChallengeUsed):
            store.write_sync(work)
    store.write_sync(lambda tx: tx.machines.add(a_machine(2)))
    assert len(stored(store)) == 2


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_a_failing_unit_does_not_hurt_its_group(store: Store, error: type[BaseException]) -> None:
    """Units queued together: the failing ones fail alone, the writer goes on."""
    started, go = threading.Event(), threading.Event()

    async def main() -> list[Any]:
        def wait(tx: Any) -> None:
            started.set()
            assert go.wait(60)

        def work(number: int) -> Any:
            def unit(tx: Any) -> int:
                tx.machines.add(a_machine(number))
                if number % 2:
                    raise error(number)
                return number

            return unit

        async def caught(number: int) -> object:
            try:
                return await store.write(work(number))
            except error as e:
                return e

        first = asyncio.ensure_future(store.write(wait))
        await asyncio.to_thread(started.wait)
        rest = [asyncio.ensure_future(caught(number)) for number in range(1, 9)]
        await asyncio.sleep(0)
        go.set()
        await first
        return await asyncio.gather(*rest)

    answers = asyncio.run(main())
    assert [type(a) for a in answers] == [error, int] * 4
    assert not any(a.__context__ for a in answers[::2])  # another caller's error is none of theirs
    assert stored(store) == {a_machine(number).machine_id for number in (2, 4, 6, 8)}


def test_a_unit_sees_what_the_one_before_it_did(store: Store) -> None:
    """Units of one group run one after the other."""

    async def main() -> list[int]:
        def unit(number: int) -> Any:
            def work(tx: Any) -> int:
                tx.machines.add(a_machine(number))
                return int(tx.machines.pending().rows)

            return work

        return list(await asyncio.gather(*(store.write(unit(number)) for number in range(1, 21))))

    assert asyncio.run(main()) == list(range(1, 21))


def test_what_was_answered_can_be_read(store: Store) -> None:
    """After the answer every reader sees the unit."""

    async def main() -> None:
        for number in range(1, 30):
            await store.write(lambda tx, n=number: tx.machines.add(a_machine(n)))  # type: ignore[misc]
            for read in (store.read, store.scan):
                machine = await read(lambda tx, n=number: tx.machines.by_id(a_machine(n).machine_id))  # type: ignore[misc]
                assert machine is not None

    asyncio.run(main())


def test_a_read_cannot_write(store: Store) -> None:
    """A reader's connection refuses every change, and stays usable."""
    with pytest.raises(StoreUnavailable):
        store.read_sync(lambda tx: tx.machines.add(a_machine()))
    assert stored(store) == set()


def test_a_read_that_raises_tells_only_its_caller(store: Store) -> None:
    """The reader survives what a unit raises."""

    def fail(tx: Any) -> None:
        raise LookupError("mine")

    async def main() -> tuple[Any, ...]:
        return await asyncio.gather(
            store.read(fail), store.read(lambda tx: 1), store.scan(fail), return_exceptions=True
        )

    failed, value, scanned = asyncio.run(main())
    assert isinstance(failed, LookupError)
    assert value == 1
    assert isinstance(scanned, LookupError)


def test_a_unit_that_raises_stop_iteration_keeps_nobody_waiting(store: Store) -> None:
    """No future takes one: its caller gets another error, and those who are told after it their answers."""

    def fail(tx: Any) -> None:
        next(iter(()))

    async def main() -> list[Any]:
        asked = (ask(unit) for ask in (store.write, store.read) for unit in (fail, lambda tx: 1))
        async with asyncio.timeout(60):
            return await asyncio.gather(*asked, return_exceptions=True)

    assert [type(answer) for answer in asyncio.run(main())] == [RuntimeError, int] * 2


def test_a_read_is_one_snapshot(store: Store) -> None:
    """What is committed in the middle of a read does not show in it."""

    def work(tx: Any) -> tuple[int, int, int]:
        before = tx.machines.pending().rows
        again = tx.machines.pending().rows  # by now it has its snapshot: a unit may be run twice
        store.write_sync(lambda other: other.machines.add(a_machine()))
        return before, again, tx.machines.pending().rows

    assert store.read_sync(work) == (0, 0, 0)
    assert len(stored(store)) == 1


def test_a_slow_scan_delays_no_read(store: Store) -> None:
    """A list that takes long has a thread of its own."""
    go = threading.Event()

    async def main() -> None:
        slow = asyncio.ensure_future(store.scan(lambda tx: go.wait(60)))
        await asyncio.wait_for(store.read(lambda tx: None), 30)
        go.set()
        assert await slow

    asyncio.run(main())


def test_a_caller_that_went_away_changes_nothing(store: Store) -> None:
    """A cancelled caller's unit is done all the same, and the others get their answers."""

    async def main() -> None:
        gone = asyncio.ensure_future(store.write(lambda tx: tx.machines.add(a_machine(1))))
        stays = asyncio.ensure_future(store.write(lambda tx: tx.machines.add(a_machine(2))))
        await asyncio.sleep(0)
        gone.cancel()
        await stays

    asyncio.run(main())
    assert len(stored(store)) == 2


def test_closing_finishes_what_was_accepted(store_url: str) -> None:
    """Every accepted unit is answered and stored; later ones are refused."""
    store = open_store(store_url)

    async def main() -> None:
        accepted = [
            asyncio.ensure_future(store.write(lambda tx, n=n: tx.machines.add(a_machine(n))))  # type: ignore[misc]
            for n in range(1, 201)
        ]
        await asyncio.sleep(0)
        await store.aclose()
        await asyncio.gather(*accepted)
        for refused in (store.write, store.read, store.scan):
            with pytest.raises(StoreUnavailable):
                await refused(lambda tx: None)
        await store.aclose()

    asyncio.run(main())
    again = open_store(store_url)
    assert len(stored(again)) == 200
    again.close()


def test_a_full_queue_refuses_at_once(store_url: str) -> None:
    """Nobody waits without bound behind a database that does not keep up."""
    store = open_store(store_url, StoreSettings(queue_size=2))
    started, go = threading.Event(), threading.Event()

    def wait(tx: Any) -> None:
        started.set()
        assert go.wait(60)

    async def main() -> None:
        running = asyncio.ensure_future(store.write(wait))
        await asyncio.to_thread(started.wait)
        waiting = [asyncio.ensure_future(store.write(lambda tx: None)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(StoreUnavailable):
            await store.write(lambda tx: None)
        go.set()
        await asyncio.gather(running, *waiting)

    asyncio.run(main())
    store.close()


def test_a_unit_cannot_wait_for_another(store: Store) -> None:
    """What would wait for itself for ever is an error."""
    with pytest.raises(RuntimeError):
        store.write_sync(lambda tx: store.write_sync(lambda inner: None))


def test_units_of_many_threads_all_count(store: Store) -> None:
    """Any thread may write."""
    threads = [
        threading.Thread(target=lambda n=n: store.write_sync(lambda tx: tx.challenges.issue(a_challenge(n))))
        for n in range(1, 33)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = store.read_sync(lambda tx: [tx.challenges.get(f"{n:032x}") for n in range(1, 33)])
    assert None not in found


def test_the_clock_of_a_store_is_its_server_s(store: Store, store_url: str) -> None:
    """Of two stores of one database, and of the database itself: all tell the same time."""
    with contextlib.closing(open_store(store_url)) as other:
        before, there, after = store.clock.now(), other.clock.now(), store.clock.now()
    # Each is right to half a round trip, which a busy host may make long.
    assert before - timedelta(seconds=5) < there < after + timedelta(seconds=5)
