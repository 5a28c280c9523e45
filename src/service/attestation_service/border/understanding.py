"""Queries are understood beside the loop, one at a time: side by side they would only share one interpreter lock."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

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
        self._looking: dict[str, list[asyncio.Task[Any]]] = {}

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

    async def in_turn(self, who: str, look_up: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what *look_up* finds; those of *who* run one after the other, or one person would take every place.

        Raises:
            QueriesBusy: Too many of theirs wait already.
        """
        before = self._looking.setdefault(who, [])
        if len(before) >= OF_ONE:
            raise QueriesBusy("queries of yours are running already: ask again when they are done")

        async def turn(last: asyncio.Task[Any] | None) -> T:
            if last is not None:
                await asyncio.wait({last})
            return await look_up()

        def over(task: asyncio.Task[T]) -> None:
            before.remove(task)
            if not before:
                self._looking.pop(who, None)
            if not task.cancelled():
                task.exception()  # whoever waited is told; where nobody does any more, it is nobody's

        task = asyncio.create_task(turn(before[-1] if before else None))
        before.append(task)
        # Who goes away has a place for as long as the database works on it.
        task.add_done_callback(over)
        return await asyncio.shield(task)

    def close(self) -> None:
        """Begin nothing any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)
