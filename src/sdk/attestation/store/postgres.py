"""The store on PostgreSQL: who writes has the one write lock, so units run one after the other, as on SQLite.

Every unit that writes runs in a transaction that began by taking one advisory lock of the database, and each of its
statements sees all that was committed before: with READ COMMITTED and the lock no unit ever meets another
(docs/adr/0087). Reads have a snapshot each and take no lock.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8Dumper
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from attestation.errors import StoreBusy, StoreUnavailable
from attestation.store.base import StoreSettings
from attestation.store.queues import QueuedStore, Unit, first_line, refuse, unavailable
from attestation.store.sql import Executor
from attestation.store.tx import Tx

Connection = psycopg.Connection[tuple[Any, ...]]

WRITE_LOCK: Final = 0x69746C2D61747374
"""The advisory lock of every transaction that writes: "itl-atst"."""

READERS: Final = 4
"""Threads for reads by key; each waits for the network while the others compute."""

_ANSWER_SECONDS: Final = 10
"""For so long a server may be silent: then the connection is lost."""

_STALLED_SECONDS: Final = 30
"""For so long a process may keep the write lock without a word: then the server takes it away."""

_BEGIN: Final = (
    "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;"
    f"SELECT pg_advisory_xact_lock({WRITE_LOCK});"
    "SAVEPOINT unit;"
    "SELECT pg_current_xact_id()::text"
)
_LIFE: Final = "SELECT pg_postmaster_start_time(), stats_reset FROM pg_stat_bgwriter"
"""Changes when the server starts, and when it recovers from a crash: then it may give a number away again."""

_SNAPSHOT: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


def parameters(url: str) -> dict[str, Any]:
    """Return what libpq is told of the database at *url*: `postgresql://user@host/database`.

    Raises:
        ValueError: No such URL. It repeats nothing of it, which may carry a password.
    """
    parsed = None
    with contextlib.suppress(ArgumentError, ValueError):
        parsed = make_url(url)
    if parsed is None or parsed.drivername != "postgresql" or not parsed.database:
        raise ValueError("a database of PostgreSQL is named postgresql://USER@HOST/DATABASE")
    return {**parsed.translate_connect_args(username="user", database="dbname"), **parsed.query}


def connect(url: str, settings: StoreSettings) -> Connection:
    """Open a connection with every setting that our guarantees need; transactions are begun by hand.

    Raises:
        ValueError: Not the URL of a database of PostgreSQL.
        StoreUnavailable: It does not let us in, or not in time.
    """
    given = {
        "connect_timeout": max(2, round(settings.busy_timeout_seconds)),  # as long as anybody is to wait
        "keepalives_idle": _ANSWER_SECONDS,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": _ANSWER_SECONDS * 1000,
        "application_name": "itl-attestation",
        "client_encoding": "utf8",
        **parameters(url),
    }
    connection: Connection | None = None
    try:
        connection = psycopg.connect(**given, autocommit=True)
        connection.prepared_max = 512  # every statement of ours
        connection.adapters.register_dumper(int, Int8Dumper)  # whatever its size: one plan for each statement
        # What was answered survives a crash, whatever the server's own settings are.
        connection.execute(
            "SELECT set_config('synchronous_commit', 'on', false)"
            " WHERE current_setting('synchronous_commit') = 'off'"
        )
        _set(connection, "lock_timeout", settings.busy_timeout_seconds)
    except psycopg.Error as e:
        if connection is not None:
            connection.close()
        raise unavailable(e) from e
    return connection


def _set(connection: Connection, name: str, seconds: float) -> None:
    connection.execute("SELECT set_config(%s, %s, false)", (name, str(round(seconds * 1000))))


def _told(error: BaseException) -> BaseException:
    """Return what the caller of a unit that raised *error* is told.

    What the database refuses stays what it is, without the lines that quote rows, and secrets in them.
    """
    if isinstance(error, psycopg.IntegrityError | psycopg.DataError):
        return type(error)(first_line(error)).with_traceback(error.__traceback__)
    return unavailable(error) if isinstance(error, psycopg.Error) else error


class _Worker:
    """A connection, made anew where it was lost; subclasses say what happens to a group of units."""

    def __init__(self, url: str, settings: StoreSettings) -> None:
        self._url, self._settings = url, settings
        self._open()

    def _open(self) -> None:
        self._connection = connect(self._url, self._settings)
        self._cursor = self._connection.cursor()
        self._tx = Tx(Executor(self._cursor, "postgresql"), results_kept=self._settings.results_kept)

    def close(self) -> None:
        """See `Worker.close`."""
        self._connection.close()

    def serve(self, group: list[Unit]) -> None:
        """See `Worker.serve`."""
        failure: StoreUnavailable | None = None
        for _ in range(self._settings.commit_attempts):
            try:
                if self._connection.closed:
                    self._open()
                self._run(group)
            except StoreUnavailable as e:
                failure = e
                break  # it has waited for as long as anybody is to wait
            except psycopg.Error as e:
                failure = unavailable(e)
                self._rollback()
            else:
                return
        assert failure is not None
        refuse(group, failure)

    def _run(self, group: list[Unit]) -> None:
        raise NotImplementedError

    def _rollback(self) -> None:
        with contextlib.suppress(psycopg.Error):  # what it would undo is not committed either way
            self._execute("ROLLBACK")

    def _execute(self, statements: str) -> None:
        self._cursor.execute(statements.encode(), prepare=False)

    def _status(self) -> int:
        return self._connection.pgconn.transaction_status

    @contextlib.contextmanager
    def _telling(self, unit: Unit) -> Iterator[None]:
        """Write down what *unit* raises: it is its caller's, unless it is the whole group's.

        Raises:
            psycopg.Error: The connection is lost, or the transaction met another one: both fail every unit.
        """
        unit.error = None
        try:
            yield
        except BaseException as e:
            if isinstance(e, psycopg.Error) and (
                self._connection.closed or (e.sqlstate or "").startswith("40")
            ):
                raise
            unit.error = _told(e)
        if unit.error is None and self._status() == TransactionStatus.INERROR:
            unit.error = StoreUnavailable("a statement failed, and the unit went on")


class _Writer(_Worker):
    """Commits groups."""

    def _open(self) -> None:
        super()._open()
        _set(self._connection, "idle_in_transaction_session_timeout", _STALLED_SECONDS)
        self._life = self._cursor.execute(_LIFE).fetchone()

    def _run(self, group: list[Unit]) -> None:
        """Run *group* in one transaction.

        Raises:
            psycopg.Error: Nothing of it is stored.
            StoreBusy: Nothing of it was begun.
            StoreUnavailable: The server went away in the commit, and does not come back to say what became of it.
        """
        number = self._begin()
        told = False
        again = ""  # the savepoint of the first unit is part of `_BEGIN`
        for unit in group:
            if again:
                self._execute(again)
            self._tx.begin()
            with self._telling(unit):
                unit.value = unit.work(self._tx)
                told = self._tx.settle() or told
            if unit.error is None:
                again = "RELEASE unit; SAVEPOINT unit"
            else:
                self._execute("ROLLBACK TO unit")
                again = ""
        try:
            self._execute("COMMIT")
        except psycopg.Error:
            if not (self._connection.closed and self._was_committed(number)):
                raise
        if told and self._settings.on_authority is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody signs there
                self._settings.on_authority()

    def _begin(self) -> str:
        """Take the write lock, and return the number of the transaction."""
        try:
            self._execute(_BEGIN)
        except errors.LockNotAvailable as e:
            self._rollback()
            raise StoreBusy(
                f"another program has kept the database locked for {self._settings.busy_timeout_seconds:g} s: "
                "nothing was written, and nothing of this will be"
            ) from e
        while self._cursor.nextset():
            pass
        row = self._cursor.fetchone()
        assert row is not None
        return str(row[0])

    def _was_committed(self, number: str) -> bool:
        """Ask on a new connection what became of a transaction whose COMMIT was not answered."""
        deadline = time.monotonic() + self._settings.busy_timeout_seconds
        life, error = self._life, None
        while time.monotonic() < deadline:
            try:
                if self._connection.closed:
                    self._open()
                found = self._cursor.execute("SELECT pg_xact_status(%s::xid8)", (number,)).fetchone()
                if found == ("aborted",) or (found == ("committed",) and self._life == life):
                    return found == ("committed",)
            except errors.InvalidParameterValue:
                return False  # the server crashed, and does not know the number any more
            except (StoreUnavailable, psycopg.Error) as e:
                error = e
            time.sleep(0.05)
        raise StoreUnavailable(
            "the connection to the database was lost while it stored this: whether it did is not known"
        ) from error


class _Reader(_Worker):
    """Answers reads: all that wait, on one snapshot that is younger than the youngest of them."""

    def _run(self, group: list[Unit]) -> None:
        self._execute(_SNAPSHOT)
        for unit in group:
            with self._telling(unit):
                unit.value = unit.work(self._tx)
            if self._status() == TransactionStatus.INERROR:
                self._execute(f"ROLLBACK; {_SNAPSHOT}")
        self._execute("COMMIT")


class PostgresStore(QueuedStore):
    """The store in one PostgreSQL database. It must have been migrated.

    Args:
        url: `postgresql://user@host/database`.
        settings: How to behave.
    """

    def __init__(self, url: str, settings: StoreSettings) -> None:
        with contextlib.ExitStack() as opened:  # all of them, or none stays open
            writer = opened.enter_context(closing(_Writer(url, settings)))
            readers = [opened.enter_context(closing(_Reader(url, settings))) for _ in range(READERS + 1)]
            opened.pop_all()
        super().__init__(settings, writers=[writer], readers=readers[1:], scanners=readers[:1])
