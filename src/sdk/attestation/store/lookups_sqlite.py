"""Look-ups on SQLite: a connection that cannot write, and that asks before it reads, calls or goes on."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Final

from attestation.errors import AttestationError, QueryFailed, StoreUnavailable
from attestation.store.lookups import VALUE_BYTES, Found, LookUp, too_slow
from attestation.store.queues import first_line, unavailable
from attestation.store.unusable import unusable

_AGAIN_SECONDS: Final = 0.02
"""A statement that is late is interrupted again after so long: one that was just about to begin did not notice."""

_HOLD_SECONDS: Final = 0.000_5
"""So long our functions may take the interpreter again and again,"""

_YIELD_SECONDS: Final = 0.000_1
"""and then they leave it so long to whoever waits for it."""

_AT_A_TIME: Final = 64
_FAILED: Final = frozenset({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH})
"""What the statement did wrong, and not the database."""


class SQLiteLooker:
    """A connection to the file at *path*; see `Looker`.

    Args:
        path: The database file.
        functions: Those that are added to SQLite's own: by name, how many arguments (-1: any) and what computes it.
    """

    def __init__(self, path: Path, functions: Mapping[str, tuple[int, Callable[..., Any]]]) -> None:
        self._path, self._functions = path, functions
        self._connection: sqlite3.Connection | None = None
        self._wanted: LookUp | None = None
        self._until = 0.0
        self._yields_at = 0.0

    def look_up(self, wanted: LookUp) -> Found:
        """See `Looker.look_up`."""
        self._wanted = wanted
        if self._connection is None:
            self._connection = self._open()
        self._until = time.monotonic() + wanted.seconds
        self._yields_at = 0.0
        try:
            with _ended_in_time(self._connection, wanted.seconds):
                return self._looked_up(self._connection, wanted)
        except (sqlite3.Error, MemoryError) as e:
            raise self._told(e, wanted) from e

    def _looked_up(self, connection: sqlite3.Connection, wanted: LookUp) -> Found:
        # Without a transaction of its own: the statement is one, and ends with its cursor.
        asked = f"EXPLAIN QUERY PLAN {wanted.sql}" if wanted.explain else wanted.sql
        with closing(connection.execute(asked, wanted.parameters)) as cursor:
            rows: list[tuple[Any, ...]] = []
            left = wanted.size_bytes
            while more := cursor.fetchmany(_AT_A_TIME):
                for row in more:
                    left -= sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)
                    if left < 0 or len(rows) == wanted.rows:
                        return Found(rows=rows, is_cut=True)
                    rows.append(row)
            return Found(rows=rows, is_cut=False)

    def close(self) -> None:
        """See `Looker.close`."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = None
        try:
            connection = sqlite3.connect(
                f"{self._path.absolute().as_uri()}?mode=ro",
                uri=True,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=0,  # no two are the same; and each is to be asked about anew
            )
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES)
            connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            connection.setlimit(sqlite3.SQLITE_LIMIT_WORKER_THREADS, 0)
            for pragma in ("query_only=ON", "trusted_schema=OFF", "cell_size_check=ON"):
                connection.execute(f"PRAGMA {pragma}")
            # Made at its first use, which the authorizer would refuse: making a table is what it looks like.
            connection.execute("SELECT value FROM json_each('[]')").fetchall()
            for name, (arguments, compute) in self._functions.items():
                connection.create_function(name, arguments, self._in_time(compute), deterministic=True)
        except sqlite3.Error as e:
            if connection is not None:
                connection.close()
            raise unusable(self._path, e) from e
        connection.set_authorizer(self._may)
        return connection

    def _is_late(self) -> bool:
        return time.monotonic() > self._until

    def _in_time(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """Return *compute*, which is not begun when it is late, and lets others have the interpreter again and again.

        SQLite calls it a million times a second. Whoever waits for the interpreter would have it only after 5 ms, each
        time: it is taken again sooner than somebody else wakes up.
        """

        @wraps(compute)
        def computed(*given: Any) -> Any:
            now = time.monotonic()
            if now > self._yields_at:
                if now > self._until:
                    raise TimeoutError
                time.sleep(_YIELD_SECONDS)
                self._yields_at = time.monotonic() + _HOLD_SECONDS
            return compute(*given)

        return computed

    def _may(
        self, what: int, one: str | None, two: str | None, _database: str | None, _within: str | None
    ) -> int:
        """Tell SQLite whether the statement that it compiles may do this."""
        wanted = self._wanted
        assert wanted is not None
        match what:
            case sqlite3.SQLITE_SELECT:
                return sqlite3.SQLITE_OK
            case sqlite3.SQLITE_READ:
                # Who counts rows reads no column of them.
                of_it = two == "" and any(table == one for table, _ in wanted.reads)
                allowed = of_it or (one, two) in wanted.reads
            case sqlite3.SQLITE_FUNCTION:
                allowed = two in self._functions or two in wanted.functions
            case _:
                allowed = False
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    def _told(self, error: sqlite3.Error | MemoryError, wanted: LookUp) -> AttestationError:
        code = getattr(error, "sqlite_errorcode", None)
        if code == sqlite3.SQLITE_INTERRUPT or self._is_late():
            return too_slow(wanted)
        if code in _FAILED or isinstance(error, MemoryError | sqlite3.DataError):
            return QueryFailed(f"the database does not compute this: {first_line(error)}")
        if code == sqlite3.SQLITE_AUTH:
            return QueryFailed("the query asks for what it may not read")
        self.close()
        told: StoreUnavailable = unavailable(error)
        return told


@contextmanager
def _ended_in_time(connection: sqlite3.Connection, seconds: float) -> Iterator[None]:
    """Interrupt what *connection* does after *seconds*.

    From a thread that sleeps: a progress handler would take the interpreter from those who attest, again and again.
    """
    done = threading.Event()

    def watch() -> None:
        if not done.wait(seconds):
            connection.interrupt()
            while not done.wait(_AGAIN_SECONDS):
                connection.interrupt()

    watching = threading.Thread(target=watch, name="store-look-up-end", daemon=True)
    watching.start()
    try:
        yield
    finally:
        done.set()
        watching.join()  # else it could interrupt the next one
