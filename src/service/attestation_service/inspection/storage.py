"""The database, the folders, the disk."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from attestation.store import place
from attestation.store.look import Look, demand_ours, look_at, look_at_server
from attestation.store.migrate import HEAD, SUPPORT, known_revisions, unknown
from attestation.store.unusable import demand_whole, unusable
from attestation_service.inspection.case import NOTHING, Case, Facts, Findings, failed, ok, warning
from attestation_service.inspection.finding import Finding
from attestation_service.storage.database import demand_present, judge
from attestation_service.transparency.memory import MemoryFile

LOCKED_SECONDS: Final = 2.0
"""A service holds its write lock for milliseconds; who holds it for so long keeps others out."""

_BACKUP: Final = 'sqlite3 FILE ".backup COPY"'

FEW_BYTES: Final = 16 << 20
LITTLE_BYTES: Final = 512 << 20

_WRITE_LOCK: Final = 120
"""Offset of WAL_WRITE_LOCK in the index of a database in WAL mode (sqlite.org/walformat.html §2.3)."""
_SHARED: Final = (0x4000_0002, 510)
"""The range of the database file that readers lock shared, and who keeps all others out exclusively."""
_FLOCK: Final = "hhqqi"
"""struct flock of Linux with 64-bit offsets: type, whence, start, length, process."""


# ---------------------------------------------------------------- database


def database(case: Case) -> tuple[list[Finding], Facts | None]:
    """Return what there is to say of the database, and what others must know of it.

    Raises:
        ValueError: ITL_DB_URL is none.
        AttestationError: It cannot be used.
    """
    path = place(case.settings.db_url)
    if not isinstance(path, Path):
        return _on_server(path, case)
    _demand_writable(path)
    if not path.exists() or not path.stat().st_size:
        demand_present(case.settings)
        return [ok("database", what=f"{path} does not exist yet: the first start makes it")], NOTHING
    found = []
    with look_at(path) as look:
        demand_ours(path, look.tables)
        if look.whole:
            facts, line = _of_revision(path, look, case)
        else:
            # Judged without its newest changes, it would be taken for an older copy of itself.
            facts = None
            line = warning(
                "database",
                what=f"{path} has a -wal file and no -shm: a start reads what is only there; it was not looked at",
                todo="make copies with SQLite's own backup, never with cp",
            )
    found.append(line)
    if path.stat().st_mode & 0o007:
        found.append(warning("database", what=f"everybody may read {path}", todo=f"chmod 0600 {path}"))
    if (holder := who_locks(path)) is not None:
        found.append(
            failed(
                "database",
                what=f"process {holder} has kept {path} locked for {LOCKED_SECONDS:g} s: a start waits, then fails",
                todo="end that process, or let it finish",
            )
        )
    return found, facts


def _on_server(where: str, case: Case) -> tuple[list[Finding], Facts | None]:
    """Return what there is to say of a database of PostgreSQL."""
    with look_at_server(case.settings.db_url) as look:
        demand_ours(where, look.tables)
        server = look.server
        assert server is not None
        upgrade = f"attestation-service db upgrade --grant-to {server.role}"
        if look.tables and server.lacks:
            unread = f"{server.lacks[0]}{' and others' if len(server.lacks) > 1 else ''}"
            return [
                failed(
                    "database",
                    what=f"the role {server.role} may not read and write {unread} in {where}",
                    todo=f"as the owner of the tables: {upgrade}",
                )
            ], None
        facts, line = _of_revision(where, look, case)
    found = [
        line,
        ok("database", what=f"PostgreSQL {server.version}, {server.tls or 'no TLS'}, role {server.role}"),
    ]
    if look.revision not in (HEAD, None) and facts is None and not server.owns:
        found[0] = failed(
            "database",
            what=f"{where} is at revision {look.revision}, this version needs {HEAD}, and the role {server.role} may "
            "not migrate it",
            todo=f"make a backup, then as the owner of the tables: {upgrade}",
        )
    elif not look.tables and not server.may_create:
        found[0] = failed(
            "database",
            what=f"{where} is empty, and the role {server.role} may make nothing in it",
            todo=f"as the owner of the database: {upgrade}",
        )
    elif look.tables and server.owns:
        found.append(
            warning(
                "database",
                what=f"the role {server.role} may change the tables themselves: whoever has its password could take "
                "away what keeps the audit log as it is",
                todo="make another role, which may only read and write rows, and let ITL_DB_URL name that",
            )
        )
    return found, facts


def _of_revision(path: Path | str, look: Look, case: Case) -> tuple[Facts | None, Finding]:
    settings = case.settings
    if look.revision is None and not look.tables:
        demand_present(settings)
        return NOTHING, ok("database", what=f"{path} is empty: the first start makes it")
    newer = look.revision != HEAD and look.revision not in known_revisions()
    if newer and not (SUPPORT in look.tables and look.tx.schema.supports(HEAD)):
        raise unknown(look.revision)
    if look.revision != HEAD and not newer:
        return None, warning(
            "database",
            what=f"{path} would be migrated from revision {look.revision} to {HEAD}, and there is no way back; what "
            "depends on its rows cannot be looked at before",
            todo=f"make a backup first: {_BACKUP if isinstance(path, Path) else 'pg_dump'}, and the folder of the keys",
        )
    demand_whole(path, look.columns)
    judge(look.tx, settings, MemoryFile.of(settings))
    facts = Facts.read(look.tx, settings, case.at)
    entries = look.tx.audit.tree.size()
    if newer:
        return facts, warning(
            "database",
            what=f"a newer version upgraded {path} to revision {look.revision}; this one, {HEAD}, may still run "
            "on it",
            todo="finish the upgrade: start the newer version in place of this one",
        )
    return facts, ok(
        "database", what=f"{path}, revision {HEAD}, {entries} audit entries; it is the one that the keys know"
    )


def _demand_writable(path: Path) -> None:
    """Refuse what this process could not write to.

    Raises:
        StoreUnavailable: With what to do.
    """
    folder = path.parent
    if not folder.is_dir():
        raise unusable(path, FileNotFoundError(errno.ENOENT, ""))
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        raise unusable(path, OSError(errno.EROFS, ""))
    if not _may_write(folder):
        raise unusable(path, PermissionError(errno.EACCES, ""))
    # What lies beside it is somebody else's where another user had it open, or once started the service.
    for kind in ("", "-wal", "-shm", ".migrate-lock"):
        file = path.with_name(path.name + kind)
        if file.exists() and not _may_change(file):
            raise unusable(file, PermissionError(errno.EACCES, ""))


def _may_write(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK, effective_ids=True)


def _may_change(file: Path) -> bool:
    return os.access(file, os.R_OK | os.W_OK, effective_ids=True)


def who_locks(path: Path) -> int | None:
    """Return the process that keeps others from writing to the database at *path* all of `LOCKED_SECONDS`; None else.

    Asks the kernel who holds which lock; takes none.
    """
    deadline = time.monotonic() + LOCKED_SECONDS
    while (holder := _holder(path)) is not None:
        if time.monotonic() > deadline:
            return holder
        time.sleep(0.01)
    return None


def _holder(path: Path) -> int | None:
    index = path.with_name(f"{path.name}-shm")
    asked = ((path, fcntl.F_RDLCK, *_SHARED), (index, fcntl.F_WRLCK, _WRITE_LOCK, 1))
    for file, kind, start, length in asked:
        try:
            with file.open("rb") as opened:
                told = fcntl.fcntl(
                    opened, fcntl.F_GETLK, struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0)
                )
        except OSError:
            continue
        held, _, _, _, process = struct.unpack(_FLOCK, told)
        if held != fcntl.F_UNLCK:
            return int(process)
    return None


# ---------------------------------------------------------------- folders


def folders(case: Case) -> Findings:
    """The folders of keys and database: there, writable, nobody else's."""
    settings = case.settings
    keys = MemoryFile.of(settings).path.parent
    places = {"ITL_ENROLLMENT_CA_DIR": settings.enrollment_ca_dir}
    if isinstance(database := place(settings.db_url), Path):
        places = {"ITL_DB_URL": database.parent, **places}
    if keys != settings.enrollment_ca_dir:
        places["ITL_AUDIT_ED25519_KEY"] = keys
    for variable, folder in places.items():
        yield from _folder(variable, folder, secret=variable != "ITL_DB_URL")
    if os.geteuid() == 0 and (owner := _owner(places.values())):
        yield warning(
            "folders",
            what=f"root asked, but the folders belong to user {owner}: what root may do says nothing of that one",
            todo=f"run it as the user of the service, with its settings: setpriv --reuid {owner} --clear-groups "
            "attestation-service --check",
        )


def _owner(folders: Iterable[Path]) -> int:
    return next((each.stat().st_uid for each in folders if each.is_dir() and each.stat().st_uid), 0)


def _folder(variable: str, folder: Path, *, secret: bool) -> Findings:
    if not folder.exists():
        there = next(each for each in folder.absolute().parents if each.exists())
        if not secret:
            return  # the database says so
        if _may_write(there):
            yield ok(
                "folders",
                what=f"{variable}: {folder} does not exist yet: the first start makes it, mode 0700",
            )
        else:
            yield failed(
                "folders",
                what=f"{variable}: {folder} does not exist, and user {os.geteuid()} may not make it in {there}",
                todo=f"install -d -m 0700 -o {os.geteuid()} {folder}",
            )
        return
    if not folder.is_dir():
        yield failed("folders", what=f"{variable}: {folder} is no folder", todo=f"correct {variable}")
        return
    if not _may_write(folder):
        yield failed(
            "folders",
            what=f"{variable}: user {os.geteuid()} may not write to {folder}, which user {folder.stat().st_uid} owns",
            todo=f"chown -R {os.geteuid()} {folder}, or run the service as the owner",
        )
    elif secret and (locks := [each for each in sorted(folder.glob(".*.lock")) if not _may_change(each)]):
        yield failed(
            "folders",
            what=f"{variable}: user {os.geteuid()} may not lock {locks[0]}, which user {locks[0].stat().st_uid} owns",
            todo=f"chown -R {os.geteuid()} {folder}, or run the service as the owner",
        )
    elif secret and (mode := stat.S_IMODE(folder.stat().st_mode)) & 0o077:
        yield warning(
            "folders",
            what=f"{variable}: others may look into {folder} (mode {mode:04o})",
            todo=f"chmod 0700 {folder}",
        )
    else:
        yield ok("folders", what=f"{variable}: {folder}")


def disk(case: Case) -> Findings:
    """Room for database and keys."""
    settings = case.settings
    seen = set()
    where = place(settings.db_url)
    files = (where.parent,) if isinstance(where, Path) else ()
    for wanted in (*files, settings.enrollment_ca_dir):
        folder = next((each for each in (wanted, *wanted.absolute().parents) if each.exists()), Path("/"))
        device = folder.stat().st_dev
        if device in seen:
            continue
        seen.add(device)
        status = os.statvfs(folder)
        free = status.f_bavail * status.f_frsize
        told = f"{free / (1 << 30):.1f} GiB free at {folder}"
        if free < FEW_BYTES or (status.f_files and not status.f_favail):
            yield failed("disk", what=f"{told}: nothing can be written any more", todo="make room")
        elif free < LITTLE_BYTES:
            yield warning(
                "disk", what=f"{told}: the database grows with each machine and entry", todo="make room"
            )
        else:
            yield ok("disk", what=told)
