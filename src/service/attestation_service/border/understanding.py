"""Queries are understood beside the loop, one at a time: side by side they would only share one interpreter lock."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from attestation.errors import QueriesBusy

T = TypeVar("T")

OF_ONE: Final = 4
"""Texts of one operator that wait at the same time: an editor asks while one types."""
OF_ALL: Final = 32


class Understanding:
    """Reads texts of operators in a thread of its own, so that what a text costs is taken from no attestation."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="queries")
        self._waiting: Counter[str] = Counter()

    async def of(self, who: str, work: Callable[[], T]) -> T:
        """Return what *work* makes of a text of *who*.

        Raises:
            QueriesBusy: Too many wait already, of theirs or of all.
        """
        if self._waiting[who] >= OF_ONE or self._waiting.total() >= OF_ALL:
            raise QueriesBusy("other queries are being read: ask again in a few seconds")
        self._waiting[who] += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._waiting[who] -= 1
            self._waiting += Counter()  # who waits for nothing is forgotten

    def close(self) -> None:
        """Begin nothing any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)
