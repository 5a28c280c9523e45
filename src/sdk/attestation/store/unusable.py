"""Why a database cannot be used, and what to do: one sentence for each cause that operators meet."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from attestation.errors import StoreUnavailable

FORM: Final = (
    "ITL_DB_URL is sqlite:/// and then the path of a file, e.g. sqlite:////var/lib/itl-reg/db/machines.db"
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
    }
)


def unusable(path: Path | str, error: BaseException | None) -> StoreUnavailable:
    """Return what is to be raised where *error* was met while opening the database at *path*, or on a server."""
    folder = Path(path).parent
    if isinstance(error, OSError):
        words = _BY_ERRNO.get(error.errno, _OTHER)
    elif getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CANTOPEN:
        # SQLite does not say why.
        words = _FORBIDDEN if folder.is_dir() else _NO_FOLDER
    else:
        words = _BY_SQLITE.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, _OTHER)
    told = words.format(path=path, folder=folder, user=os.geteuid(), error=" ".join(str(error).split()))
    unavailable = StoreUnavailable(told)
    unavailable.__cause__ = error
    return unavailable
