"""What one process does for all that share the database (docs/adr/0108).

A row of each chore says who has it, and until when. Its holder says so again in good time; one that died, hangs or was
stopped for longer has it no more, by its own clock as by that of the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import Callable
from datetime import timedelta
from random import SystemRandom
from typing import Final

import structlog

from attestation.clock import Clock
from attestation.errors import AttestationError
from attestation.store import Chore, Store, Tx
from attestation.store.remote_clock import boot_micros

log = structlog.get_logger("attestation_service.chores")

MAINTENANCE: Final = "maintenance"
"""What lapsed and what is old goes, events leave the outbox, what rests on another bundle is judged again."""

CHECKPOINTS: Final = "checkpoints"
"""The log is signed when it is due; after an act, by the process that served it."""

NAMES: Final = (MAINTENANCE, CHECKPOINTS)

LENGTH: Final = timedelta(seconds=12)
"""So long a chore is its holder's; renewed at a third of it, so who died is replaced within 17 seconds."""


class Chores:
    """The chores of this process.

    Args:
        store: Where they are claimed.
        clock: Of all who share it.
        ticks: Microseconds that only grow, also while this process is stopped.
    """

    def __init__(self, store: Store, clock: Clock, ticks: Callable[[], int] = boot_micros) -> None:
        self.holder: Final = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"
        self._store = store
        self._clock = clock
        self._ticks = ticks
        self._until: dict[str, int] = {}
        self._came = {name: asyncio.Event() for name in NAMES}

    def holds(self, name: str) -> bool:
        """Return True while the chore is this process's."""
        return self._ticks() < self._until.get(name, 0)

    async def wait(self, name: str, seconds: float) -> None:
        """Return after so long, or as soon as this process takes the chore of one that fell silent."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._came[name].wait(), seconds)
        self._came[name].clear()

    async def run(self) -> None:
        """Take and keep what nobody else has, until cancelled; an error is logged and waited out."""
        while True:
            try:
                await self.look()
            except AttestationError as e:
                log.warning("chores.not_kept", code=e.code)
            except Exception as e:  # noqa: BLE001 -- the outermost border of this task: it must not end
                log.error("chores.not_kept", kind=type(e).__name__)  # noqa: TRY400 -- the message may quote a row
            # Jitter: processes that started together shall not all look at the same moment.
            await asyncio.sleep(LENGTH.total_seconds() / 3 * SystemRandom().uniform(0.75, 1.25))

    async def look(self) -> None:
        """Keep what is this process's, and take what is nobody's."""
        asked, at = self._ticks(), self._clock.now()
        found = {each.name: each for each in await self._store.read(lambda tx: tx.chores.all())}
        free = [
            name
            for name in NAMES
            if name not in found
            or found[name].holder == self.holder
            or not at < found[name].until <= at + 2 * LENGTH  # the clock was set back
        ]

        def take(tx: Tx) -> list[str]:
            until = at + LENGTH
            return [
                name for name in free if tx.chores.take(Chore(name=name, holder=self.holder, until=until), at)
            ]

        taken = await self._store.write(take) if free else []
        for name in NAMES:
            had = self._until.get(name, 0)
            if name not in taken:
                if self._until.pop(name, None) is not None:
                    log.warning("chore.lost", chore=name)
                continue
            # Counted from before the question: others count from later.
            self._until[name] = asked + LENGTH // timedelta(microseconds=1)
            if had < asked:
                before = found.get(name)
                log.info("chore.taken", chore=name, before=None if before is None else before.holder)
                if before is not None:
                    self._came[name].set()

    async def give_up(self) -> None:
        """Let others have them at once; where that fails they have them a little later."""
        names, self._until = [*self._until], {}

        def work(tx: Tx) -> None:
            for name in names:
                tx.chores.give_up(name, self.holder)

        with contextlib.suppress(AttestationError):
            if names:
                await self._store.write(work)
