"""How an image comes onto a disk: never so that the disk boots something else than it, whole and verified (ADR 203).

What firmware and kernels look for stands in the first MiB of a disk, and in the last sectors (the copy of the table).
1. Both are zeroed. From here on the disk boots nothing.
2. The image, as it is served, is fetched to the second half of the disk and hashed. Nothing reads it but the hash.
3. Only where the signed list says so, it is read from there, hashed once more, and unpacked to its place: all but its
   first MiB, which waits in memory.
4. What was written is read back. Receipts are written to its ESP.
5. Last of all the first MiB: what in it is not the table, and then the table.
A kill at any line leaves the disk before 1, or with nothing that boots, or done. Another run begins at 1.
"""

# Algorithms for: digest
from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from attestation.client import ServiceUnreachable
from attestation.errors import MalformedEvidence
from attestation_agent.kiosk import gpt
from attestation_agent.kiosk.exits import ImageRejected, NoDisk, NoImage, WriteFailed
from attestation_agent.kiosk.fat import FAT
from attestation_agent.kiosk.image import Source, bounded, unpack

HEAD_BYTES: Final = gpt.HEAD_BYTES
TAIL_BYTES: Final = 1 << 20
PROGRESS_BYTES: Final = 1 << 20
"""So much between two failures is progress."""
TABLE_BYTES: Final = 64 << 10
"""Of the head, what is written last: MBR, header and entries of the table."""
_CHUNK_BYTES = 1 << 20
_BLKGETDISKSEQ = 0x8008_1280
"""linux/fs.h: `_IOR(0x12, 128, __u64)`."""


class Progress(Protocol):
    """Is told how far a step is."""

    def __call__(self, step: str, done_bytes: int, all_bytes: int | None) -> None:
        """Show that *done_bytes* of *all_bytes* of *step* are done."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be written.

    Args:
        source: Where the image is.
        sha256: What it must hash to, as it is served: 32 bytes.
        files: What is left on its ESP, by name.
        sector_bytes: The logical sectors of the disk, for which the table must be made.
        retry: Told of each time that the source breaks off, with how often without a MiB in between; True where it
            shall be tried again.
        progress: Is told how far it is.
    """

    source: Source
    sha256: bytes
    files: Mapping[str, bytes]
    sector_bytes: int
    retry: Callable[[ServiceUnreachable, int], bool]
    progress: Progress


class Target:
    """A disk, ours alone: the kernel refuses it where something of it is mounted or part of something else.

    Args:
        path: The device; a file in tests.
        number: Its device is this one, as major:minor; None for a file.
        sequence: And this one of all disks since the start, in digits; empty where the kernel does not count them.

    Raises:
        NoDisk: It is in use, is another one by now, or cannot be opened.
    """

    def __init__(self, path: Path, *, number: str | None, sequence: str = "") -> None:
        self.path = path
        try:
            # O_EXCL without O_CREAT, on a block device: EBUSY where the kernel uses it (open(2)).
            self._fd = os.open(path, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC)
        except OSError as e:
            raise NoDisk(f"{path}: {e.strerror}") from e
        self.size_bytes = os.lseek(self._fd, 0, os.SEEK_END)
        if number is not None:
            # A stick was pulled, another took its name, and its number too; and a file in /dev is no disk.
            is_other = _number(os.fstat(self._fd)) != number
            is_other = is_other or (bool(sequence) and _sequence(self._fd) != sequence)
            if is_other:
                os.close(self._fd)
                raise NoDisk(f"{path} is not the disk {number} that was chosen")

    def write(self, at: int, data: bytes) -> None:
        """Write all of *data*.

        Raises:
            WriteFailed: The disk does not take it.
        """
        view = memoryview(data)
        with self._failing("write"):
            while view:
                written = os.pwrite(self._fd, view, at)
                at, view = at + written, view[written:]

    def read(self, begin: int, end: int) -> Iterator[bytes]:
        """Yield what is there, from *begin* to *end*.

        Raises:
            WriteFailed: The disk does not give it back.
        """
        while begin < end:
            with self._failing("read"):
                chunk = os.pread(self._fd, min(_CHUNK_BYTES, end - begin), begin)
            if not chunk:
                raise WriteFailed(f"{self.path} ends at {begin} bytes")
            begin += len(chunk)
            yield chunk

    def sync(self) -> None:
        """Have everything on the disk, and nothing of it in memory: what is read next comes from there.

        Raises:
            WriteFailed: The disk does not take it.
        """
        with self._failing("sync"):
            os.fsync(self._fd)
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise WriteFailed(f"{self.path}: {what}: {e.strerror}") from e


def _number(found: os.stat_result) -> str | None:
    if not stat.S_ISBLK(found.st_mode):
        return None
    return f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"


def _sequence(fd: int) -> str | None:
    try:
        answer = fcntl.ioctl(fd, _BLKGETDISKSEQ, bytes(8))
    except OSError:
        return None
    found: int = struct.unpack("=Q", answer)[0]
    return str(found)


def install(target: Target, plan: Plan) -> None:
    """Write the image of *plan* to *target*, so that it boots it; or raise, and it boots nothing.

    Raises:
        ImageRejected: It is not what the list says, or nothing that could boot here.
        NoImage: It cannot be had.
        WriteFailed: The disk does not take it, or has no room.
    """
    half = _half(target)
    # 1. From here on the disk boots nothing, neither what was on it nor what is half on it. The copy of the table goes
    # first: firmware mends a table by its copy.
    zeros = bytes(max(HEAD_BYTES, TAIL_BYTES))
    target.write(target.size_bytes - TAIL_BYTES, zeros[:TAIL_BYTES])
    target.write(0, zeros[:HEAD_BYTES])
    target.sync()
    # 2. As it is served, to where nobody looks for anything. A stranger's bytes are hashed, and nothing else.
    size_bytes = _fetch(target, plan, half)
    # 3. Now it is ours to unpack; the bytes that are unpacked are the bytes that are hashed.
    head, body = _unpack(target, plan, half, size_bytes)
    # 4. The disk gives back what it was given.
    _read_back(target, body, plan.progress)
    esp = _esp(head, body, plan.sector_bytes)
    for name, data in plan.files.items():
        FAT(path=target.path, start_bytes=esp.start_bytes).write(name, data)
    target.sync()
    # 5. The table last: before it nothing on this disk has a name.
    target.write(TABLE_BYTES, head[TABLE_BYTES:])
    target.sync()
    target.write(0, head[:TABLE_BYTES])
    target.sync()
    if b"".join(target.read(0, len(head))) != head:
        target.write(0, zeros[:HEAD_BYTES])
        raise WriteFailed(f"{target.path}: its first bytes are not what was written")


def _half(target: Target) -> int:
    """Return where the second half begins, on a MiB."""
    if target.size_bytes < 2 * HEAD_BYTES + TAIL_BYTES:
        raise WriteFailed(f"{target.path} has no room: {target.size_bytes} bytes")
    return max(HEAD_BYTES, (target.size_bytes // 2) & ~(_CHUNK_BYTES - 1))


def _fetch(target: Target, plan: Plan, begin: int) -> int:
    """Bring the image, as it is served, to the disk from *begin* on; return its size."""
    room, digest, got = target.size_bytes - TAIL_BYTES - begin, hashlib.sha256(), 0
    failures, failed_at = 0, 0
    while True:
        try:
            with contextlib.closing(plan.source.chunks(got)) as chunks:
                for chunk in chunks:
                    if got + len(chunk) > room:
                        raise WriteFailed(
                            f"half of the disk has no room for the image: more than {room} bytes"
                        )
                    target.write(begin + got, chunk)
                    digest.update(chunk)
                    got += len(chunk)
                    plan.progress("download", got, None)
            break
        except ServiceUnreachable as e:
            # Who gives a little each time, and breaks off, gives nothing.
            failures = failures + 1 if got < failed_at + PROGRESS_BYTES else 1
            failed_at = got
            if not plan.retry(e, failures):
                raise NoImage(f"the image broke off at {got} bytes: {e}") from e
    _check(digest.digest(), plan.sha256)
    target.sync()
    return got


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body:
    """What was written behind the first MiB."""

    end: int
    sha256: bytes


def _unpack(target: Target, plan: Plan, begin: int, size_bytes: int) -> tuple[bytes, _Body]:
    """Unpack the image to its place; return its first MiB, which is not written, and what was."""
    served, written, read = hashlib.sha256(), hashlib.sha256(), 0

    def packed() -> Iterator[bytes]:
        nonlocal read
        for chunk in target.read(begin, begin + size_bytes):
            served.update(chunk)
            read += len(chunk)
            yield chunk
            plan.progress("write", read, size_bytes)

    head, at = bytearray(), 0
    # What it unpacks to ends before that which is still to be unpacked begins.
    for piece in bounded(unpack(plan.source.name, packed()), begin):
        kept = max(0, min(len(piece), HEAD_BYTES - at))
        head += piece[:kept]
        if piece[kept:]:
            target.write(at + kept, piece[kept:])
            written.update(piece[kept:])
        at += len(piece)
    # The disk gave back what it was given: else something was unpacked that nobody signed.
    _check(served.digest(), plan.sha256)
    if len(head) < HEAD_BYTES:
        raise ImageRejected(f"the image has {at} bytes, which is no disk")
    target.sync()
    return bytes(head), _Body(end=at, sha256=written.digest())


def _read_back(target: Target, body: _Body, progress: Progress) -> None:
    digest, at = hashlib.sha256(), HEAD_BYTES
    for chunk in target.read(HEAD_BYTES, body.end):
        digest.update(chunk)
        at += len(chunk)
        progress("verify", at, body.end)
    if digest.digest() != body.sha256:
        raise WriteFailed(f"{target.path}: what it gives back is not what was written")


def _esp(head: bytes, body: _Body, sector_bytes: int) -> gpt.Entry:
    """Return the EFI system partition of the image.

    Raises:
        ImageRejected: It has none that lies in it, or is made for other sectors.
    """
    try:
        table = gpt.parse(head)
    except MalformedEvidence as e:
        raise ImageRejected(f"the image is no disk that boots: {e}") from e
    if table.sector_bytes != sector_bytes:
        raise ImageRejected(
            f"the image is made for sectors of {table.sector_bytes} bytes; this disk has {sector_bytes}"
        )
    for entry in table.entries:
        if entry.type == gpt.ESP:
            if entry.start_bytes < HEAD_BYTES or entry.start_bytes + entry.size_bytes > body.end:
                raise ImageRejected("the EFI system partition of the image does not lie in it")
            return entry
    raise ImageRejected("the image has no EFI system partition")


def _check(found: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(found, expected):
        raise ImageRejected(f"the image has SHA-256 {found.hex()}, the signed list says {expected.hex()}")
