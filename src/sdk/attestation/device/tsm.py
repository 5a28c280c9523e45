"""Reports of confidential hardware by configfs-tsm (CONFIDENTIAL.md §6.1).

Linux, Documentation/ABI/testing/configfs-tsm-report. An entry of our own is made for each report and always removed. A
write to `inblob` takes effect when its file is closed, and the error of that is lost: so `generation` is compared
before and after, and a report that is not ours is not read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from attestation.device.faults import AGAIN, fault_of
from attestation.errors import TEEDeviceError

ROOT: Final = Path("/sys/kernel/config/tsm/report")
MAX_BLOB_BYTES: Final = 32 << 10
REPORT_DATA_BYTES: Final = 64
ATTEMPTS: Final = 5
_MAX_TEXT_BYTES: Final = 64


class Files(Protocol):
    """What is asked of a file system; tests bring one of their own."""

    def make(self, path: Path) -> None:
        """Make a directory."""
        ...

    def remove(self, path: Path) -> None:
        """Remove it."""
        ...

    def read(self, path: Path, most_bytes: int) -> bytes:
        """Open *path* afresh and read to its end, at most one byte more than *most_bytes*."""
        ...

    def write(self, path: Path, data: bytes) -> None:
        """Open *path*, write all of *data* at once, close."""
        ...


class Disk:
    """The file system of this machine."""

    def make(self, path: Path) -> None:
        """Make a directory."""
        path.mkdir()

    def remove(self, path: Path) -> None:
        """Remove it."""
        path.rmdir()

    def read(self, path: Path, most_bytes: int) -> bytes:
        """Open *path* afresh and read to its end."""
        with path.open("rb", buffering=0) as file:
            found = b""
            while len(found) <= most_bytes and (part := file.read(most_bytes + 1 - len(found))):
                found += part
            return found

    def write(self, path: Path, data: bytes) -> None:
        """Open *path*, write all of *data* at once, close."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            if os.write(descriptor, data) != len(data):
                raise OSError(errno.EIO, "a short write")
        finally:
            os.close(descriptor)


class TsmQuote(NamedTuple):
    """What the hardware said.

    Args:
        provider: `sev_guest`, `tdx_guest` or another.
        outblob: Report or quote.
        auxblob: Of SEV-SNP the certificate table; often empty.
    """

    provider: str
    outblob: bytes
    auxblob: bytes


class TsmReport:
    """Makes reports.

    Args:
        root: The directory of reports.
        files: The file system.
        pause: Waits so many seconds between attempts.
    """

    def __init__(
        self, root: Path = ROOT, files: Files | None = None, pause: Callable[[float], object] = time.sleep
    ) -> None:
        self._root = root
        self._files: Files = files or Disk()
        self._pause = pause

    def quote(self, report_data: bytes) -> TsmQuote:
        """Return what the hardware says of *report_data*, 64 bytes.

        Raises:
            TEEDeviceError: There is none, or it failed; the fault says how.
        """
        assert len(report_data) == REPORT_DATA_BYTES
        failed = TEEDeviceError("busy", "others changed the report while it was made")
        for attempt in range(ATTEMPTS):
            if attempt:
                self._pause(random.uniform(0.01, 0.05) * attempt)  # noqa: S311 -- jitter, not a secret
            try:
                found = self._attempt(report_data)
            except OSError as e:
                failed = self._fault(e)
                if e.errno not in AGAIN:
                    break
            else:
                if found is not None:
                    return found
        raise failed

    def provider(self) -> str:
        """Return which hardware is there, as `TsmQuote.provider`, without a report.

        Raises:
            TEEDeviceError: There is none, or it may not be asked.
        """
        entry = self._root / f"itl-{secrets.token_hex(8)}"
        try:
            self._files.make(entry)
            try:
                return self._text(entry / "provider")
            finally:
                with contextlib.suppress(OSError):
                    self._files.remove(entry)
        except OSError as e:
            raise self._fault(e) from e

    def _attempt(self, report_data: bytes) -> TsmQuote | None:
        """Return one report; None where somebody wrote meanwhile."""
        entry, files = self._root / f"itl-{secrets.token_hex(8)}", self._files
        files.make(entry)
        try:
            before, writes = self._number(entry / "generation"), 1
            floor = self._optional(entry / "privlevel_floor")
            if floor not in (None, b"0"):
                # Less privileged than the firmware: where the floor is, the kernel reports.
                files.write(entry / "privlevel", floor or b"")
                writes += 1
            files.write(entry / "inblob", report_data)
            if self._number(entry / "generation") != before + writes:
                return None
            outblob = self._blob(entry / "outblob")
            try:
                auxblob = self._blob(entry / "auxblob")
            except FileNotFoundError:
                auxblob = b""
            provider = self._text(entry / "provider")
            if self._number(entry / "generation") != before + writes:
                return None
        finally:
            with contextlib.suppress(OSError):
                files.remove(entry)
        if not outblob:
            raise TEEDeviceError("malformed", "the report is empty")
        return TsmQuote(provider, outblob, auxblob)

    def _blob(self, path: Path) -> bytes:
        found = self._files.read(path, MAX_BLOB_BYTES)
        if len(found) > MAX_BLOB_BYTES:
            raise TEEDeviceError("malformed", f"{path.name}: more than {MAX_BLOB_BYTES} bytes")
        return found

    def _text(self, path: Path) -> str:
        try:
            return self._files.read(path, _MAX_TEXT_BYTES).decode("ascii").removesuffix("\n")
        except UnicodeDecodeError:
            raise TEEDeviceError("malformed", f"{path.name}: not text") from None

    def _number(self, path: Path) -> int:
        text = self._text(path)
        if not text.isdecimal() or len(text) > 20:
            raise TEEDeviceError("malformed", f"{path.name}: no number")
        return int(text)

    def _optional(self, path: Path) -> bytes | None:
        try:
            return self._files.read(path, _MAX_TEXT_BYTES).strip()
        except FileNotFoundError:
            return None

    def _fault(self, error: OSError) -> TEEDeviceError:
        return TEEDeviceError(fault_of(error), f"{self._root}: {error.strerror or error}")
