"""A database of PostgreSQL as one end of a copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final

import psycopg
from sqlalchemy import Table
from sqlalchemy.exc import DBAPIError

from attestation.clock import SystemClock
from attestation.errors import StoreBusy, StoreUnavailable
from attestation.store.base import StoreSettings
from attestation.store.copying.rows import Row, Source, Target, held, numbered, order
from attestation.store.look import demand_ours
from attestation.store.migrate import Branch, connection_to, make_schema
from attestation.store.pipeline import Connection
from attestation.store.postgres import WRITE_LOCK, connect
from attestation.store.queues import first_line
from attestation.store.sql import Executor
from attestation.store.tx import Tx
from attestation.store.unusable import unusable


class _Postgres(Source, Target):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self.tx = Tx(
            Executor(psycopg.RawCursor(connection), "postgresql"), results_kept=1, clock=SystemClock()
        )
        self._learn(
            name
            for (name,) in self._cursor.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
            ).fetchall()
        )

    def value(self, statement: str) -> Any:
        row = self._cursor.execute(statement.encode()).fetchone()
        return None if row is None else row[0]

    def rows(self, table: Table) -> Iterator[Row]:
        types = [held(each) for each in table.columns]
        names = ", ".join(
            f'"{each.name}"{"::int" if kind == "int4" else ""}'
            for each, kind in zip(table.columns, types, strict=True)
        )
        by_bytes = order(table, ' COLLATE "C"')  # as SQLite
        statement = f'COPY (SELECT {names} FROM "{table.name}" ORDER BY {by_bytes}) TO STDOUT'  # noqa: S608 -- names of ours
        # COPY streams; a query would be held here as a whole.
        with self._connection.cursor().copy(statement.encode()) as copy:
            copy.set_types(types)
            yield from copy.rows()

    def last_number(self, table: Table) -> int:
        if (sequence := self._sequence(table)) is None:
            return 0
        return int(self.value(f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {sequence}"))  # noqa: S608 -- a name of the catalogue

    def _sequence(self, table: Table) -> str | None:
        column = numbered(table)
        assert column is not None
        found: str | None = self.value(f"SELECT pg_get_serial_sequence('\"{table.name}\"', '{column.name}')")
        return found

    def mark_moved(self, to: str, at_us: int) -> None:
        self._cursor.execute("UPDATE database_identity SET moved_to = %s, moved_at = %s", (to, at_us))
        self._cursor.execute("COMMIT")

    def run(self, statement: str) -> None:
        self._cursor.execute(statement.encode())

    def write(self, table: Table, rows: Iterable[Row]) -> None:
        names = ", ".join(f'"{each.name}"' for each in table.columns)
        # In the order of their keys: entries of the audit log come one after the other.
        try:
            with self._cursor.copy(f'COPY "{table.name}" ({names}) FROM STDIN'.encode()) as copy:
                for row in rows:
                    copy.write_row(row)
        except (psycopg.IntegrityError, psycopg.DataError) as e:
            raise StoreUnavailable(f"{table.name}: {first_line(e)}") from e

    def go_on_after(self, table: Table, number: int) -> None:
        if (sequence := self._sequence(table)) is None:
            return
        self._cursor.execute("SELECT setval(%s::regclass, %s, %s)", (sequence, max(number, 1), number > 0))


_PATIENCE: Final = "SELECT set_config('lock_timeout', '10s', true)"
"""For so long a lock is waited for that another program has."""

_LOCK: Final = f"SELECT pg_advisory_xact_lock({WRITE_LOCK})"


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Raise what a server says as what an operator can read."""
    try:
        yield
    except StoreUnavailable as e:  # of `connect`, whose words are for those who ask the service
        raise (unusable(where, e.__cause__) if isinstance(e.__cause__, psycopg.Error) else e) from e
    except (psycopg.Error, DBAPIError) as e:
        error = e.orig if isinstance(e, DBAPIError) else e
        if isinstance(error, psycopg.errors.LockNotAvailable):
            raise StoreBusy(
                f"another program keeps {where} locked (pg_locks names it): nothing was done"
            ) from e
        raise unusable(where, error) from e


@contextmanager
def from_server(url: str, where: str, *, alone: bool) -> Iterator[Source]:
    """See `attestation.store.copying.source`."""
    with _told(where), closing(connect(url, StoreSettings())) as connection:
        if not alone:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        else:
            # Nobody of ours writes while this has the lock, so every statement sees the same.
            connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
            for statement in (_PATIENCE, _LOCK):
                connection.execute(statement.encode())
            _demand_nobody(connection, where)
        yield _Postgres(connection)


def _demand_nobody(connection: Connection, where: str) -> None:
    found = connection.execute(
        "SELECT pid, coalesce(host(client_addr), 'this computer') FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        "AND datname = current_database() "
        "AND application_name = (SELECT current_setting('application_name')) LIMIT 1"
    ).fetchone()
    if found is not None:
        raise StoreBusy(
            f"a service is connected to {where}, from {found[1]} (process {found[0]} of the server): stop the service, "
            "all of its replicas, then try again"
        )


@contextmanager
def into_server(url: str, where: str, branches: Sequence[Branch]) -> Iterator[Target]:
    """See `attestation.store.copying.target`."""
    with _told(where), connection_to(url) as connection:
        # Waited for it would never be: the source of a copy into itself has it.
        alone = connection.exec_driver_sql(f"SELECT pg_try_advisory_xact_lock({WRITE_LOCK})").scalar_one()
        driver: Any = connection.connection.driver_connection
        there = [
            name
            for (name,) in connection.exec_driver_sql(
                "SELECT relname FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace "
                "WHERE nspname = current_schema()) AND relkind IN ('r', 'p', 'v', 'm', 'S', 'f') ORDER BY relname"
            )
        ]
        if there:
            demand_ours(where, frozenset(there))
            raise StoreUnavailable(
                f"{where} is not empty (it has {there[0]}), and was left as it is: name another"
            )
        if not alone:
            raise StoreBusy(f"another process is making {where} at this moment")
        make_schema(connection, branches)
        yield _Postgres(driver)
        connection.commit()
