"""What is in flight in this process, and whether it is about to end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from attestation_service.settings import Settings

log = structlog.get_logger("attestation_service")


class Life:
    """Of one process, from its first request to its last.

    Args:
        settings: How long it may take to end.

    Work beside requests that others would wait for, e.g. a chore, is given up after the last request and before the
    database is closed.
    """

    def __init__(self, settings: Settings) -> None:
        self.shutdown_seconds = settings.shutdown_seconds
        self.delay_seconds = settings.shutdown_delay_seconds
        self.count = 0
        """Requests that are being served."""
        self.stopping = False
        """It was told to end: it still serves, and is not ready."""
        self.unusable = False
        """It ends because it can serve no more, nor can another one like it."""
        self.until: float | None = None
        """When requests must be over, by the monotonic clock; None before it was told to end."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._end: Callable[[], None] | None = None

    def __enter__(self) -> None:
        self.count += 1
        self._idle.clear()

    def __exit__(self, *_: object) -> None:
        self.count -= 1
        if self.count == 0:
            self._idle.set()

    def served_by(self, end: Callable[[], None]) -> None:
        """Take what ends the server of this process as SIGTERM does."""
        self._end = end

    def stop(self, until: float) -> None:
        """Note that the process was told to end, and until when requests may last."""
        self.stopping, self.until = True, until

    def fail(self, reason: str) -> None:
        """End the process, once, because of *reason*, which is for operators: it could only answer wrongly."""
        if self.unusable:
            return
        self.unusable = self.stopping = True
        log.error("service.unusable", reason=reason)
        if self._end is not None:
            self._end()

    async def drained(self) -> bool:
        """Wait until nothing is in flight; False if that took too long."""
        left = self.shutdown_seconds if self.until is None else self.until - time.monotonic()
        if self.count == 0:
            return True
        try:
            async with asyncio.timeout(left):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
