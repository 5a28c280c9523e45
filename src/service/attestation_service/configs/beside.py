"""Configurations are worked on beside the loop, in threads of their own.

A long one takes seconds to read, and a key may be on a device that hangs: neither may take the threads in which
attestations are signed. Nor may what people look at take those in which machines are given what is theirs.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

T = TypeVar("T")

OF_MACHINES: Final = 2
"""Machines that are served at once: side by side they share one interpreter lock, but no device keeps all waiting."""


class Beside:
    """The threads."""

    def __init__(self) -> None:
        # One at a time, as queries are.
        self._people = ThreadPoolExecutor(1, thread_name_prefix="configurations")
        self._machines = ThreadPoolExecutor(OF_MACHINES, thread_name_prefix="deliveries")

    async def for_people(self, work: Callable[[], T]) -> T:
        """Return what *work* does for an operator."""
        return await _done(self._people, work)

    async def for_machines(self, work: Callable[[], T]) -> T:
        """Return what *work* does for a machine."""
        return await _done(self._machines, work)

    def close(self) -> None:
        """Begin nothing any more."""
        for each in (self._people, self._machines):
            each.shutdown(wait=False, cancel_futures=True)


async def _done(threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    context = contextvars.copy_context()  # what is logged there is of this request
    return await asyncio.get_running_loop().run_in_executor(threads, partial(context.run, work))
