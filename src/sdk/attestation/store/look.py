"""A database as it lies there, read without changing a byte of it or making a file beside it.

For who asks whether a start would go well. SQLite itself would, of a database in WAL mode, make the two files that its
users share, or write down in one of them who reads.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import make_url

from attestation.clock import SystemClock
from attestation.errors import StoreUnavailable
from attestation.store.base import StoreSettings
from attestation.store.server import ASKED, Server
from attestation.store.sql import Executor
from attestation.store.tx import Tx
from attestation.store.unusable import place_on_server, unusable

COLUMNS: Final = MappingProxyType(
    {
        "sqlite": """
            SELECT t.name, c.name FROM sqlite_schema AS t, pragma_table_info(t.name) AS c WHERE t.type = 'table'
        """,
        "postgresql": """
            SELECT relname::text, attname::text FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
            WHERE relnamespace = to_regnamespace(quote_ident(current_schema())) AND relkind IN ('r', 'p')
            AND attnum > 0 AND NOT attisdropped
        """,
    }
)
"""Every column that is there, with its table."""

OURS: Final = "audit_log"
"""A table that every database of ours has had since its first revision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was found.

    Args:
        tables: Their names; none in a new file.
        revision: Of the schema; None where none is written down.
        whole: False where changes beside the file could not be read with it: somebody copied it without them.
        columns: Each table with each of its columns.
        server: Who answered; None for a file.
        tx: Reads it, if it is at the revision that the code speaks of.
    """

    tables: frozenset[str]
    revision: str | None
    whole: bool
    columns: frozenset[tuple[str, str]]
    server: Server | None = None
    tx: Tx


@contextmanager
def look_at(path: Path, *, untouched: bool = True) -> Iterator[Look]:
    """Open the database at *path*, an existing file, for reading; services that run with it go on.

    Args:
        path: The file.
        untouched: Nothing beside it is made or written either. Who is about to open it anyway need not care, and
            then no service that ends at this moment is in the way.

    Raises:
        StoreUnavailable: It cannot be read, or is no database.
    """
    try:
        with closing(_reader(path, untouched=untouched)) as connection:
            cursor = connection.cursor()
            cursor.execute("BEGIN")
            yield _found(cursor, "sqlite", whole=_is_whole(path))
    except sqlite3.Error as e:
        raise unusable(path, e) from e


@contextmanager
def look_at_server(url: str) -> Iterator[Look]:
    """Read the database of PostgreSQL at *url* in one snapshot that may not write.

    Raises:
        ValueError: Not the URL of one.
        StoreUnavailable: It does not let us in, or not in time; or it is no server that we run on.
    """
    import psycopg  # here: who has SQLite need not have it

    from attestation.store.postgres import connect

    where = place_on_server(make_url(url))
    try:
        opened = connect(url, StoreSettings())
    except StoreUnavailable as e:
        raise (unusable(where, e.__cause__) if isinstance(e.__cause__, psycopg.Error) else e) from e
    with closing(opened) as connection:
        try:
            cursor = psycopg.RawCursor(connection)  # our statements have PostgreSQL's own placeholders
            cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            server = Server.of(cursor.execute(ASKED).fetchone())
            server.demand_supported()
            yield _found(cursor, "postgresql", server=server)
        except psycopg.Error as e:
            raise unusable(where, e) from e


def _found(cursor: Any, dialect: str, *, whole: bool = True, server: Server | None = None) -> Look:
    columns = frozenset(cursor.execute(COLUMNS[dialect]).fetchall())
    tables = frozenset(table for table, _ in columns)
    revision = None
    if "alembic_version" in tables:
        row = cursor.execute("SELECT version_num FROM alembic_version").fetchone()
        revision = None if row is None else str(row[0])
    return Look(
        tables=tables,
        revision=revision,
        whole=whole,
        columns=columns,
        server=server,
        tx=Tx(Executor(cursor, dialect), results_kept=1, clock=SystemClock()),
    )


def _reader(path: Path, *, untouched: bool) -> sqlite3.Connection:
    # Without an index nobody has it open: nothing is shared, and nothing need be made to share it.
    how = "&readonly_shm=1" if _beside(path, "shm").exists() else "&immutable=1"
    uri = f"{path.absolute().as_uri()}?mode=ro{how if untouched else ''}"
    return sqlite3.connect(uri, uri=True, timeout=5, isolation_level=None)


def _is_whole(path: Path) -> bool:
    log = _beside(path, "wal")
    return _beside(path, "shm").exists() or not (log.exists() and log.stat().st_size)


def _beside(path: Path, kind: str) -> Path:
    return path.with_name(f"{path.name}-{kind}")


def demand_ours(where: Path | str, tables: frozenset[str]) -> None:
    """Refuse the database of another program: our tables would be put among its own.

    Raises:
        StoreUnavailable: There are tables, and none of them is ours.
    """
    if tables and OURS not in tables:
        raise StoreUnavailable(
            f"{where} is the database of another program (tables {', '.join(sorted(tables)[:3])}), and was left "
            "as it is. Let ITL_DB_URL name one of this service, or an empty one"
        )
