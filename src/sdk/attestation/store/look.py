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
from typing import Final

from attestation.errors import StoreUnavailable
from attestation.store.sql import Executor
from attestation.store.tx import Tx
from attestation.store.unusable import unusable

OURS: Final = "audit_log"
"""A table that every database of ours has had since its first revision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was found.

    Args:
        tables: Their names; none in a new file.
        revision: Of the schema; None where none is written down.
        whole: False where changes beside the file could not be read with it: somebody copied it without them.
        tx: Reads it, if it is at the revision that the code speaks of.
    """

    tables: frozenset[str]
    revision: str | None
    whole: bool
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
            tables = frozenset(
                name for (name,) in cursor.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
            )
            revision = None
            if "alembic_version" in tables:
                row = cursor.execute("SELECT version_num FROM alembic_version").fetchone()
                revision = None if row is None else str(row[0])
            yield Look(
                tables=tables,
                revision=revision,
                whole=_is_whole(path),
                tx=Tx(Executor(cursor, "sqlite"), results_kept=1),
            )
    except sqlite3.Error as e:
        raise unusable(path, e) from e


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
            "as it is. Let ITL_DB_URL name a file of this service, or one that does not exist yet"
        )
