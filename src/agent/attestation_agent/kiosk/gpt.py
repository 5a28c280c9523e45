"""Partition tables of GUIDs (UEFI 2.10 §5.3), as much of them as the kiosk needs. Pure; what is read is untrusted."""

from __future__ import annotations

import uuid
import zlib
from dataclasses import dataclass
from typing import Final

from attestation.errors import MalformedEvidence

HEAD_BYTES: Final = 1 << 20
"""What is read of a disk or image: its table lies in there, and everything that firmware looks for at its start."""

ESP: Final = uuid.UUID("c12a7328-f81f-11d2-ba4b-00a0c93ec93b")
BYTES_OF_SECTORS: Final = (512, 4096)
_SIGNATURE = b"EFI PART"
_HEADER_BYTES = 92
_ENTRY_BYTES = 128
_MAX_ENTRIES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One partition, as the table says.

    Args:
        type: What it is for.
        guid: Which one it is: PARTUUID.
        start_bytes: Where it begins.
        size_bytes: Its length, at least one sector.
        name: In UTF-16 there, 36 characters at most.
    """

    type: uuid.UUID
    guid: uuid.UUID
    start_bytes: int
    size_bytes: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table whose two checksums are right.

    Args:
        sector_bytes: For which size of sectors it is made.
        entries: In their order; they may overlap, and lie beyond the disk.
    """

    sector_bytes: int
    entries: tuple[Entry, ...]


def parse(head: bytes) -> Table:
    """Return the primary table in the first bytes of a disk.

    Integers are little-endian; a GUID has its first three fields so, too.

    Raises:
        MalformedEvidence: There is none for sectors of 512 or 4096 bytes, or it is damaged.
    """
    for sector_bytes in BYTES_OF_SECTORS:
        header = head[sector_bytes : sector_bytes + _HEADER_BYTES]
        if len(header) == _HEADER_BYTES and header.startswith(_SIGNATURE):
            return Table(sector_bytes=sector_bytes, entries=_entries(head, header, sector_bytes))
    raise MalformedEvidence("no partition table of GUIDs")


def _entries(head: bytes, header: bytes, sector_bytes: int) -> tuple[Entry, ...]:
    # 1. The header is whole: its size is that of every table, its checksum is over all but the checksum.
    if _u32(header, 12) != _HEADER_BYTES or zlib.crc32(header[:16] + bytes(4) + header[20:]) != _u32(
        header, 16
    ):
        raise MalformedEvidence("the header of the partition table is damaged")
    at, count, size = _u64(header, 72) * sector_bytes, _u32(header, 80), _u32(header, 84)
    # 2. So are its entries, which lie in what was read.
    if size != _ENTRY_BYTES or not 1 <= count <= _MAX_ENTRIES or at + count * size > len(head):
        raise MalformedEvidence("the partition table has entries elsewhere, too many, or of another size")
    raw = head[at : at + count * size]
    if zlib.crc32(raw) != _u32(header, 88):
        raise MalformedEvidence("the entries of the partition table are damaged")
    return tuple(
        _entry(raw[begin : begin + size], sector_bytes)
        for begin in range(0, len(raw), size)
        if any(raw[begin : begin + 16])
    )


def _entry(raw: bytes, sector_bytes: int) -> Entry:
    first, last = _u64(raw, 32), _u64(raw, 40)
    if not 1 <= first <= last:
        raise MalformedEvidence("a partition ends before it begins")
    return Entry(
        type=uuid.UUID(bytes_le=raw[:16]),
        guid=uuid.UUID(bytes_le=raw[16:32]),
        start_bytes=first * sector_bytes,
        size_bytes=(last - first + 1) * sector_bytes,
        name=raw[56:128].decode("utf-16-le", "replace").partition("\0")[0],
    )


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _u64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")
