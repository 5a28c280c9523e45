"""configfs-tsm in this process: what the kernel does with `/sys/kernel/config/tsm/report` (CONFIDENTIAL.md §6.1).

Attributes take effect when their file is closed, and its error is lost; each counts `generation` up; a blob can be read
once there is an `inblob`, and is EBUSY where a write lapped the reader. Faults are set by the test.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

MOST_IN_BYTES = 64
MOST_PRIVLEVEL = 3


@dataclass
class Entry:
    """One directory of a report."""

    generation: int = 0
    read_generation: int = 0
    inblob: bytes = b""
    privlevel: int = 0


@dataclass
class FakeTsm:
    """The file system.

    Args:
        root: Where it is mounted.
        provider: Its name; empty where no driver is there.
        says: From 64 bytes to outblob and auxblob.
        privlevel_floor: The lowest level that a report may have; None where the kernel does not know levels.
        auxblob: Whether the attribute is there.
        errno_of: Operation (`make`, `read`, `write`, `remove`) and name of the file -> errno to fail with.
        on_write: Called after each write, with the entry: another program that writes too.
    """

    root: Path
    provider: str
    says: Callable[[bytes], tuple[bytes, bytes]]
    privlevel_floor: int | None = 0
    auxblob: bool = True
    errno_of: dict[tuple[str, str], int] = field(default_factory=dict)
    on_write: Callable[[Entry], None] = lambda _entry: None
    entries: dict[Path, Entry] = field(default_factory=dict)

    def make(self, path: Path) -> None:
        """`mkdir`."""
        self._fail("make", "")
        if path.parent != self.root:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if not self.provider:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        if path in self.entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        self.entries[path] = Entry()

    def remove(self, path: Path) -> None:
        """`rmdir`."""
        self._fail("remove", "")
        del self.entries[path]

    def write(self, path: Path, data: bytes) -> None:
        """Write and close: what is wrong with the value is told to nobody."""
        self._fail("write", path.name)
        entry = self.entries[path.parent]
        if path.name == "inblob" and 1 <= len(data) <= MOST_IN_BYTES:
            entry.inblob = data
        elif path.name == "privlevel" and (self.privlevel_floor or 0) <= int(data) <= MOST_PRIVLEVEL:
            entry.privlevel = int(data)
        else:
            return
        entry.generation += 1
        self.on_write(entry)

    def read(self, path: Path, most_bytes: int) -> bytes:
        """Open and read to the end."""
        self._fail("read", path.name)
        entry = self.entries[path.parent]
        return self._content(path.name, entry)[: most_bytes + 1]

    def _content(self, name: str, entry: Entry) -> bytes:
        if name == "generation":
            return b"%d\n" % entry.generation
        if name == "provider":
            return f"{self.provider}\n".encode()
        if name == "privlevel_floor" and self.privlevel_floor is not None:
            return b"%d\n" % self.privlevel_floor
        if name == "outblob" or (name == "auxblob" and self.auxblob):
            if not entry.inblob or entry.privlevel < (self.privlevel_floor or 0):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return self.says(entry.inblob)[name == "auxblob"]
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    def _fail(self, operation: str, name: str) -> None:
        number = self.errno_of.get((operation, name))
        if number is not None:
            raise OSError(number, os.strerror(number))
