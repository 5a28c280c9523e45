"""Whether the database takes writes: on a full disk, or one that became read-only, reading goes on for long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from attestation.errors import StoreUnavailable
from attestation.store import RateLimit, Store

GOOD_SECONDS: Final = 5.0
"""A write that worked is believed for so long: however many ask, a worker writes once in that time."""
BAD_SECONDS: Final = 1.0
"""As long is one believed that did not."""

_KEY: Final = "readiness"
_ONE: Final = RateLimit(requests=1, per_seconds=1)
_AT: Final = datetime(2026, 1, 1, tzinfo=UTC)


class WriteProbe:
    """Writes one row, always the same.

    Args:
        store: The database.
        clock: Monotonic seconds.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._turn = asyncio.Lock()
        self._until = 0.0
        self._failed: StoreUnavailable | None = None

    async def demand(self) -> None:
        """Return where a write works, or worked a moment ago; who asks meanwhile waits for the same attempt.

        Raises:
            StoreUnavailable: It does not.
        """
        async with self._turn:
            if self._clock() >= self._until:
                self._failed = await self._attempt()
                self._until = self._clock() + (BAD_SECONDS if self._failed else GOOD_SECONDS)
        if self._failed is not None:
            raise self._failed

    async def _attempt(self) -> StoreUnavailable | None:
        try:
            await self._store.write(lambda tx: tx.rate_limits.take(_KEY, _AT, _ONE))
        except StoreUnavailable as e:
            return e
        return None
