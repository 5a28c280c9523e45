"""Room for bodies: who pays for what, and when it is over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from attestation.errors import RateLimited, ServiceBusy
from attestation_service.border.bodies import OF_MACHINES, WITH_LOGS
from attestation_service.border.networks import network_of, site_of
from attestation_service.border.room import MANY, PROVEN_SECONDS, Room
from attestation_service.settings import Settings

pytestmark = pytest.mark.anyio

MIB = 1 << 20


class Clock:
    """Seconds that pass when told."""

    now = 1000.0

    def __call__(self) -> float:
        """Return now."""
        return self.now


def room(clock: Clock | None = None, **settings: Any) -> Room:
    """Return a room of these settings."""
    return Room(Settings(**settings), clock or Clock())


def sends(*chunks: bytes, then: str = "http.disconnect") -> Any:
    """Return what a server gives of a body in *chunks*, the last one marked as such."""
    messages: Iterable[dict[str, Any]] = iter(
        [{"type": "http.request", "body": c, "more_body": i + 1 < len(chunks)} for i, c in enumerate(chunks)]
    )

    async def receive() -> dict[str, Any]:
        return next(messages, {"type": then})  # type: ignore[call-overload, no-any-return]

    return receive


@pytest.mark.parametrize(
    ("address", "network", "site"),
    [
        ("192.0.2.7", "192.0.2.7", None),
        ("::ffff:192.0.2.7", "192.0.2.7", None),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64", "2001:db8:1::/48"),
        ("2001:db8:1:2::9%eth0", "2001:db8:1:2::/64", "2001:db8:1::/48"),
        ("unix", "unix", None),
        ("unknown", "unknown", None),
    ],
)
def test_networks_and_sites(address: str, network: str, site: str | None) -> None:
    """A /64 is one client of IPv6, a /48 one site; an IPv4 address is itself, however it is written."""
    assert network_of(address) == network
    assert site_of(address) == site


async def test_a_small_body_costs_nobody_anything() -> None:
    """What every machine sends all day long needs no room, also where all of it is in use."""
    full = room(body_memory_mib=8)
    full.hold(full._accounts("192.0.2.1"), 8 * MIB)
    body = await full.intake("192.0.2.2").read(sends(b"x" * 8192, b"y" * 8192), WITH_LOGS, 16384)
    assert len(body) == 16384


async def test_what_is_held_is_given_back() -> None:
    """Memory is counted while a request lasts, and not after it, however it ends."""
    ours = room()
    intake = ours.intake("192.0.2.1")
    assert len(await intake.read(sends(b"x" * MIB, b"y" * MIB), WITH_LOGS, 0)) == 2 * MIB
    assert ours._held["strangers"] == 2 * MIB
    intake.close()
    intake.close()
    assert ours._held == {}
    intake = ours.intake("192.0.2.1")
    with pytest.raises(ClientDisconnect):
        await intake.read(left_after(MIB), WITH_LOGS, 0)
    assert ours._held["strangers"] == MIB
    intake.close()
    assert ours._held == {}


def left_after(size: int) -> Any:
    """Return what a server gives where the client leaves after *size* bytes."""
    messages = iter([{"type": "http.request", "body": b"x" * size, "more_body": True}])

    async def receive() -> dict[str, Any]:
        return next(messages, {"type": "http.disconnect"})

    return receive


@pytest.mark.parametrize("announced", [OF_MACHINES.size_bytes + 1, 0])
async def test_a_body_beyond_its_route_is_refused(announced: int) -> None:
    """At once where its size is announced, else as soon as there is too much."""
    receive = sends(b"x" * OF_MACHINES.size_bytes, b"x", b"never read")
    with pytest.raises(HTTPException) as refused:
        await room().intake("192.0.2.1").read(receive, OF_MACHINES, announced)
    assert refused.value.status_code == 413
    unread = (await receive())["body"]
    assert unread == (b"x" * OF_MACHINES.size_bytes if announced else b"never read")


@pytest.mark.threat("T123")
async def test_memory_of_one_network_and_of_all() -> None:
    """One network has its part, all strangers together theirs, and those that proved themselves their own."""
    ours = room(body_memory_mib=32, body_memory_mib_per_address=16)
    ours.hold(ours._accounts("2001:db8:0:1::1"), 16 * MIB)
    with pytest.raises(RateLimited):
        await ours.intake("2001:db8:0:1::2").read(sends(b"x" * MIB), WITH_LOGS, MIB)
    ours.hold(ours._accounts("192.0.2.1"), 16 * MIB)
    with pytest.raises(ServiceBusy):
        await ours.intake("192.0.2.2").read(sends(b"x" * MIB), WITH_LOGS, MIB)
    ours.prove("192.0.2.3")
    assert len(await ours.intake("192.0.2.3").read(sends(b"x" * MIB), WITH_LOGS, MIB)) == MIB


@pytest.mark.threat("T123")
async def test_bytes_are_paid_before_they_are_read() -> None:
    """After sixteen seconds' worth, a network waits; others do not, nor does it for ever."""
    clock = Clock()
    ours = room(clock, body_kib_per_second=1024)
    for _ in range(5):  # 20 MiB: the last one begins within the budget and goes beyond it
        intake = ours.intake("192.0.2.1")
        await intake.read(sends(b"x" * 4 * MIB), WITH_LOGS, 4 * MIB)
        intake.close()
    unread = sends(b"x" * 4 * MIB)
    with pytest.raises(RateLimited) as refused:
        await ours.intake("192.0.2.1").read(unread, WITH_LOGS, 4 * MIB)
    assert refused.value.retry_after_seconds == 5
    assert len((await unread())["body"]) == 4 * MIB
    with pytest.raises(RateLimited):  # nobody need announce anything
        await ours.intake("192.0.2.1").read(sends(b"x" * MIB), WITH_LOGS, 0)
    await ours.intake("192.0.2.2").read(sends(b"x" * MIB), WITH_LOGS, MIB)
    clock.now += 5
    await ours.intake("192.0.2.1").read(sends(b"x" * MIB), WITH_LOGS, MIB)


def flood(ours: Room, addresses: Iterable[str]) -> None:
    """Charge the largest body to each of *addresses*."""
    for address in addresses:
        ours.charge(ours._accounts(address), 4 * MIB)


def test_a_site_is_one_flood() -> None:
    """65,536 networks of one /48 do not have 65,536 budgets; another site has its own."""
    ours = room(body_kib_per_second=1024)
    with pytest.raises(RateLimited):
        flood(ours, (f"2001:db8:1:{i:x}::1" for i in range(100)))
    ours.charge(ours._accounts("2001:db8:2::1"), 4 * MIB)


@pytest.mark.threat("T123", "T144")
def test_strangers_together_leave_room_for_the_proven() -> None:
    """A flood from many networks ends in a budget of its own; who proved itself does not notice, for an hour."""
    clock = Clock()
    ours = room(clock, body_kib_per_second=1024)
    ours.prove("198.51.100.1")
    with pytest.raises(RateLimited):
        flood(ours, (f"192.0.2.{i}" for i in range(100)))
    with pytest.raises(RateLimited):
        ours.charge(ours._accounts("198.51.100.2"), 4 * MIB)
    ours.charge(ours._accounts("198.51.100.1"), 4 * MIB)
    assert ours.is_proven("198.51.100.1")
    clock.now += PROVEN_SECONDS
    assert not ours.is_proven("198.51.100.1")


def test_limits_can_be_off_but_memory_is_not_endless() -> None:
    """`ITL_RATE_LIMITS=false` is about rates."""
    ours = room(rate_limits=False)
    for _ in range(100):
        ours.charge(ours._accounts("192.0.2.1"), 64 * MIB)
    with pytest.raises(RateLimited):
        ours.hold(ours._accounts("192.0.2.1"), 17 * MIB)


def test_what_is_remembered_is_bounded() -> None:
    """Strangers with many addresses fill no memory."""
    ours = room()
    for i in range(MANY + 10):
        ours.prove(f"10.{i >> 16}.{i >> 8 & 255}.{i & 255}")
        ours.charge(ours._accounts(f"11.{i >> 16}.{i >> 8 & 255}.{i & 255}"), 1)
    assert len(ours._proven) == len(ours._full_at) == MANY


@pytest.mark.threat("T123")
@pytest.mark.parametrize("pieces", [0, 1])
async def test_a_body_that_comes_too_slowly_is_given_up(pieces: int) -> None:
    """After its seconds it must have come at the least rate, from the first byte on; what it held is free again."""
    ours = room(body_seconds=1)
    left = [{"type": "http.request", "body": b"{", "more_body": True}] * pieces

    async def receive() -> dict[str, Any]:
        if not left:
            await asyncio.sleep(10)  # and leaves, so that who waits for ever is seen
        return left.pop() if left else {"type": "http.disconnect"}

    with pytest.raises(HTTPException) as refused:
        await ours.intake("192.0.2.1").read(receive, WITH_LOGS, MIB)
    assert refused.value.status_code == 408
    assert ours.deadline(0.0, 0) == 1
    assert ours.deadline(0.0, MIB) == 1 + 64
