"""What one process spends on bodies of people whom nobody knows: memory at once, and bytes over time.

In memory and per process, because memory and the loop are the process's own; requests are counted by all workers
together (`limits.py`). Everything has an end for one network, for one site of IPv6, and for all strangers together.
Networks from which a machine has proven itself lately have room of their own: a flood from others leaves it alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from attestation.errors import RateLimited, ServiceBusy
from attestation_service.border.bodies import SMALL_BYTES, Allowed
from attestation_service.border.networks import network_of, site_of
from attestation_service.settings import Settings

SITE: Final = 4
"""A site may have so many times what one of its networks may."""
ALL: Final = 16
"""So many networks' rates, all strangers together."""
BURST_SECONDS: Final = 16
PROVEN_SECONDS: Final = 3600.0
MANY: Final = 10_000
"""Networks that are remembered; what is forgotten first has not been heard of for the longest time."""


@dataclass(frozen=True, slots=True)
class Account:
    """One name that bytes and memory are counted under, and how many times a network's share it has."""

    name: str
    share: int


class Room:
    """The room of one process.

    Args:
        settings: How much of it there is.
        clock: Monotonic seconds.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._limited = settings.rate_limits
        self._rate = settings.body_kib_per_second << 10
        self._of_one = settings.body_memory_mib_per_address << 20
        self._of_all = settings.body_memory_mib << 20
        self._grace_seconds = settings.body_seconds
        self._slowest = settings.body_min_kib_per_second << 10
        self._clock = clock
        self._full_at: OrderedDict[str, float] = OrderedDict()
        """Name -> when its budget is whole again."""
        self._held: dict[str, int] = {}
        self._proven: OrderedDict[str, float] = OrderedDict()

    def prove(self, address: str) -> None:
        """Remember that a machine, vouched for by its vendor or an operator, proved itself from *address*."""
        network = network_of(address)
        self._proven[network] = self._clock() + PROVEN_SECONDS
        self._proven.move_to_end(network)
        _forget(self._proven)

    def is_proven(self, address: str) -> bool:
        """Return True where a machine proved itself lately from the network of *address*."""
        return self._proven.get(network_of(address), 0.0) > self._clock()

    def intake(self, address: str) -> Intake:
        """Return what reads the body of one request from *address*."""
        return Intake(self, self._accounts(address))

    def _accounts(self, address: str) -> tuple[Account, ...]:
        network, site = network_of(address), site_of(address)
        if self.is_proven(address):
            return (Account(network, 1), Account("proven", ALL))
        sites = (Account(site, SITE),) if site is not None else ()
        return (Account(network, 1), *sites, Account("strangers", ALL))

    def charge(self, accounts: tuple[Account, ...], size_bytes: int) -> None:
        """Count bytes before they are read.

        Raises:
            RateLimited: Too many lately.
        """
        if not self._limited:
            return
        now = self._clock()
        for account in accounts:
            # A whole budget lets anything through: the largest body is less than a second's share of some settings.
            ahead = self._full_at.get(account.name, now) - now - BURST_SECONDS
            if ahead > 0:
                raise RateLimited(
                    "too many bytes from this network", retry_after_seconds=max(1, int(ahead) + 1)
                )
        for account in accounts:
            full_at = max(self._full_at.get(account.name, now), now)
            self._full_at[account.name] = full_at + size_bytes / (self._rate * account.share)
            self._full_at.move_to_end(account.name)
        _forget(self._full_at)

    def hold(self, accounts: tuple[Account, ...], size_bytes: int) -> None:
        """Count memory before it is used.

        Raises:
            RateLimited: This network has its part.
            ServiceBusy: All of it is in use.
        """
        for account in accounts:
            limit = self._of_all if account.share == ALL else self._of_one * account.share
            if self._held.get(account.name, 0) + size_bytes > limit:
                if account.share == ALL:
                    raise ServiceBusy("too many bodies are being read")
                raise RateLimited("too many bodies of this network are being read", retry_after_seconds=1)
        for account in accounts:
            self._held[account.name] = self._held.get(account.name, 0) + size_bytes

    def release(self, accounts: tuple[Account, ...], size_bytes: int) -> None:
        """Give back what was held."""
        for account in accounts:
            left = self._held[account.name] - size_bytes
            if left:
                self._held[account.name] = left
            else:
                del self._held[account.name]

    def deadline(self, began: float, size_bytes: int) -> float:
        """Return until when more must have come of a body that began at *began* and of which *size_bytes* are here."""
        return began + self._grace_seconds + size_bytes / self._slowest


class Intake:
    """One body: read within its room, which it keeps until `close`."""

    __slots__ = ("_accounts", "_held_bytes", "_room")

    def __init__(self, room: Room, accounts: tuple[Account, ...]) -> None:
        self._room, self._accounts = room, accounts
        self._held_bytes = 0

    async def read(self, receive: Receive, allowed: Allowed, announced_bytes: int) -> bytes:
        """Return the whole body.

        Raises:
            HTTPException: 413, longer than *allowed*; 408, too slow.
            RateLimited, ServiceBusy: There is no room for it.
            ClientDisconnect: The client left.
        """
        # 1. Before anything is read: what is announced must be allowed and paid for.
        limit = allowed.size_bytes
        if announced_bytes > limit:
            raise too_large(limit)
        charged = max(SMALL_BYTES, announced_bytes)
        if announced_bytes > SMALL_BYTES:
            self._room.charge(self._accounts, announced_bytes)
        # 2. A body that is here at once, as nearly every one is, waits for nothing: it needs no timer.
        if _is_here(receive):
            return await self._collect(receive, limit, charged)
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(self._room.deadline(began, 0)) as until:
                return await self._collect(
                    receive, limit, charged, lambda size: until.reschedule(self._room.deadline(began, size))
                )
        except TimeoutError:
            raise HTTPException(408, "the body came too slowly") from None

    async def _collect(
        self, receive: Receive, limit: int, charged: int, came: Callable[[int], None] = lambda _: None
    ) -> bytes:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunk: bytes = message.get("body", b"")
            size = len(body) + len(chunk)
            if size > limit:
                raise too_large(limit)
            # 3. What goes beyond a small body: as memory when it comes, as bytes where nobody announced it.
            if size > charged:
                self._room.charge(self._accounts, size - charged)
                charged = size
            if size > SMALL_BYTES:
                self._room.hold(self._accounts, size - self._held_bytes)
                self._held_bytes = size
            if not message.get("more_body", False) and not body:
                return chunk
            body += chunk
            if not message.get("more_body", False):
                return bytes(body)
            came(size)

    def close(self) -> None:
        """Give the room back."""
        if self._held_bytes:
            self._room.release(self._accounts, self._held_bytes)
            self._held_bytes = 0


def _is_here(receive: Receive) -> bool:
    """Return True where *receive* is the server's own and has the whole body."""
    cycle = getattr(receive, "__self__", None)
    return isinstance(cycle, RequestResponseCycle) and not cycle.more_body


def too_large(limit: int) -> HTTPException:
    """Return the refusal of a body longer than *limit* bytes."""
    return HTTPException(413, f"at most {limit} bytes are read")


def whole(body: bytes, receive: Receive) -> Receive:
    """Return what gives *body* at once, then goes on with *receive*."""
    given = False

    async def first() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return first


def _forget(names: OrderedDict[str, float]) -> None:
    while len(names) > MANY:
        names.popitem(last=False)
