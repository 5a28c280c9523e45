"""The work queue: each object once, no two tasks at one, later and later where something is away."""

# ruff: noqa: D102 -- they do what the names say
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import Conflict, Unavailable
from attestation_operator import work
from attestation_operator.errors import (
    ClusterForbidden,
    ClusterRefused,
    ClusterUnavailable,
    NotLeading,
    ObjectChanged,
)
from attestation_operator.metrics import Metrics
from attestation_operator.objects import CSR, RUN, Key, Raw
from attestation_operator.work import LONGEST_PAUSE_SECONDS, WorkQueue, pause_seconds
from tests.unit.operator.doubles import Log, seen

WAIT_SECONDS = 20
"""Bound of each wait; what is waited for comes at once."""


def key(name: str) -> Key:
    return Key(kind=CSR, name=name)


class World:
    """A queue, what it has handled, and an end."""

    def __init__(self, answers: list[Any] | None = None, workers: int = 4) -> None:
        self.handled: list[tuple[str, Raw | None]] = []
        self.answers = answers or []
        self.log, self.metrics = Log(), Metrics()
        self.enough = asyncio.Event()
        self.wanted = 0
        self.hook: Callable[[Key], Awaitable[None]] | None = None
        self.queue = WorkQueue(
            self.handle, metrics=self.metrics, log=self.log, workers=workers, spread=lambda: 1.0
        )

    async def handle(self, which: Key, shown: Raw | None) -> float | None:
        self.handled.append((which.name, shown))
        if self.hook is not None:
            await self.hook(which)
        answer = self.answers.pop(0) if self.answers else None
        if len(self.handled) >= self.wanted:
            self.enough.set()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def run(self, wanted: int) -> None:
        """Let it work until so many were handled, and until nothing is left that could be handled at once."""
        self.wanted = wanted
        running = asyncio.create_task(self.queue.run())
        async with asyncio.timeout(WAIT_SECONDS):
            await self.enough.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        self.later = dict(self.queue._later)
        self.left = len(self.queue)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


def outcomes(metrics: Metrics) -> dict[str, float]:
    return {
        sample.labels["outcome"]: sample.value
        for metric in metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "itl_operator_handled_total"
    }


def test_an_object_that_changes_often_is_looked_at_once() -> None:
    """The newest that was seen of it counts."""

    async def go() -> None:
        world = World()
        for number in range(5):
            world.queue.add(key("a"), seen("a", number))
        world.queue.add(key("b"))
        assert len(world.queue) == 2
        await world.run(2)
        assert world.handled == [("a", seen("a", 4)), ("b", None)]
        assert world.left == 0
        assert outcomes(world.metrics) == {"done": 2.0}

    asyncio.run(go())


def test_no_two_tasks_look_at_one_object() -> None:
    """What changes while it is looked at is looked at again afterwards, not beside."""

    async def go() -> None:
        world = World()
        inside = most = 0
        began = asyncio.Event()

        async def hook(which: Key) -> None:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            if not began.is_set():
                began.set()
                for number in range(3):
                    world.queue.add(key("a"), seen("a", number))
                for _ in range(10):
                    await asyncio.sleep(0)
            inside -= 1

        world.hook = hook
        world.queue.add(key("a"))
        await world.run(2)
        assert world.handled == [("a", None), ("a", seen("a", 2))]
        assert most == 1

    asyncio.run(go())


def test_namespaces_take_turns() -> None:
    """Thousands of objects in one of them delay those of the others by one each."""

    async def go() -> None:
        world = World(workers=1)
        many = [Key(kind=RUN, name=f"m{number}", namespace="many") for number in range(5)]
        for each in many:
            world.queue.add(each)
        for name in ("a", "b"):
            world.queue.add(Key(kind=RUN, name=name, namespace="few"))
        world.queue.add(key("node"))
        assert len(world.queue) == 8
        await world.run(8)
        assert [name for name, _ in world.handled] == ["m0", "a", "node", "m1", "b", "m2", "m3", "m4"]
        assert world.left == 0

    asyncio.run(go())


def test_several_objects_are_looked_at_at_once() -> None:
    """One that takes long keeps no other waiting."""

    async def go() -> None:
        world, together = World(workers=3), asyncio.Barrier(3)

        async def hook(_: Key) -> None:
            await together.wait()

        world.hook = hook
        for name in "abc":
            world.queue.add(key(name))
        await world.run(3)

    asyncio.run(go())


@pytest.mark.parametrize(
    ("error", "outcome", "later"),
    [
        (ClusterUnavailable("x"), "away", True),
        (Unavailable("x"), "away", True),
        (ClusterRefused("x"), "refused", False),
        (ClusterForbidden("x"), "refused", True),
        (Conflict("x"), "refused", False),
        (NotLeading("x"), "not-leading", False),
        (RuntimeError("x"), "failed", True),
    ],
)
def test_a_failure_says_when_to_look_again(error: Exception, outcome: str, later: bool) -> None:
    """What is away comes back; what refuses would refuse again; a fault of ours ends no worker."""

    async def go() -> None:
        world = World([error], workers=1)
        world.queue.add(key("a"), seen("a"))
        world.queue.add(key("b"))
        await world.run(2)
        assert [name for name, _ in world.handled] == ["a", "b"]
        assert (key("a") in world.later) == later
        assert outcomes(world.metrics) == {outcome: 1.0, "done": 1.0}
        assert any(members.get("name") == "a" for _, _, members in world.log.said)

    asyncio.run(go())


def test_what_changed_is_read_again_at_once_but_not_for_ever() -> None:
    """Two who write in turns would otherwise keep a task busy."""

    async def go() -> None:
        limit = work.CHANGED_AT_ONCE
        world = World([ObjectChanged("x")] * (limit + 1), workers=1)
        world.queue.add(key("a"), seen("a"))
        await world.run(limit + 1)
        assert world.handled == [("a", seen("a"))] + [("a", None)] * limit
        assert key("a") in world.later

    asyncio.run(go())


def test_an_object_says_when_it_wants_to_be_looked_at_again() -> None:
    """What is seen of it in the meantime comes first, and the wait is over."""

    async def go() -> None:
        world = World([3600.0], workers=1)
        world.queue.add(key("a"))
        await world.run(1)
        assert key("a") in world.later
        again = World([3600.0], workers=1)
        again.queue.add(key("a"))
        running = asyncio.create_task(again.queue.run())
        again.wanted = 1
        async with asyncio.timeout(WAIT_SECONDS):
            await again.enough.wait()
            for _ in range(20):
                await asyncio.sleep(0)
            again.enough.clear()
            again.wanted = 2
            again.queue.add(key("a"))
            await again.enough.wait()
        assert not again.queue._later
        running.cancel()

    asyncio.run(go())


def test_what_a_stranger_sent_is_not_kept_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a bound the queue keeps names; each object is looked at all the same, and the count comes back to 0."""
    monkeypatch.setattr(work, "MAX_SEEN_CHARACTERS", 20_000)

    async def go() -> None:
        world = World()
        for name in "abcdef":
            world.queue.add(key(name), seen(name, 5000))
        kept = [name for name, shown in world.queue._waiting[None].items() if shown is not None]
        assert len(kept) == 2
        await world.run(6)
        assert sorted(name for name, _ in world.handled) == list("abcdef")
        assert world.queue._seen_characters == 0

    asyncio.run(go())


def test_what_counts_is_what_somebody_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it stands: of a run it is a policy with lists, of a request one text, or whom it names as owners."""
    monkeypatch.setattr(work, "MAX_SEEN_CHARACTERS", 10_000)
    for raw, kept in (
        ({"spec": {"policy": {"tpm": ["x" * 3000, "x" * 3000]}}}, False),
        ({"metadata": {"ownerReferences": [{"name": "x" * 3000}] * 2}}, False),
        ({"metadata": {"annotations": {"x" * 6000: ""}}}, False),
        ({"metadata": {"name": "a"}, "spec": {"n": 1, "policy": {}}}, True),
    ):
        world = World()
        world.queue.add(key("a"), raw)
        assert (world.queue._waiting[None][key("a")] is not None) is kept


@given(failures=st.integers(1, 10_000), spread=st.floats(0, 1))
def test_a_pause_grows_and_is_bounded(failures: int, spread: float) -> None:
    """At least half of what it may be, never more than a minute; no overflow however long it lasts."""
    pause = pause_seconds(failures, spread)
    assert 0.25 <= pause <= LONGEST_PAUSE_SECONDS
    assert pause_seconds(failures + 1, spread) >= pause


def test_replicas_do_not_come_back_at_the_same_time() -> None:
    """Half of the pause is at random."""
    assert pause_seconds(20, 0.0) == LONGEST_PAUSE_SECONDS / 2
    assert pause_seconds(20, 1.0) == LONGEST_PAUSE_SECONDS
