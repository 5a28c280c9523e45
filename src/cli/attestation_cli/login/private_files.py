"""Files that only their owner may touch: read, write, and refuse what others could have changed.

A name is never trusted: each check is made on the opened descriptor, and links are not followed. So nothing can be
swapped between the check and the use.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from attestation_cli.login.errors import CacheUnsafe

LONGEST_FILE = 256 << 10
"""Bytes."""


def open_directory(path: Path, *, create: bool) -> int | None:
    """Open the private directory *path*, mode 0700; None where it does not exist and is not to be made.

    The caller closes the descriptor.

    Raises:
        CacheUnsafe: It, or the directory above it, is not the user's alone.
    """
    if create:
        for directory in (path.parent, path):
            try:
                directory.mkdir(mode=0o700)
            except FileExistsError:
                continue
            except OSError as e:
                raise CacheUnsafe(f"{directory} cannot be made: {e.strerror}") from e
    try:
        parent = path.parent.stat()
        directory_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise CacheUnsafe(f"{path} {_reason(e)}") from e
    try:
        check_only_ours(path.parent, parent)
        check_private(path, os.fstat(directory_fd), "chmod 700")
    except BaseException:
        os.close(directory_fd)
        raise
    return directory_fd


def check_only_ours(path: Path, found: os.stat_result) -> None:
    """Refuse where somebody else may put other files in the place of ours.

    Raises:
        CacheUnsafe: Others than its owner may write, or its owner is neither the user nor root.
    """
    if found.st_uid not in (os.geteuid(), 0) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CacheUnsafe(f"{path} can be changed by other users; chmod 700 it")


def check_private(path: Path, found: os.stat_result, remedy: str) -> None:
    """Refuse what is not the user's alone.

    Raises:
        CacheUnsafe: Another owner, or others may read or write it.
    """
    if found.st_uid != os.geteuid():
        raise CacheUnsafe(f"{path} belongs to another user")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise CacheUnsafe(
            f"{path} has mode {stat.S_IMODE(found.st_mode):04o}: others may use it; {remedy} it"
        )


def read(directory: Path, directory_fd: int, name: str) -> bytes | None:
    """Return the bytes of a private file; None where there is none.

    Raises:
        CacheUnsafe: It is a link, no regular file, too long, or not the user's alone.
    """
    path = directory / name
    try:
        # O_NONBLOCK: a FIFO put in the way must not make us wait.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(name, flags, dir_fd=directory_fd)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise CacheUnsafe(f"{path} {_reason(e)}") from e
    with os.fdopen(file, "rb") as opened:
        found = os.fstat(opened.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise CacheUnsafe(f"{path} is not a regular file")
        check_private(path, found, "remove")
        data = opened.read(LONGEST_FILE + 1)
    if len(data) > LONGEST_FILE:
        raise CacheUnsafe(f"{path} is longer than {LONGEST_FILE} bytes")
    return data


def write(directory: Path, directory_fd: int, name: str, data: bytes) -> None:
    """Put *data* in the place of the file *name*, mode 0600, durably: a reader sees the old or the new, never a part.

    Raises:
        CacheUnsafe: It could not be written.
    """
    temporary = f".{os.urandom(8).hex()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        file = os.open(temporary, flags, 0o600, dir_fd=directory_fd)
        try:
            with os.fdopen(file, "wb") as opened:
                opened.write(data)
                opened.flush()
                os.fsync(opened.fileno())
            os.rename(temporary, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
        except BaseException:
            remove(directory_fd, temporary)
            raise
        os.fsync(directory_fd)
    except OSError as e:
        raise CacheUnsafe(f"{directory / name} cannot be written: {e.strerror}") from e


def remove(directory_fd: int, name: str) -> bool:
    """Remove the file or link *name*; False where there was none."""
    try:
        os.unlink(name, dir_fd=directory_fd)
    except FileNotFoundError:
        return False
    return True


def _reason(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "is a symbolic link, which is not followed"
    if error.errno == errno.ENOTDIR:
        return "is a symbolic link or no directory"
    return f"cannot be opened: {error.strerror}"
