"""`backup`: the database at one snapshot, and the keys if wanted, in a folder that is whole or not there.

The service goes on meanwhile. A backup of either kind of database is a file of SQLite, which `restore` carries into
either. The keys are copied after the database: what they remember may be newer, never older.
"""

# Algorithms for: digest
from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from attestation.audit import AuditEvent
from attestation.clock import SystemClock, rfc3339
from attestation.errors import AttestationError
from attestation.store import DatabaseIdentity, Tx, open_store, place
from attestation.store.copying import source
from attestation.store.migrate import HEAD
from attestation_service.commands.carrying import carry
from attestation_service.commands.manifest import DATABASE, MANIFEST, Manifest, serialise
from attestation_service.settings import Settings
from attestation_service.storage.database import SERVICE, DatabaseNotRecognised, not_continued
from attestation_service.transparency.memory import Memory, MemoryFile

KEYS: Final = "keys"


def run(settings: Settings, options: argparse.Namespace) -> int:
    """Do it.

    Raises:
        AttestationError: The database cannot be backed up; nothing is left of the attempt.
        OSError, ValueError: The folder cannot be made, or is there already.
        SettingsInvalid: An extension cannot be used.
    """
    to = Path(options.to)
    memory = MemoryFile.of(settings).read()  # before the snapshot: what it says was signed is in there
    with _folder(to) as part:
        with source(settings.db_url, alone=False) as found:
            carried = carry(
                settings, found, f"sqlite:///{part.absolute()}/{DATABASE}", lambda tx: _ours(memory, tx)
            )
        if options.keys:
            for name, folder in folders_of_keys(settings).items():
                _copy_keys(folder, part / KEYS / name)
        manifest = Manifest(
            made_at=rfc3339(SystemClock().now()),
            revision=HEAD,
            database=carried.identity.database_id,
            entries=carried.head.size,
            root=carried.head.root.hex(),
            files={
                str(file.relative_to(part)): digest(file)
                for file in sorted(part.rglob("*"))
                if file.is_file()
            },
        )
        write_new(part / MANIFEST, serialise(manifest))
    _record(settings, to, manifest)
    keys = "with the keys: whoever has it can sign as this service" if options.keys else "without the keys"
    sys.stdout.write(
        f"{to}: {carried.rows:,} rows of {place(settings.db_url)}, {manifest.entries:,} audit entries, {keys}\n"
    )
    return 0


def folders_of_keys(settings: Settings) -> dict[str, Path]:
    """Return the folders that hold keys, by what they are called in a backup."""
    folders = {"ca": settings.enrollment_ca_dir}
    if (log := MemoryFile.of(settings).path.parent) != settings.enrollment_ca_dir:
        folders["log"] = log
    return folders


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, lower-case hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _ours(memory: Memory | None, tx: Tx) -> DatabaseIdentity:
    """Return which database this is, if the keys do not know another, or more of its log."""
    identity = tx.identity.get()
    if identity is None or (memory is not None and memory.database != identity.database_id):
        raise DatabaseNotRecognised("this is not the database that the keys know: nothing was backed up")
    if memory is not None and (problem := not_continued(tx, memory.last)) is not None:
        raise DatabaseNotRecognised(f"{problem}: nothing was backed up. Keep a copy of it by other means")
    return identity


@contextmanager
def _folder(to: Path) -> Iterator[Path]:
    """Make a folder beside *to*, and give it its name once the block ended well."""
    if to.exists():
        raise ValueError(f"{to} is there already: name a folder that does not exist, one for each backup")
    part = to.with_name(f".{to.name}.part")
    try:
        part.mkdir(mode=0o700, exist_ok=True)
        found = part.lstat()
        # Others can write to /tmp. What one of them put there would be emptied, or be given the keys.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise ValueError(f"{part} is not a folder that only you can write to, and was left as it is")
        held = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileExistsError as e:
        raise ValueError(f"{part} is no folder, and was left as it is") from e
    except OSError as e:
        raise ValueError(
            f"{to} cannot be made: {e.strerror}. Its parent must be there, for the user of the service: "
            f"install -d -m 0700 -o {os.geteuid()} {to.absolute().parent}"
        ) from e
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process is making {to} at this moment") from None
        try:
            _empty(part)  # of one that was killed
            yield part
            for each in (*(each for each in part.rglob("*") if each.is_dir()), part):
                _sync(each)
            part.rename(to)
            _sync(to.parent)
        except OSError as e:
            raise ValueError(f"{to} was not made: {e.strerror or e}") from e
        finally:
            shutil.rmtree(part, ignore_errors=True)
    finally:
        os.close(held)


def _empty(folder: Path) -> None:
    for each in folder.iterdir():
        if each.is_dir():
            shutil.rmtree(each)
        else:
            each.unlink()


def _copy_keys(folder: Path, to: Path) -> None:
    for file in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if file.is_file() and not file.name.endswith(".lock"):
            write_new(to / file.relative_to(folder), file.read_bytes())


def write_new(path: Path, content: bytes) -> None:
    """Make a file for its owner alone, and the folders that it is in; durably."""
    for folder in reversed(path.parents):
        if not folder.exists():
            folder.mkdir(mode=0o700)
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(opened, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as e:
        path.unlink()  # half a key would be in the way of the next attempt
        raise OSError(e.errno, e.strerror, str(path)) from e


def _sync(folder: Path) -> None:
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(held)
    finally:
        os.close(held)


def _record(settings: Settings, to: Path, manifest: Manifest) -> None:
    """Tell the audit, by which `doctor` knows how old the newest backup is; a database that takes no writes is told."""
    detail = f"{manifest.entries} entries to {to}, database {manifest.files[DATABASE]}"
    try:
        store = open_store(settings.db_url)
        try:
            at = store.clock.now()
            store.write_sync(
                lambda tx: tx.audit.append(
                    AuditEvent(operator_cn=SERVICE, action="database_backed_up", detail=detail), at
                )
            )
        finally:
            store.close()
    except AttestationError as e:
        sys.stderr.write(f"attestation-service: the backup is whole, but the audit was not told of it: {e}\n")
