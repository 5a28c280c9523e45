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
from pathlib import Path
from random import uniform
from typing import Any, Final

import psycopg
from psycopg import errors
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8Dumper
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from attestation.clock import from_micros
from attestation.errors import StoreBusy, StoreUnavailable
from attestation.store.base import StoreSettings
from attestation.store.lookups import AT_ONCE
from attestation.store.lookups_postgres import PostgresLooker
from attestation.store.pipeline import Connection, Missed, NotAlone, Pipeline, Sent
from attestation.store.queues import QueuedStore, Unit, first_line, refuse, unavailable
from attestation.store.remote_clock import RemoteClock
from attestation.store.sql import Executor
from attestation.store.tx import Tx

WRITE_LOCK: Final = 0x69746C2D61747374
"""The advisory lock of every transaction that writes: "itl-atst"."""

READERS: Final = 4
"""Threads for reads by key; each waits for the network while the others compute."""

_ANSWER_SECONDS: Final = 10
"""For so long a server may be silent: then the connection is lost.

Where the server's host is gone, TCP finds that out. A pooler, a balancer or a frozen server keeps the connection open.
"""

_BACKOFF_SECONDS: Final = 0.02
"""Most wait after the first conflict with a stranger; twice as long after each further one."""

_STALLED_SECONDS: Final = 3
"""For so long a process may keep the write lock without a word: then the server takes it away.

Less than the busy timeout: the others wait, and are not refused.
"""

_NOW: Final = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
"""The server's clock, in microseconds: of all that share a database it is the one that counts (docs/adr/0107)."""

_DURABLY: Final = """
    CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', true) END
"""
"""Lets the commit of this transaction be answered when it is stored, whatever the server's own settings are."""

_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_LOCK: Final = f"""
    SELECT set_config('lock_timeout', $1, true), set_config('idle_in_transaction_session_timeout', $2, true),
        {_DURABLY},
        pg_advisory_xact_lock({WRITE_LOCK}), pg_current_xact_id()::text, {_NOW}
"""
"""Takes the lock and answers with the number of the transaction and the time.

What it sets holds for the transaction only: a pooler lends a session to many. What was answered survives a crash,
whatever the server's own settings are.
"""

_MOVED: Final = "SELECT moved_to FROM database_identity WHERE moved_at IS NOT NULL AND id = $1"
"""A statement of its own behind the lock: what it sees is as new as the lock."""

_WHO_ANSWERS: Final = (
    f"SELECT pg_backend_pid(), {_NOW}, pg_postmaster_start_time(), stats_reset "  # noqa: S608 -- ours
    "FROM pg_stat_bgwriter"
)
"""The last two change when the server starts, and when it recovers from a crash: then it may give a number of a
transaction away again."""

_END_OWN: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE backend_xid = $1::xid8::xid AND state = 'idle in transaction'"
)
"""Ends a transaction that we began on a connection since lost. The server may not know yet, and it has the lock."""

_LIKE_IT: Final = f"SELECT {_DURABLY}, pg_logical_emit_message(true, 'itl-attestation', '')"
"""Commits something: once that is answered, all that was committed before is on the synchronous standbys too."""

_SNAPSHOT: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

_SCHEMES: Final = frozenset({"postgresql", "postgresql+psycopg"})


def parameters(url: str) -> dict[str, Any]:
    """Return what libpq is told of the database at *url*: `postgresql+psycopg://user@host/database`.

    Its query goes to libpq as it is (`?sslmode=verify-full&sslrootcert=/…`), but for `password_file`: the password is
    what that file says now.

    Raises:
        ValueError: No such URL. It repeats nothing of it, which may carry a password.
        StoreUnavailable: The file with the password cannot be read.
    """
    parsed = None
    with contextlib.suppress(ArgumentError, ValueError):
        parsed = make_url(url)
    if (
        parsed is None
        or parsed.drivername not in _SCHEMES
        or not parsed.database
        or "@" in (parsed.host or "")
    ):
        raise ValueError("a database of PostgreSQL is named postgresql+psycopg://USER@HOST/DATABASE")
    given = {**parsed.translate_connect_args(username="user", database="dbname"), **parsed.query}
    if (file := given.pop("password_file", None)) is not None:
        try:
            given["password"] = Path(file).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as e:
            raise StoreUnavailable(
                f"the password of the database cannot be read from {file}: {type(e).__name__}"
            ) from e
    return given


def options(url: str, settings: StoreSettings) -> dict[str, Any]:
    """Return `parameters`, and those without which a connection would wait for ever, or meet a standby.

    Raises:
        ValueError, StoreUnavailable: See `parameters`.
    """
    return {
        "connect_timeout": max(2, round(settings.busy_timeout_seconds)),  # as long as anybody is to wait
        "keepalives_idle": _ANSWER_SECONDS,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": _ANSWER_SECONDS * 1000,
        "application_name": "itl-attestation",
        "client_encoding": "utf8",
        "target_session_attrs": "read-write",  # of several hosts, the primary: a standby knows less than was answered
        **parameters(url),
    }


def connect(url: str, settings: StoreSettings) -> Connection:
    """Open a connection with every setting that our guarantees need; transactions are begun by hand.

    Raises:
        ValueError: Not the URL of a database of PostgreSQL.
        StoreUnavailable: It does not let us in, or not in time.
    """
    given = options(url, settings)
    try:
        connection = psycopg.connect(**given, autocommit=True)
    except psycopg.Error as e:
        raise unavailable(e) from e
    connection.adapters.register_dumper(int, Int8Dumper)  # whatever its size: one plan for each statement
    return connection


def _told(error: BaseException) -> BaseException:
    """Return what the caller of a unit that raised *error* is told.

    What the database refuses stays what it is, without the lines that quote rows, and secrets in them.
    """
    if isinstance(error, psycopg.IntegrityError | psycopg.DataError):
        return type(error)(first_line(error)).with_traceback(error.__traceback__)
    return unavailable(error) if isinstance(error, psycopg.Error) else error


def _is_all_of_theirs(error: BaseException) -> bool:
    """Return True if *error* is no unit's own: a conflict with a stranger, or a lock that another one keeps."""
    state = error.sqlstate or "" if isinstance(error, psycopg.Error) else ""
    return state.startswith("40") or state == errors.LockNotAvailable.sqlstate


class _Worker:
    """A connection, made anew where it was lost; subclasses say what happens to a group of units."""

    _life: list[Any] | None = None
    """Tells one run of the server from the next."""

    def __init__(self, url: str, settings: StoreSettings, clock: RemoteClock) -> None:
        self._url, self._settings, self._clock = url, settings, clock
        self._open()

    def _open(self) -> None:
        silent = self._settings.busy_timeout_seconds + _ANSWER_SECONDS  # the lock, then the answer
        pipeline = Pipeline(connect(self._url, self._settings), silent_seconds=silent)
        asked = self._clock.asking()
        try:
            pipeline.execute(_WHO_ANSWERS, ())
            pid, now, *life = pipeline.fetchall()[0]
        except psycopg.Error as e:
            pipeline.close()
            raise unavailable(e) from e
        self._clock.hear(from_micros(now), asked)
        # Behind a pooler the next statement may meet another session, which was never told of what was prepared.
        pipeline.prepares = pid == pipeline.connection.info.backend_pid
        self._pipeline, self._life = pipeline, life
        sql = Executor(pipeline, "postgresql")
        self._tx = Tx(sql, results_kept=self._settings.results_kept, clock=self._clock)

    def close(self) -> None:
        """See `Worker.close`."""
        self._pipeline.close()

    def serve(self, group: list[Unit]) -> None:
        """See `Worker.serve`."""
        failure: StoreUnavailable | None = None
        for attempt in range(self._settings.commit_attempts):
            try:
                if self._pipeline.closed:
                    self._open()
                self._run(group)
            except StoreUnavailable as e:
                failure = e
                break  # it has waited for as long as anybody is to wait
            except errors.LockNotAvailable as e:
                self._rollback()
                failure = StoreBusy(
                    f"another program has kept the database locked for {self._settings.busy_timeout_seconds:g} s: "
                    "nothing was written, and nothing of this will be"
                )
                failure.__cause__ = e
                break  # likewise
            except psycopg.Error as e:
                failure = unavailable(e)
                self._rollback()
                time.sleep(uniform(0, _BACKOFF_SECONDS * 2**attempt))  # noqa: S311 -- else two meet again
            else:
                return
        assert failure is not None
        refuse(group, failure)

    def _run(self, group: list[Unit]) -> None:
        raise NotImplementedError

    def _rollback(self) -> None:
        # First what waits for an answer yet: what fails there would take the ROLLBACK behind it along.
        with contextlib.suppress(psycopg.Error, Missed):
            self._pipeline.sync()
        with contextlib.suppress(psycopg.Error):  # what it would undo is not committed either way
            self._pipeline.run("ROLLBACK")

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
            if isinstance(e, psycopg.Error) and (self._pipeline.closed or _is_all_of_theirs(e)):
                raise
            unit.error = _told(e)
        if unit.error is None and self._pipeline.status == TransactionStatus.INERROR:
            unit.error = StoreUnavailable("a statement failed, and the unit went on")


class _Writer(_Worker):
    """Commits groups."""

    _number: str | None = None
    """Of the newest transaction whose beginning was answered."""

    def _open(self) -> None:
        before = self._life
        super()._open()
        if self._number is not None and self._life == before:
            with contextlib.suppress(psycopg.Error):  # then it ends by itself
                self._pipeline.execute(_END_OWN, (self._number,))

    def _run(self, group: list[Unit]) -> None:
        if not self._commit_together(group):
            self._commit_apart(group)

    def _commit_together(self, group: list[Unit]) -> bool:
        """Run *group* in one transaction, without waiting for what nobody looks at.

        Returns:
            False where anything failed: whose it is shows where each unit has a savepoint. Nothing is stored.

        Raises:
            psycopg.Error: Nothing of it is stored.
            StoreUnavailable: See `_commit`.
        """
        pipeline = self._pipeline
        pipeline.begin(trusting=True)
        begun = self._begin()
        told = False
        try:
            for unit in group:
                self._tx.begin()
                unit.value, unit.error = unit.work(self._tx), None
                told = self._tx.settle() or told
            pipeline.sync()
        except BaseException as e:  # whatever a unit raises is its caller's, never the writer's
            if isinstance(e, psycopg.Error) and (pipeline.closed or _is_all_of_theirs(e)):
                raise
            pipeline.failed = True
        if pipeline.failed:
            self._rollback()
            return False
        self._commit(begun, told=told)
        return True

    def _commit_apart(self, group: list[Unit]) -> None:
        """Run *group* in one transaction, each unit in a savepoint, and wait for each statement.

        Raises:
            psycopg.Error, StoreUnavailable: See `_commit_together`.
        """
        pipeline = self._pipeline
        pipeline.begin(trusting=False)
        begun = self._begin()
        pipeline.send("SAVEPOINT unit")
        pipeline.sync()
        told = False
        for unit in group:
            self._tx.begin()
            with self._telling(unit):
                unit.value = unit.work(self._tx)
                told = self._tx.settle() or told
            pipeline.send("RELEASE unit" if unit.error is None else "ROLLBACK TO unit")
            if unit.error is None:
                pipeline.send("SAVEPOINT unit")
        pipeline.sync()
        self._commit(begun, told=told)

    def _begin(self) -> Sent:
        """Send what takes the write lock."""
        self._asked = self._clock.asking()
        self._pipeline.send(_BEGIN)
        seconds = (self._settings.busy_timeout_seconds, _STALLED_SECONDS)
        begun = self._pipeline.send(_LOCK, tuple(f"{each * 1000:.0f}" for each in seconds))
        self._moved = self._pipeline.send(_MOVED, (1,))
        return begun

    def _commit(self, begun: Sent, *, told: bool) -> None:
        """Commit.

        Raises:
            psycopg.Error: Nothing is stored.
            StoreUnavailable: The server went away in the commit, and does not come back to say what became of it. Or
                the database went on elsewhere.
        """
        *_, number, now = self._pipeline.rows_of(begun)[0]
        self._number = number
        self._clock.hear(from_micros(now), self._asked)
        # Who was cut off while it was copied would make a second history of its log. No start looks for us.
        if self._pipeline.rows_of(self._moved) and not self._settings.moved_too:
            self._rollback()
            raise StoreUnavailable(
                "this database was copied, and goes on elsewhere: nothing is written here any more"
            )
        try:
            self._pipeline.run("COMMIT")
        except psycopg.Error:
            if not (self._pipeline.closed and self._was_committed(number)):
                raise
        if told and self._settings.on_authority is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody signs there
                self._settings.on_authority()

    def _was_committed(self, number: str) -> bool:
        """Ask on a new connection what became of a transaction whose COMMIT was not answered."""
        deadline = time.monotonic() + self._settings.busy_timeout_seconds
        life, error = self._life, None
        while time.monotonic() < deadline:
            try:
                if self._pipeline.closed:
                    self._open()
                self._pipeline.execute("SELECT pg_xact_status($1::xid8)", (number,))
                found = self._pipeline.fetchone()
                if found == ("aborted",):
                    return False
                if found == ("committed",) and self._life == life:
                    # A session that is ended while it waits for a standby leaves what only this server has.
                    self._pipeline.execute(_LIKE_IT, ())
                    return True
            except errors.InvalidParameterValue:
                return False  # the server crashed, and does not know the number any more
            except (StoreUnavailable, psycopg.Error) as e:
                error = e
            time.sleep(0.05)
        raise StoreUnavailable(
            "the connection to the database was lost while it stored this: whether it did is not known"
        ) from error


class _Reader(_Worker):
    """Answers reads. One statement is a snapshot by itself; who asks with several gets one for all of them."""

    def __init__(self, url: str, settings: StoreSettings, clock: RemoteClock) -> None:
        super().__init__(url, settings, clock)
        self._several: set[object] = set()  # code of units that ask with several

    def _run(self, group: list[Unit]) -> None:
        for unit in group:
            with self._telling(unit):
                code = getattr(unit.work, "__code__", None)
                if code not in self._several:
                    self._pipeline.begin(alone=True)
                    try:
                        unit.value = unit.work(self._tx)
                    except NotAlone:
                        self._several.add(code)
                if code in self._several:
                    self._pipeline.begin()
                    self._pipeline.send(_SNAPSHOT)
                    unit.value = unit.work(self._tx)
            if self._pipeline.status != TransactionStatus.IDLE:
                self._pipeline.run("ROLLBACK")


class PostgresStore(QueuedStore):
    """The store in one PostgreSQL database. It must have been migrated.

    Args:
        url: `postgresql://user@host/database`.
        settings: How to behave.
    """

    def __init__(self, url: str, settings: StoreSettings) -> None:
        clock = RemoteClock()
        with contextlib.ExitStack() as opened:  # all of them, or none stays open
            writer = opened.enter_context(closing(_Writer(url, settings, clock)))
            readers = [
                opened.enter_context(closing(_Reader(url, settings, clock))) for _ in range(READERS + 1)
            ]
            opened.pop_all()
        super().__init__(
            settings,
            clock=clock,
            dialect="postgresql",
            writers=[writer],
            readers=readers[1:],
            scanners=readers[:1],
            lookers=[PostgresLooker(lambda: connect(url, settings)) for _ in range(AT_ONCE)],
        )
