"""The store on SQLite: one writer thread that commits queued units in groups, and readers beside it.

The writer takes every unit that waits, runs them inside one `BEGIN IMMEDIATE` … `COMMIT`, each in its own
savepoint, and answers only after the commit: durable, and one fsync for many. Several processes on one file
work: they take turns by SQLite's write lock, and whoever has it sees everything committed before.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from attestation.errors import StoreBusy, StoreUnavailable
from attestation.store.base import StoreSettings
from attestation.store.sql import Executor
from attestation.store.tx import Tx
from attestation.store.unusable import unusable

T = TypeVar("T")

_ASK_AGAIN_SECONDS = 0.0005


def connect(path: Path, settings: StoreSettings, *, read_only: bool = False) -> sqlite3.Connection:
    """Open the file with every setting that our guarantees need.

    WAL lets readers go on while somebody writes; `synchronous=FULL` syncs the WAL at every commit, so what was
    answered survives a power cut. Cache and memory map stay at SQLite's defaults: larger ones cost memory and
    measured slower.

    Raises:
        StoreUnavailable: The file cannot be opened, or is no database.
    """
    connection: sqlite3.Connection | None = None
    try:
        connection = sqlite3.connect(
            path,
            timeout=settings.busy_timeout_seconds,
            isolation_level=None,  # we write BEGIN ourselves
            check_same_thread=False,  # opened by the caller, so that errors show there; used by one thread
            cached_statements=256,
        )
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
            "recursive_triggers=ON",  # else INSERT OR REPLACE would delete past the triggers of audit_log
            f"query_only={'ON' if read_only else 'OFF'}",
        ):
            connection.execute(f"PRAGMA {pragma}")
    except sqlite3.Error as e:
        if connection is not None:
            connection.close()
        raise unusable(path, e) from e
    return connection


class _Unit:
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
        else:
            future.set_exception(self.error)


def _settle(units: list[_Unit]) -> None:
    for unit in units:
        unit.settle()


def _answer(units: list[_Unit]) -> None:
    """Tell all callers: one wake-up per event loop, however many units."""
    by_loop: dict[asyncio.AbstractEventLoop | None, list[_Unit]] = defaultdict(list)
    for unit in units:
        by_loop[unit.loop].append(unit)
    for loop, theirs in by_loop.items():
        if loop is None:
            _settle(theirs)
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there
                loop.call_soon_threadsafe(_settle, theirs)


def _unavailable(error: sqlite3.Error) -> StoreUnavailable:
    unavailable = StoreUnavailable(f"the database does not answer: {error}")
    unavailable.__cause__ = error
    return unavailable


def _is_ours(error: BaseException) -> bool:
    """Return True if the database failed, False if the unit did (constraints, its own errors)."""
    return isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError


class _Thread:
    """A thread with a queue and a connection; subclasses say what happens to a group of units."""

    def __init__(self, name: str, connection: sqlite3.Connection, settings: StoreSettings) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._tx = Tx(Executor(self._cursor, "sqlite"), results_kept=settings.results_kept)
        self._settings = settings
        self._queue: SimpleQueue[_Unit | None] = SimpleQueue()
        self._accepting = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def submit(self, unit: _Unit) -> None:
        """Accept *unit*.

        Raises:
            StoreUnavailable: Closed, or too many wait already.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError("a unit of work cannot wait for another one")
        with self._accepting:
            if self._closed:
                raise StoreUnavailable("the store is closed")
            if self._queue.qsize() >= self._settings.queue_size:
                raise StoreUnavailable("the database does not keep up")
            self._queue.put(unit)

    def close(self) -> None:
        """Refuse new units, finish accepted ones, end the thread."""
        with self._accepting:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _loop(self) -> None:
        take = self._queue.get
        more = self._queue.get_nowait
        ended = crowded = False
        while not ended:
            unit = take()
            if crowded and unit is not None:
                # Where two came at once more are coming: one transaction for many costs less than many.
                time.sleep(self._settings.gather_seconds)
            group: list[_Unit] = []
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
                self._serve(group)
                _answer(group)
        self._connection.close()

    def _serve(self, group: list[_Unit]) -> None:
        raise NotImplementedError

    def _rollback(self) -> None:
        if self._connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):  # what it would undo is not committed either way
                self._cursor.execute("ROLLBACK")


class _Writer(_Thread):
    """Commits groups."""

    def __init__(self, name: str, connection: sqlite3.Connection, settings: StoreSettings) -> None:
        connection.execute("PRAGMA busy_timeout=0")  # `_begin` waits in its place
        super().__init__(name, connection, settings)

    def _serve(self, group: list[_Unit]) -> None:
        failure: StoreUnavailable | None = None
        for _ in range(self._settings.commit_attempts):
            try:
                self._commit(group)
            except StoreBusy as e:
                failure = e
                break  # `_begin` has waited for as long as anybody is to wait
            except sqlite3.Error as e:
                failure = _unavailable(e)
                self._rollback()
            else:
                return
        assert failure is not None
        for unit in group:
            unit.error = type(failure)(str(failure))  # each caller's own: raising one writes into it

    def _commit(self, group: list[_Unit]) -> None:
        """Run *group* in one transaction.

        Raises:
            sqlite3.Error: Nothing of it is stored.
            StoreBusy: Nothing of it was begun.
        """
        execute = self._cursor.execute
        tx = self._tx
        self._begin()
        told = False
        for unit in group:
            execute("SAVEPOINT unit")
            unit.error = None
            tx.begin()
            try:
                unit.value = unit.work(tx)
                told = tx.settle() or told
            except BaseException as e:  # whatever a unit raises is its caller's, never the writer's
                if not self._connection.in_transaction:
                    # SQLite itself rolled all back (disk full, I/O error): the group, not this unit, failed.
                    raise sqlite3.OperationalError("the transaction was rolled back") from e
                execute("ROLLBACK TO unit")
                unit.error = _unavailable(e) if isinstance(e, sqlite3.Error) and _is_ours(e) else e
            execute("RELEASE unit")
        execute("COMMIT")
        if told and self._settings.on_authority is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody signs there
                self._settings.on_authority()

    def _begin(self) -> None:
        """Take the write lock, asking every half millisecond.

        SQLite's own busy handler asks ever more rarely, up to every tenth of a second: between two busy
        processes one then waited for seconds.

        Raises:
            StoreBusy: Somebody else has had it for `busy_timeout_seconds`.
        """
        most = self._settings.busy_timeout_seconds
        deadline = time.monotonic() + most
        while True:
            try:
                self._cursor.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as e:
                if e.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                if time.monotonic() >= deadline:
                    raise StoreBusy(
                        f"another program has kept the database locked for {most:g} s: nothing was written, "
                        "and nothing of this will be"
                    ) from e
                time.sleep(_ASK_AGAIN_SECONDS)
            else:
                return


class _Reader(_Thread):
    """Answers reads: all that wait, on one snapshot that is younger than the youngest of them."""

    def _serve(self, group: list[_Unit]) -> None:
        try:
            self._cursor.execute("BEGIN")
            for unit in group:
                try:
                    unit.value = unit.work(self._tx)
                except BaseException as e:  # noqa: BLE001 -- whatever a unit raises is its caller's
                    unit.error = _unavailable(e) if isinstance(e, sqlite3.Error) and _is_ours(e) else e
            self._cursor.execute("COMMIT")
        except sqlite3.Error as e:
            self._rollback()
            for unit in group:
                unit.error = _unavailable(e)


class SQLiteStore:
    """The store in one SQLite file. It must have been migrated.

    Two readers, because one that is busy with a list must not delay an attestation; no more, because threads
    that share the interpreter make each other slower (docs/adr/0004).

    Args:
        path: The database file.
        settings: How to behave.
    """

    def __init__(self, path: Path, settings: StoreSettings) -> None:
        with contextlib.ExitStack() as opened:  # all of them, or none stays open
            writing, reading, scanning = (
                opened.enter_context(closing(connect(path, settings, read_only=read_only)))
                for read_only in (False, True, True)
            )
            opened.pop_all()
        self._writer = _Writer("store-writer", writing, settings)
        self._reader = _Reader("store-reader", reading, settings)
        self._scanner = _Reader("store-scanner", scanning, settings)

    async def write(self, work: Callable[[Tx], T]) -> T:
        """See `Store.write`."""
        return await _ask(self._writer, work)

    async def read(self, work: Callable[[Tx], T]) -> T:
        """See `Store.read`."""
        return await _ask(self._reader, work)

    async def scan(self, work: Callable[[Tx], T]) -> T:
        """See `Store.scan`."""
        return await _ask(self._scanner, work)

    def write_sync(self, work: Callable[[Tx], T]) -> T:
        """See `Store.write_sync`."""
        return _ask_sync(self._writer, work)

    def read_sync(self, work: Callable[[Tx], T]) -> T:
        """See `Store.read_sync`."""
        return _ask_sync(self._reader, work)

    async def aclose(self) -> None:
        """See `Store.aclose`."""
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """See `Store.close`."""
        for thread in (self._reader, self._scanner, self._writer):
            thread.close()


async def _ask(thread: _Thread, work: Callable[[Tx], T]) -> T:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    thread.submit(_Unit(work, future, loop))
    return await future


def _ask_sync(thread: _Thread, work: Callable[[Tx], T]) -> T:
    future: Future[T] = Future()
    thread.submit(_Unit(work, future, None))
    return future.result()
