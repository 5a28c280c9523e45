"""Files on FAT partitions, by mtools: nothing is mounted, so no other program sees, holds or changes the disk.

The kernel's FAT driver would read a stranger's stick inside the kernel. mtools does it in a process that ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from attestation_agent.exits import UsageError
from attestation_agent.files import write_atomically
from attestation_agent.kiosk.exits import NoImage, WriteFailed

CHUNK_BYTES: Final = 1 << 20
BOOT_SECTOR_BYTES: Final = 512
_TIMEOUT_SECONDS: Final = 60.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*\Z")


class _TooLong(UsageError):
    """A file is longer than one of its kind can be."""


def read_strange(medium: Medium, name: str, *, max_bytes: int) -> bytes | None:
    """Return a file of a medium that nobody chose, as an old disk is: what is too long is none of ours.

    It stops nobody: the disk that carries it is the one to be erased, or one that is passed over.
    """
    with contextlib.suppress(_TooLong):
        return medium.read(name, max_bytes=max_bytes)
    return None


class Medium(Protocol):
    """Where files of a medium are: a FAT, or a directory."""

    def read(self, name: str, *, max_bytes: int) -> bytes | None:
        """Return a file; None where there is none.

        Raises:
            UsageError: It is longer.
        """
        ...

    def stream(self, name: str) -> Generator[bytes, None, None]:
        """Yield a file of any length.

        Raises:
            NoImage: There is none, or it cannot be read to its end.
        """
        ...

    def write(self, name: str, data: bytes) -> None:
        """Let a file hold *data*.

        Raises:
            WriteFailed: It cannot be written.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A directory that somebody mounted."""

    path: Path

    def read(self, name: str, *, max_bytes: int) -> bytes | None:
        """Return a file; None where there is none."""
        try:
            with (self.path / _checked(name)).open("rb") as file:
                return _bounded(file.read(max_bytes + 1), name, max_bytes)
        except OSError:
            return None

    def stream(self, name: str) -> Generator[bytes, None, None]:
        """Yield a file of any length."""
        try:
            with (self.path / _checked(name)).open("rb") as file:
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
        except OSError as e:
            raise NoImage(f"{self.path / name}: {e.strerror}") from e

    def write(self, name: str, data: bytes) -> None:
        """Let a file hold *data*."""
        try:
            write_atomically(self.path / _checked(name), data)
        except OSError as e:
            raise WriteFailed(f"{self.path / name}: {e.strerror}") from e


@dataclass(frozen=True, slots=True, kw_only=True)
class FAT:
    """A FAT in a device or file.

    Args:
        path: The device.
        start_bytes: Where in it the FAT begins.
    """

    path: Path
    start_bytes: int = 0

    def label(self) -> str | None:
        """Return the label in its boot sector; None where that is none of a FAT (Microsoft FAT specification §3)."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.start_bytes)
                sector = file.read(BOOT_SECTOR_BYTES)
        except OSError:
            return None
        if len(sector) < BOOT_SECTOR_BYTES or sector[510:] != b"\x55\xaa" or sector[0] not in (0xEB, 0xE9):
            return None
        at = 71 if sector[22:24] == b"\0\0" else 43
        if sector[at + 11 : at + 14] != b"FAT":
            return None
        return sector[at : at + 11].decode("ascii", "replace").rstrip()

    def read(self, name: str, *, max_bytes: int) -> bytes | None:
        """Return a file; None where there is none."""
        with contextlib.closing(self._output(name, _TIMEOUT_SECONDS)) as chunks:
            data = b""
            try:
                for chunk in chunks:
                    data += chunk
                    _bounded(data, name, max_bytes)
            except NoImage:
                return None
        return data

    def stream(self, name: str) -> Generator[bytes, None, None]:
        """Yield a file of any length."""
        return self._output(name)

    def write(self, name: str, data: bytes) -> None:
        """Let a file hold *data*; its directories are made."""
        parts = _checked(name).split("/")
        for depth in range(1, len(parts)):
            # Exits with 1 where it is there already; what is really wrong, the copy tells.
            self._run("mmd", "-D", "s", f"::/{'/'.join(parts[:depth])}", check=False)
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            self._run("mcopy", "-n", "-o", "-D", "o", file.name, f"::/{name}")
        if self.read(name, max_bytes=len(data)) != data:
            raise WriteFailed(f"{self.path}: {name} is not what was written")

    @property
    def _image(self) -> str:
        return f"{self.path}@@{self.start_bytes}"

    def _output(self, name: str, timeout_seconds: float | None = None) -> Generator[bytes, None, None]:
        try:
            process = subprocess.Popen(  # noqa: S603 -- a list, no shell; the name was checked
                ["mcopy", "-n", "-i", self._image, f"::/{_checked(name)}", "-"],  # noqa: S607 -- mtools, by the PATH of root
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_environment(),
            )
        except OSError as e:
            raise UsageError(f"mcopy (mtools) cannot be started: {e.strerror}") from e
        assert process.stdout is not None
        # A FAT whose chains are circles must not hold us for ever.
        timer = threading.Timer(timeout_seconds, process.kill) if timeout_seconds is not None else None
        if timer is not None:
            timer.start()
        try:
            while chunk := process.stdout.read(CHUNK_BYTES):
                yield chunk
            if process.wait() != 0:
                raise NoImage(f"{self.path}: {name} cannot be read")
        finally:
            if timer is not None:
                timer.cancel()
            process.kill()
            process.stdout.close()
            process.wait()

    def _run(self, program: str, *arguments: str, check: bool = True) -> None:
        try:
            done = subprocess.run(  # noqa: S603 -- a list, no shell; names were checked
                [program, "-i", self._image, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIMEOUT_SECONDS,
                env=_environment(),
                check=False,
            )
        except OSError as e:
            raise UsageError(f"{program} (mtools) cannot be started: {e.strerror}") from e
        except subprocess.TimeoutExpired as e:
            raise WriteFailed(f"{self.path}: {program} does not end") from e
        if check and done.returncode != 0:
            raise WriteFailed(f"{self.path}: {arguments[-1]} cannot be written")


def _environment() -> dict[str, str]:
    # No file of somebody's home decides what a drive is; a FAT of another geometry than floppies had is one, too.
    path = os.environ.get("PATH", os.defpath)
    return {"PATH": path, "LC_ALL": "C.UTF-8", "MTOOLSRC": "/dev/null", "MTOOLS_SKIP_CHECK": "1"}


def _checked(name: str) -> str:
    if not _NAME.match(name) or len(name) > 240:
        raise NoImage(f"{name[:80]!r} is no name of a file here")
    return name


def _bounded(data: bytes, name: str, max_bytes: int) -> bytes:
    if len(data) > max_bytes:
        raise _TooLong(f"{name} has more than {max_bytes} bytes")
    return data
