"""A small file beside the keys that all workers share: read by any, written by one at a time, durably."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from attestation.errors import AttestationError

MAX_BYTES: Final = 1 << 20


class KeptFile:
    """The file; every worker has one of these. Blocks: not on the event loop.

    Args:
        path: Where it lies.
        unusable: What is raised where it cannot be read, written or locked.
    """

    def __init__(self, path: Path, unusable: type[AttestationError]) -> None:
        self.path = path
        self._unusable = unusable

    def content(self) -> bytes | None:
        """Return what it says, `MAX_BYTES` at most; None where there is no file."""
        try:
            with self.path.open("rb") as file:
                return file.read(MAX_BYTES)
        except FileNotFoundError:
            return None
        except OSError as e:
            raise self._unusable(f"{self.path} cannot be read: {e.strerror}") from e

    def replace(self, content: bytes) -> None:
        """Let it say *content*, durably: on disk when this returns. The caller holds the lock."""
        new = self.path.with_name(f".{self.path.name}.new")
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            new.rename(self.path)
            directory = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as e:
            raise self._unusable(f"{self.path} cannot be written: {e.strerror}") from e

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other workers from writing; makes the directory of the keys where it is missing."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = self.path.with_name(f".{self.path.name}.lock").open("w")
        except OSError as e:
            raise self._unusable(f"{self.path} cannot be locked: {e.strerror}") from e
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
