"""A file of SQLite as one end of a copy."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Table, create_engine
from sqlalchemy.pool import NullPool

from attestation.clock import SystemClock
from attestation.errors import StoreBusy, StoreUnavailable
from attestation.store.base import StoreSettings
from attestation.store.copying.rows import Row, Source, Target, numbered, order
from attestation.store.migrate import Branch, make_schema
from attestation.store.sql import Executor
from attestation.store.sqlite import connect
from attestation.store.tx import Tx
from attestation.store.unusable import unusable


class _SQLite(Source, Target):
    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path
        self._cursor = connection.cursor()
        self.tx = Tx(Executor(connection.cursor(), "sqlite"), results_kept=1, clock=SystemClock())
        self._learn(
            name
            for (name,) in self._cursor.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table'"
            ).fetchall()
        )

    def value(self, statement: str) -> Any:
        row = self._connection.execute(statement).fetchone()
        return None if row is None else row[0]

    def rows(self, table: Table) -> Iterator[Row]:
        names = ", ".join(f'"{each.name}"' for each in table.columns)
        return self._connection.execute(
            f'SELECT {names} FROM "{table.name}" ORDER BY {order(table, "")}'  # noqa: S608 -- names of ours
        )

    def last_number(self, table: Table) -> int:
        column = numbered(table)
        assert column is not None
        largest = self.value(f'SELECT max("{column.name}") FROM "{table.name}"') or 0  # noqa: S608 -- names of ours
        if "sqlite_sequence" not in self.tables:
            return int(largest)
        return max(largest, self.value(f"SELECT seq FROM sqlite_sequence WHERE name = '{table.name}'") or 0)  # noqa: S608 -- a name of ours

    def mark_moved(self, to: str, at_us: int) -> None:
        self._connection.execute("UPDATE database_identity SET moved_to = ?, moved_at = ?", (to, at_us))
        self._connection.execute("COMMIT")

    def run(self, statement: str) -> None:
        self._connection.execute(statement)

    def write(self, table: Table, rows: Iterable[Row]) -> None:
        names = ", ".join(f'"{each.name}"' for each in table.columns)
        places = ", ".join("?" * len(table.columns))
        try:
            self._connection.executemany(f'INSERT INTO "{table.name}" ({names}) VALUES ({places})', rows)  # noqa: S608 -- names of ours
        except sqlite3.IntegrityError as e:
            raise StoreUnavailable(f"{table.name}: {e}") from e

    def go_on_after(self, table: Table, number: int) -> None:
        if number and self.value(f"SELECT 1 FROM sqlite_sequence WHERE name = '{table.name}'") is not None:  # noqa: S608 -- a name of ours
            self._connection.execute(
                "UPDATE sqlite_sequence SET seq = ? WHERE name = ?", (number, table.name)
            )
        elif number:
            self._connection.execute(
                "INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table.name, number)
            )


@contextmanager
def from_file(path: Path, *, alone: bool, still: bool = False) -> Iterator[Source]:
    """See `attestation.store.copying.source`."""
    if not (path.exists() and path.stat().st_size):
        raise StoreUnavailable(f"there is no database at {path}")
    try:
        with closing(_opened(path, alone=alone, still=still)) as connection:
            yield _SQLite(connection, path)
    except sqlite3.Error as e:
        if alone and e.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise StoreBusy(
                f"another process has {path} open (fuser -v {path} names it): stop the service, all of its workers, "
                "and end every sqlite3, then try again"
            ) from e
        raise unusable(path, e) from e


def _opened(path: Path, *, alone: bool, still: bool) -> sqlite3.Connection:
    if still:
        return sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None
        )
    if not alone:
        connection = connect(path, StoreSettings(busy_timeout_seconds=30), read_only=True)
        connection.execute("BEGIN")
        return connection
    connection = sqlite3.connect(path, timeout=2, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous=FULL")
        # Whoever has a database in WAL mode open has a lock on it that this does not share, working or not.
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


@contextmanager
def into_file(path: Path, branches: Sequence[Branch]) -> Iterator[Target]:
    """Write beside *path*, and give the file its name at the end: what is called so is whole."""
    part = path.with_name(f".{path.name}.part")
    try:
        with _held(part.with_suffix(".lock"), path):
            _demand_nothing(path)
            part.unlink(missing_ok=True)  # of one that was killed
            try:
                part.touch(mode=0o600, exist_ok=False)  # else a stranger's, in a folder that all can write to
                with _part(part) as connection:
                    make_schema(connection, branches)
                    driver: Any = connection.connection.driver_connection
                    yield _SQLite(driver, path)
                    driver.execute("COMMIT")
                _name(part, path)
            finally:
                part.unlink(missing_ok=True)
    except (OSError, sqlite3.Error) as e:
        raise unusable(path, e) from e


@contextmanager
def _held(name: Path, path: Path) -> Iterator[None]:
    """Hold the lock file *name*, which only its holder removes, while *path* is made."""
    lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    held = False
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = os.fstat(lock).st_nlink > 0  # else its holder ended just now, and the next has another one
        if not held:
            raise StoreBusy(f"another process is making {path} at this moment")
        try:
            yield
        finally:
            name.unlink(missing_ok=True)
    finally:
        os.close(lock)


def _demand_nothing(path: Path) -> None:
    """Refuse to make *path* where something is that is no empty file, or where a journal would be played into it."""
    if path.exists() and (path.stat().st_size or not path.is_file()):
        raise StoreUnavailable(
            f"{path} is there already, and was left as it is: name a file that does not exist"
        )
    for journal in (path.with_name(f"{path.name}-{kind}") for kind in ("wal", "journal")):
        if journal.exists() and journal.stat().st_size:
            raise StoreUnavailable(
                f"{journal} is left of a database that was there, and SQLite would write it into the new one: move it "
                "away, to where you keep that database, or name another file"
            )


@contextmanager
def _part(path: Path) -> Iterator[Any]:
    def opened() -> sqlite3.Connection:
        connection = sqlite3.connect(path, isolation_level=None)
        # What fails is thrown away as a whole, so nothing need be undone, and nothing be on disk before the end.
        for pragma in ("journal_mode=OFF", "synchronous=OFF", "foreign_keys=ON", "locking_mode=EXCLUSIVE"):
            connection.execute(f"PRAGMA {pragma}")
        return connection

    engine = create_engine("sqlite://", creator=opened, poolclass=NullPool)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def _name(part: Path, path: Path) -> None:
    """Call the file *part*, once it is on disk, *path*, which must not have come meanwhile."""
    with part.open("rb") as file:
        os.fsync(file.fileno())
    _demand_nothing(path)
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
