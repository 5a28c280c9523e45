"""An archive in a directory: each file appears whole, once, read-only, and is never written again.

What keeps root from changing it is below: a file system that is append-only or WORM, or another computer's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from attestation_service.archive.archive import ArchiveFault, Fault, Stored, demand_name

FILE_MODE: Final = 0o440
DIRECTORY_MODE: Final = 0o750

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class DirectoryArchive:
    """The files below *root*, which is made where it is missing."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, name: str, data: bytes, media_type: str) -> Stored:  # noqa: ARG002 -- a file has none
        """Keep *data* in the file *name*."""
        demand_name(name)
        path = self._root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
            try:
                self._write(path, data)
            except FileExistsError:
                if _read(path) != data:
                    raise ArchiveFault(Fault.OTHER_CONTENT, f"{path} has other content") from None
            # Also where the file was there: who made it may have ended before its name was durable.
            self._sync(path.parent)
        except OSError as e:
            raise _fault(path, e) from e
        return Stored(url=f"file://{quote(str(path))}")

    def get(self, url: str) -> bytes:
        """Return the content of the file *url*, which is below the root."""
        path = Path(unquote(urlsplit(url).path))
        if not url.startswith("file:///") or not path.is_relative_to(self._root) or ".." in path.parts:
            raise ArchiveFault(Fault.MISSING, f"{url} is not in the archive in {self._root}")
        try:
            return _read(path)
        except OSError as e:
            raise _fault(path, e) from e

    def _write(self, path: Path, data: bytes) -> None:
        """Make *path* with all of *data*, or not at all.

        Raises:
            FileExistsError: There is one.
        """
        # Written beside it first: a file that was cut off by a crash would stand there as other content for ever.
        beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
        try:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FILE_MODE)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            # A second name, and no rename: that would replace what is there.
            os.link(beside, path, follow_symlinks=False)
        finally:
            with contextlib.suppress(FileNotFoundError):
                beside.unlink()

    def _sync(self, folder: Path) -> None:
        """Make the names of *folder*, and of each folder that leads to it, durable."""
        while folder.is_relative_to(self._root):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            folder = folder.parent


def _read(path: Path) -> bytes:
    # No link is followed: it could lead to what somebody else may change.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        return file.read()


def _fault(path: Path, error: OSError) -> ArchiveFault:
    said = f"{path}: {error.strerror or type(error).__name__}"
    if error.errno in _FULL:
        return ArchiveFault(Fault.FULL, said)
    if error.errno in _DENIED:
        return ArchiveFault(Fault.DENIED, said)
    if isinstance(error, FileNotFoundError):
        return ArchiveFault(Fault.MISSING, said)
    return ArchiveFault(Fault.FAILED, said)
