"""One replica acts: by a Lease, as client-go takes and renews it, on steady clocks alone."""

# ruff: noqa: D102 -- they do what the names say
from __future__ import annotations

import asyncio
from typing import Any

import pytest

from attestation_operator import leadership
from attestation_operator.errors import ClusterUnavailable
from attestation_operator.leadership import LEASE_SECONDS, RENEW_SECONDS, Lease
from tests.unit.operator.doubles import Leases, Log, Standing


class Steady:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


class Two:
    """Two replicas and their lease."""

    def __init__(self) -> None:
        self.leases, self.steady, self.log = Leases(), Steady(), Log()
        self.told: list[bool] = []
        self.a, self.b = self.replica("a"), self.replica("b")

    def replica(self, identity: str) -> Lease:
        return Lease(
            self.leases,  # type: ignore[arg-type]  # a double
            namespace="itl",
            name="attestation-operator-approver",
            identity=identity,
            clock=Standing(),
            log=self.log,
            tell=self.told.append,
            steady=self.steady,
        )

    @property
    def spec(self) -> dict[str, Any]:
        assert self.leases.held is not None
        spec: dict[str, Any] = self.leases.held["spec"]
        return spec


def test_the_first_has_it_and_the_second_waits() -> None:
    """Until the record has not changed for as long as it says, on the clock of who waits."""

    async def go() -> None:
        two = Two()
        assert await two.a.attempt()
        assert two.a.held
        assert not await two.b.attempt()
        two.steady.seconds += LEASE_SECONDS - 0.01
        assert not await two.b.attempt()
        two.steady.seconds += 0.02
        assert await two.b.attempt()
        assert (two.a.held, two.b.held) == (False, True)
        assert two.spec["holderIdentity"] == "b"
        assert two.spec["leaseTransitions"] == 1
        assert not await two.a.attempt()
        two.steady.seconds += LEASE_SECONDS + 0.01
        assert await two.a.attempt()
        assert two.spec["leaseTransitions"] == 2

    asyncio.run(go())


def test_who_renews_keeps_it() -> None:
    """However long it lasts."""

    async def go() -> None:
        two = Two()
        for _ in range(20):
            assert await two.a.attempt()
            assert not await two.b.attempt()
            two.steady.seconds += 2
        assert two.spec["leaseTransitions"] == 0

    asyncio.run(go())


def test_who_cannot_renew_stops_before_another_may_begin() -> None:
    """The API server is away: what is held is held for a while, and then not any more, without asking anybody."""
    assert RENEW_SECONDS < LEASE_SECONDS

    async def go() -> None:
        two = Two()
        assert await two.a.attempt()
        two.leases.failing = ClusterUnavailable("away")
        two.steady.seconds += RENEW_SECONDS - 0.01
        assert await two.a.attempt()
        two.steady.seconds += 0.02
        assert not two.a.held
        assert not await two.a.attempt()
        assert two.told == [True, False, False]
        two.leases.failing = None
        assert not await two.b.attempt()

    asyncio.run(go())


def test_of_two_who_take_it_at_once_one_has_it() -> None:
    """The resourceVersion decides."""

    async def go() -> None:
        two = Two()
        read = two.leases.read

        async def slowly(*args: Any) -> Any:
            found = await read(*args)
            await asyncio.sleep(0)
            return found

        two.leases.read = slowly  # type: ignore[method-assign, assignment]  # a double
        assert sorted(await asyncio.gather(two.a.attempt(), two.b.attempt())) == [False, True]
        two.steady.seconds += LEASE_SECONDS + 1
        c, d = two.replica("c"), two.replica("d")
        await asyncio.gather(c.attempt(), d.attempt())
        two.steady.seconds += LEASE_SECONDS + 1
        assert sorted(await asyncio.gather(c.attempt(), d.attempt())) == [False, True]

    asyncio.run(go())


def test_who_ends_gives_it_up() -> None:
    """So the next replica need not wait; who does not hold it gives nothing up."""

    async def go() -> None:
        two = Two()
        assert await two.a.attempt()
        await two.b.release()
        assert two.spec["holderIdentity"] == "a"
        await two.a.release()
        assert not two.a.held
        assert two.spec["holderIdentity"] == ""
        assert await two.b.attempt()

    asyncio.run(go())


@pytest.mark.threat("T189")
def test_what_another_took_is_not_given_up() -> None:
    """Who still believes to hold it reads first; a record that is gone, or not one's own, needs nothing."""

    async def go() -> None:
        two = Two()
        assert await two.a.attempt()
        assert two.leases.held is not None
        two.leases.held["spec"]["holderIdentity"] = "b"
        before = two.spec.copy()
        assert two.a.held
        await two.a.release()
        assert (two.a.held, two.spec) == (False, before)
        two.leases.held = None
        assert await two.a.attempt()
        two.leases.held = None
        await two.a.release()
        assert two.leases.held is None
        # Who does not hold it asks nobody.
        two.leases.failing = ClusterUnavailable("away")
        await two.b.release()
        assert "lease.not_released" not in two.log.events

    asyncio.run(go())


@pytest.mark.parametrize(("said", "waits"), [(60, 60), (None, LEASE_SECONDS)])
def test_the_record_says_how_long_the_others_wait(said: int | None, waits: int) -> None:
    """Its holder may be of another version; one that says nothing has it as long as we would."""

    async def go() -> None:
        two = Two()
        assert await two.a.attempt()
        assert two.leases.held is not None
        two.leases.held["spec"]["leaseDurationSeconds"] = said
        assert not await two.b.attempt()
        two.steady.seconds += waits - 0.01
        assert not await two.b.attempt()
        two.steady.seconds += 0.02
        assert await two.b.attempt()

    asyncio.run(go())


def test_giving_it_up_may_fail() -> None:
    """Then it is over after its time; the end does not wait for it."""

    async def go() -> None:
        two = Two()
        assert await two.a.attempt()
        two.leases.failing = ClusterUnavailable("away")
        await two.a.release()
        assert not two.a.held
        assert "lease.not_released" in two.log.events

    asyncio.run(go())


def test_losing_it_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`lost` renews, and returns when another one has it."""
    monkeypatch.setattr(leadership, "RETRY_SECONDS", 0.0)

    async def go() -> None:
        two = Two()
        assert await two.a.attempt()
        lost = asyncio.create_task(two.a.lost())
        for _ in range(50):
            await asyncio.sleep(0)
        assert not lost.done()
        assert two.leases.held is not None
        two.leases.held["spec"]["holderIdentity"] = "b"
        async with asyncio.timeout(20):
            await lost
        assert not two.a.held

    asyncio.run(go())
