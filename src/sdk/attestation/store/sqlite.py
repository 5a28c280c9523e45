"""The store on SQLite: one writer thread that commits queued units in groups, and readers beside it.

The writer takes every unit that waits, runs them inside one `BEGIN IMMEDIATE` … `COMMIT`, and answers only after the
commit: durable, and one fsync for many. Where a unit fails they are run again, each in its own savepoint. Several
processes on one file work: they take turns by SQLite's write lock, and whoever has it sees everything committed before.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from attestation.clock import SystemClock
from attestation.errors import StoreBusy, StoreUnavailable
from attestation.store.base import StoreSettings
from attestation.store.lookups import AT_ONCE
from attestation.store.lookups_sqlite import SQLiteLooker
from attestation.store.queues import QueuedStore, Unit, refuse, unavailable
from attestation.store.sql import Executor
from attestation.store.tx import Tx
from attestation.store.unusable import unusable

_ASK_AGAIN_SECONDS = 0.0005

_CLOCK = SystemClock()
"""All who share the file are on one computer."""


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


def _is_ours(error: BaseException) -> bool:
    """Return True if the database failed, False if the unit did (constraints, its own errors)."""
    return isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError


class _Worker:
    """A connection; subclasses say what happens to a group of units."""

    def __init__(self, path: Path, settings: StoreSettings, *, read_only: bool) -> None:
        self._settings = settings
        self._connection = connect(path, settings, read_only=read_only)
        self._cursor = self._connection.cursor()
        self._tx = Tx(Executor(self._cursor, "sqlite"), results_kept=settings.results_kept, clock=_CLOCK)

    def close(self) -> None:
        """See `Worker.close`."""
        self._connection.close()

    def _rollback(self) -> None:
        if self._connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):  # what it would undo is not committed either way
                self._cursor.execute("ROLLBACK")


class _Writer(_Worker):
    """Commits groups."""

    def __init__(self, path: Path, settings: StoreSettings) -> None:
        super().__init__(path, settings, read_only=False)
        self._cursor.execute("PRAGMA busy_timeout=0")  # `_begin` waits in its place

    def serve(self, group: list[Unit]) -> None:
        """See `Worker.serve`."""
        failure: StoreUnavailable | None = None
        for _ in range(self._settings.commit_attempts):
            try:
                self._commit(group)
            except StoreBusy as e:
                failure = e
                break  # `_begin` has waited for as long as anybody is to wait
            except sqlite3.Error as e:
                failure = unavailable(e)
                self._rollback()
            else:
                return
        assert failure is not None
        refuse(group, failure)

    def _commit(self, group: list[Unit], *, apart: bool = False) -> None:
        """Run *group* in one transaction; once one of its units failed, again, with a savepoint for each.

        Raises:
            sqlite3.Error: Nothing of it is stored.
            StoreBusy: Nothing of it was begun.
        """
        execute = self._cursor.execute
        tx = self._tx
        self._begin()
        told = False
        for unit in group:
            if apart:
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
                if not apart:
                    # It is rare, and two statements for each unit are not cheap.
                    execute("ROLLBACK")
                    break
                execute("ROLLBACK TO unit")
                unit.error = unavailable(e) if isinstance(e, sqlite3.Error) and _is_ours(e) else e
            if apart:
                execute("RELEASE unit")
        else:
            execute("COMMIT")
            if told and self._settings.on_authority is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody signs there
                    self._settings.on_authority()
            return
        # Not above: within `except`, what other units raise would carry this one's error as its context.
        self._commit(group, apart=True)

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


class _Reader(_Worker):
    """Answers reads: all that wait, on one snapshot that is younger than the youngest of them."""

    def serve(self, group: list[Unit]) -> None:
        """See `Worker.serve`."""
        try:
            self._cursor.execute("BEGIN")
            for unit in group:
                try:
                    unit.value = unit.work(self._tx)
                except BaseException as e:  # noqa: BLE001 -- whatever a unit raises is its caller's
                    unit.error = unavailable(e) if isinstance(e, sqlite3.Error) and _is_ours(e) else e
            self._cursor.execute("COMMIT")
        except sqlite3.Error as e:
            self._rollback()
            refuse(group, unavailable(e))


class SQLiteStore(QueuedStore):
    """The store in one SQLite file. It must have been migrated.

    One reader of each kind, because threads that share the interpreter make each other slower (docs/adr/0004).

    Args:
        path: The database file.
        settings: How to behave.
    """

    def __init__(self, path: Path, settings: StoreSettings) -> None:
        with contextlib.ExitStack() as opened:  # all of them, or none stays open
            writer = opened.enter_context(closing(_Writer(path, settings)))
            reader, scanner = (
                opened.enter_context(closing(_Reader(path, settings, read_only=True))) for _ in range(2)
            )
            opened.pop_all()
        super().__init__(
            settings,
            clock=_CLOCK,
            dialect="sqlite",
            writers=[writer],
            readers=[reader],
            scanners=[scanner],
            lookers=[SQLiteLooker(path, settings.functions) for _ in range(AT_ONCE)],
        )
