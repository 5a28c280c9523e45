"""Why a database cannot be used, and what to do: one sentence for each cause that operators meet."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import MappingProxyType
from typing import Final

from sqlalchemy import URL

from attestation.errors import StoreUnavailable
from attestation.store.tables import Base

FORM: Final = (
    "ITL_DB_URL is sqlite:/// and then the path of a file, e.g. sqlite:////var/lib/itl-reg/db/machines.db, or "
    "postgresql+psycopg://USER@HOST/DATABASE"
)
NO_DRIVER: Final = (
    "a database of PostgreSQL is named, and its driver is not installed here ({error}). Install what "
    "deploy/locks/service-postgres.lock lists, or the extra of the package: pip install "
    "'itl-attestation-service[postgres]'"
)

_NO_FOLDER: Final = (
    "the folder of the database, {folder}, does not exist. Correct ITL_DB_URL; or make the folder: "
    "install -d -m 0700 -o {user} {folder}"
)
_FORBIDDEN: Final = (
    "this process, whose user has the number {user}, may not write to the database {path}. Give file and folder to the "
    "user of the service: chown -R {user} {folder}; or start the service as their owner"
)
_READ_ONLY: Final = (
    "the database {path} cannot be written: its file or file system is read-only. Mount it writable, or give the file "
    "to the user of the service: chown -R {user} {folder}"
)
_FULL: Final = (
    "no room is left on the disk of the database, {folder}. Make room and start again; nothing is lost"
)
_LOCKED: Final = (
    "another program keeps the database {path} locked, e.g. an open sqlite3 or a backup. End it (fuser -v {path} names "
    "it), then start again"
)
_NO_DATABASE: Final = (
    "{path} is no SQLite database, and was left as it is. Correct ITL_DB_URL, or restore a backup"
)
_DAMAGED: Final = "the database {path} is damaged. Keep a copy of it, then restore a backup"
_TORN: Final = (
    "the tables of the database {path} are not those of the revision that it names ({error}). No upgrade leaves that "
    "behind: somebody changed them by hand, or restored a part of a backup. Restore a backup that is whole"
)
_BROKEN: Final = (
    "the disk of the database {path} does not read or write ({error}). Look at the log of the kernel (dmesg) and at "
    "limits of the process (ulimit -f); nothing that was acknowledged is lost before the disk loses it"
)
_UNREACHABLE: Final = (
    "no server of PostgreSQL answers for the database {path} ({error}). Start it, or correct host and port in "
    "ITL_DB_URL"
)
_NOT_BELIEVED: Final = (
    "the server of the database {path} takes no password of ours ({error}). Correct the role in ITL_DB_URL, or the "
    "password in the file that ITL_DB_PASSWORD_FILE names, or password_file= in the URL"
)
_NOT_LET_IN: Final = (
    "the server of the database {path} lets nobody in like that ({error}). Its pg_hba.conf says who may come from "
    "where"
)
_NO_ROLE: Final = (
    "the server of the database {path} does not know our role ({error}). Correct ITL_DB_URL, or make it: "
    "createuser ROLE"
)
_NO_RIGHTS: Final = (
    "our role may not use the tables of the database {path} ({error}). As their owner: attestation-service db upgrade "
    "--grant-to ROLE"
)
_NO_SUCH_DATABASE: Final = (
    "there is no database {path} ({error}). Correct ITL_DB_URL, or make it: "
    "createdb -O ROLE -E UTF8 -T template0 NAME"
)
_STANDBY: Final = (
    "the database {path} may only be read: its server is a standby, or read-only ({error}). Name the primary in "
    "ITL_DB_URL; of several hosts, with commas between, the one that can write is taken"
)
_CROWDED: Final = (
    "the server of the database {path} has no connection left ({error}). Raise its max_connections, put PgBouncer "
    "before it, or run fewer workers"
)
_TLS: Final = (
    "no TLS that we trust leads to the server of the database {path} ({error}). sslrootcert in ITL_DB_URL names its "
    "CA"
)
_SERVER_FULL: Final = (
    "no room is left on the disk of the server of the database {path}. Make room and start again; nothing is "
    "lost"
)
_STARTING: Final = (
    "the server of the database {path} starts or stops just now ({error}). Start again in a moment"
)
_OTHER: Final = "the database {path} does not answer: {error}"

_BY_ERRNO: Final[Mapping[int | None, str]] = MappingProxyType(
    {
        errno.ENOENT: _NO_FOLDER,
        errno.ENOTDIR: _NO_FOLDER,
        errno.EACCES: _FORBIDDEN,
        errno.EPERM: _FORBIDDEN,
        errno.EROFS: _READ_ONLY,
        errno.ENOSPC: _FULL,
        errno.EDQUOT: _FULL,
    }
)
_BY_SQLITE: Final[Mapping[int, str]] = MappingProxyType(
    {
        sqlite3.SQLITE_NOTADB: _NO_DATABASE,
        sqlite3.SQLITE_CORRUPT: _DAMAGED,
        sqlite3.SQLITE_BUSY: _LOCKED,
        sqlite3.SQLITE_LOCKED: _LOCKED,
        sqlite3.SQLITE_READONLY: _READ_ONLY,
        sqlite3.SQLITE_PERM: _FORBIDDEN,
        sqlite3.SQLITE_FULL: _FULL,
        sqlite3.SQLITE_IOERR: _BROKEN,
        # No such column, a table that is there already: our statements are right for the revision.
        sqlite3.SQLITE_ERROR: _TORN,
    }
)
_BY_SQLSTATE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "25006": _STANDBY,
        "42501": _NO_RIGHTS,
        "42P01": _TORN,
        "42P07": _TORN,
        "42701": _TORN,
        "42703": _TORN,
        "42704": _TORN,
        "42710": _TORN,
        "28000": _NOT_LET_IN,
        "28P01": _NOT_BELIEVED,
        "3D000": _NO_SUCH_DATABASE,
        "53100": _SERVER_FULL,
        "53300": _CROWDED,
        "57P03": _STARTING,
    }
)
_BY_WORDS: Final = (
    # libpq gives no code where it does not get in. In another language than English the server's own words remain.
    (re.compile(r"password authentication failed|no password supplied"), _NOT_BELIEVED),
    (re.compile(r"pg_hba\.conf"), _NOT_LET_IN),
    (re.compile(r"role \".*\" does not exist|role .* is not permitted to log in"), _NO_ROLE),
    (re.compile(r"database \".*\" does not exist"), _NO_SUCH_DATABASE),
    (re.compile(r"session is read-only|hot standby mode|recovery mode"), _STANDBY),
    (re.compile(r"too many clients|connection slots are reserved|too many connections"), _CROWDED),
    (re.compile(r"starting up|shutting down"), _STARTING),
    (re.compile(r"certificate|SSL|TLS"), _TLS),
    (
        re.compile(r"refused|No such file|resolve host|translate host|timeout|timed out|unreachable"),
        _UNREACHABLE,
    ),
)


def place_on_server(url: URL) -> str:
    """Return what of the *url* of a server may be told: it may carry a password."""
    host = url.host or str(url.query.get("host", ""))
    return f"{url.database} at {'this computer' if host.startswith('/') or not host else host}"


def unusable(path: Path | str, error: BaseException | None) -> StoreUnavailable:
    """Return what is to be raised where *error* was met while opening the database at *path*, or on a server."""
    folder = Path(path).parent
    if isinstance(error, OSError):
        words = _BY_ERRNO.get(error.errno, _OTHER)
    elif getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CANTOPEN:
        # SQLite does not say why.
        words = _FORBIDDEN if folder.is_dir() else _NO_FOLDER
    elif isinstance(error, sqlite3.Error):
        words = _BY_SQLITE.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, _OTHER)
    elif (state := getattr(error, "sqlstate", None)) is not None:
        words = _BY_SQLSTATE.get(state, _OTHER)
    else:
        words = next((each for said, each in _BY_WORDS if said.search(str(error))), _OTHER)
    told = words.format(path=path, folder=folder, user=os.geteuid(), error=" ".join(str(error).split()))
    unavailable = StoreUnavailable(told)
    unavailable.__cause__ = error
    return unavailable


def demand_whole(path: Path | str, columns: AbstractSet[tuple[str, str]]) -> None:
    """Refuse a database that names our revision, or a newer one that serves us, and has not all of our *columns*.

    Args:
        path: The database.
        columns: What it has: tables, and their columns.

    Raises:
        StoreUnavailable: One is missing.
    """
    ours = ((table.name, column.name) for table in Base.metadata.sorted_tables for column in table.columns)
    if missing := next((each for each in ours if each not in columns), None):
        raise StoreUnavailable(_TORN.format(path=path, error=f"no {'.'.join(missing)}"))
