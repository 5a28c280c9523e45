"""Units of work wait in queues, and threads run what waits in groups: what all stores share, whatever the database."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Literal, Protocol, TypeVar

from attestation.clock import Clock
from attestation.errors import StoreUnavailable
from attestation.store.base import StoreSettings
from attestation.store.lookups import Found, Looker, LookUp, LookUps
from attestation.store.tx import Tx

T = TypeVar("T")


class Unit:
    """One accepted unit: what to run and whom to tell."""

    __slots__ = ("error", "future", "loop", "value", "work")

    def __init__(
        self,
        work: Callable[[Tx], Any],
        future: asyncio.Future[Any] | Future[Any],
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self.work = work
        self.future = future
        self.loop = loop
        self.value: Any = None
        self.error: BaseException | None = None

    def settle(self) -> None:
        """Tell the caller, unless it went away."""
        future = self.future
        if future.done():
            return
        if self.error is None:
            future.set_result(self.value)
        elif isinstance(self.error, StopIteration):
            # No future takes one: refused here, it would leave all who are told after this one without an answer.
            told = RuntimeError("a unit of work raised StopIteration")
            told.__cause__ = self.error
            future.set_exception(told)
        else:
            future.set_exception(self.error)


class Worker(Protocol):
    """A connection, and how groups of units are run on it; used by one thread."""

    def serve(self, group: list[Unit]) -> None:
        """Run all units, and write down value or error of each; raise nothing."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


def refuse(group: list[Unit], failure: StoreUnavailable) -> None:
    """Let every unit of *group* fail: each caller has an error of its own, because raising one writes into it."""
    for unit in group:
        unit.error = type(failure)(str(failure))
        unit.error.__cause__ = failure.__cause__


def first_line(error: BaseException) -> str:
    """Return what the driver said, without what it quotes."""
    return str(error).partition("\n")[0]


def unavailable(error: BaseException) -> StoreUnavailable:
    """Return what callers are told where the driver raised *error*."""
    told = StoreUnavailable(f"the database does not answer: {first_line(error)}")
    told.__cause__ = error
    return told


def _settle(units: list[Unit]) -> None:
    for unit in units:
        unit.settle()


def _answer(units: list[Unit]) -> None:
    """Tell all callers: one wake-up per event loop, however many units."""
    by_loop: dict[asyncio.AbstractEventLoop | None, list[Unit]] = defaultdict(list)
    for unit in units:
        by_loop[unit.loop].append(unit)
    for loop, theirs in by_loop.items():
        if loop is None:
            _settle(theirs)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there
                loop.call_soon_threadsafe(_settle, theirs)


class Queue:
    """Units that wait, and one thread for each of *workers*."""

    def __init__(self, name: str, workers: Sequence[Worker], settings: StoreSettings) -> None:
        self._settings = settings
        self._units: SimpleQueue[Unit | None] = SimpleQueue()
        self._accepting = threading.Lock()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._loop, args=(worker,), name=name, daemon=True) for worker in workers
        ]
        for thread in self._threads:
            thread.start()

    async def ask(self, work: Callable[[Tx], T]) -> T:
        """Let *work* be run, and return its value."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._submit(Unit(work, future, loop))
        return await future

    def ask_sync(self, work: Callable[[Tx], T]) -> T:
        """As `ask`, for a thread without event loop."""
        future: Future[T] = Future()
        self._submit(Unit(work, future, None))
        return future.result()

    def _submit(self, unit: Unit) -> None:
        """Accept *unit*.

        Raises:
            StoreUnavailable: Closed, or too many wait already.
        """
        if threading.current_thread() in self._threads:
            raise RuntimeError("a unit of work cannot wait for another one")
        with self._accepting:
            if self._closed:
                raise StoreUnavailable("the store is closed")
            if self._units.qsize() >= self._settings.queue_size:
                raise StoreUnavailable("the database does not keep up")
            self._units.put(unit)

    def close(self) -> None:
        """Refuse new units, finish accepted ones, end the threads."""
        with self._accepting:
            if not self._closed:
                self._closed = True
                for _ in self._threads:
                    self._units.put(None)
        for thread in self._threads:
            thread.join()

    def _loop(self, worker: Worker) -> None:
        take = self._units.get
        more = self._units.get_nowait
        ended = crowded = False
        while not ended:
            unit = take()
            if crowded and unit is not None:
                # Where two came at once more are coming: one transaction for many costs less than many.
                time.sleep(self._settings.gather_seconds)
            group: list[Unit] = []
            while unit is not None:
                group.append(unit)
                if len(group) >= self._settings.group_size:
                    break
                try:
                    unit = more()
                except Empty:
                    break
            ended = unit is None
            crowded = len(group) > 1
            if group:
                try:
                    worker.serve(group)
                except BaseException as e:  # noqa: BLE001 -- without this thread nobody would be answered again
                    refuse(group, unavailable(e))
                    traceback.print_exception(e)
                _answer(group)
        worker.close()


class QueuedStore:
    """A store with a queue of units that write, one of reads by key, and one of lists, searches and walks.

    Those that read have queues of their own, because one that is busy with a list must not delay an attestation.
    """

    def __init__(
        self,
        settings: StoreSettings,
        *,
        clock: Clock,
        dialect: Literal["sqlite", "postgresql"],
        writers: Sequence[Worker],
        readers: Sequence[Worker],
        scanners: Sequence[Worker],
        lookers: Sequence[Looker],
    ) -> None:
        self.clock, self.dialect = clock, dialect
        self._writes = Queue("store-writer", writers, settings)
        self._reads = Queue("store-reader", readers, settings)
        self._scans = Queue("store-scanner", scanners, settings)
        self._look_ups = LookUps(lookers)

    async def write(self, work: Callable[[Tx], T]) -> T:
        """See `Store.write`."""
        return await self._writes.ask(work)

    async def read(self, work: Callable[[Tx], T]) -> T:
        """See `Store.read`."""
        return await self._reads.ask(work)

    async def scan(self, work: Callable[[Tx], T]) -> T:
        """See `Store.scan`."""
        return await self._scans.ask(work)

    async def look_up(self, wanted: LookUp) -> Found:
        """See `Store.look_up`."""
        return await self._look_ups.ask(wanted)

    def write_sync(self, work: Callable[[Tx], T]) -> T:
        """See `Store.write_sync`."""
        return self._writes.ask_sync(work)

    def read_sync(self, work: Callable[[Tx], T]) -> T:
        """See `Store.read_sync`."""
        return self._reads.ask_sync(work)

    async def aclose(self) -> None:
        """See `Store.aclose`."""
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """See `Store.close`."""
        self._look_ups.close()
        for queue in (self._reads, self._scans, self._writes):
            queue.close()
