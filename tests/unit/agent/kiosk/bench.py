"""A machine of files for the kiosk: disks that are sparse files, a tree of /sys and /proc, images with a real FAT."""

from __future__ import annotations

import io
import subprocess
import uuid
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attestation.keys.notes import Ed25519NoteKey
from attestation_agent.kiosk import gpt, listing
from attestation_agent.kiosk.fat import FAT
from attestation_agent.kiosk.ui import Screen

MIB = 1 << 20
ESP_AT = MIB
ESP_BYTES = 2 * MIB
IMAGE_BYTES = 4 * MIB
DISK_BYTES = 24 * MIB
KEY = Ed25519NoteKey(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
NAME = "images.example"


def table(
    *parts: tuple[uuid.UUID, uuid.UUID, int, int], sector_bytes: int = 512, entries_at: int = 2
) -> bytes:
    """Return the first MiB of a disk with partitions of (type, PARTUUID, start, size), both in bytes."""
    entries = b"".join(
        kind.bytes_le
        + guid.bytes_le
        + (start // sector_bytes).to_bytes(8, "little")
        + ((start + size) // sector_bytes - 1).to_bytes(8, "little")
        + bytes(8)
        + "part".encode("utf-16-le").ljust(72, b"\0")
        for kind, guid, start, size in parts
    ).ljust(128 * 128, b"\0")
    header = bytearray(
        b"EFI PART\0\0\1\0"
        + (92).to_bytes(4, "little")
        + bytes(8)
        + (1).to_bytes(8, "little")
        + bytes(40)
        + entries_at.to_bytes(8, "little")
        + (128).to_bytes(4, "little")
        + (128).to_bytes(4, "little")
        + zlib.crc32(entries).to_bytes(4, "little")
    )
    header[16:20] = zlib.crc32(header).to_bytes(4, "little")
    head = bytearray(gpt.HEAD_BYTES)
    head[510:512] = b"\x55\xaa"
    head[sector_bytes : sector_bytes + 92] = header
    head[entries_at * sector_bytes : entries_at * sector_bytes + len(entries)] = entries
    return bytes(head)


def make_fat(path: Path, at: int = 0, size_bytes: int = ESP_BYTES, label: str = "ESP") -> FAT:
    """Make a FAT in a file."""
    geometry = ["-T", str(size_bytes // 512), "-h", "16", "-s", "32"]
    command = ["mformat", "-i", f"{path}@@{at}", *geometry, "-v", label, "::"]
    subprocess.run(command, check=True, env={"PATH": "/usr/bin:/bin", "MTOOLSRC": "/dev/null"})
    return FAT(path=path, start_bytes=at)


def make_image(directory: Path, *, kind: uuid.UUID = gpt.ESP, sector_bytes: int = 512) -> bytes:
    """Return an image: a table, bytes behind it, an ESP with a FAT, and bytes behind that."""
    path = directory / "image.tmp"
    with path.open("wb") as file:
        file.write(table((kind, uuid.UUID(int=7), ESP_AT, ESP_BYTES), sector_bytes=sector_bytes))
        file.truncate(IMAGE_BYTES)
        file.seek(MIB // 2)
        file.write(b"what BIOS starts")
        file.seek(ESP_AT + ESP_BYTES)
        file.write(b"the system " * 1000)
    make_fat(path, ESP_AT).write("EFI/BOOT/BOOTX64.EFI", b"MZ loader")
    data = path.read_bytes()
    path.unlink()
    return data


def signed(images: dict[str, bytes], **changes: object) -> bytes:
    """Return the signed list of *images*, name to SHA-256."""
    note, _ = listing.sign(images.items(), **{"key": KEY, "name": NAME, "until": None, **changes})  # type: ignore[arg-type]
    return note.encode()


def vkey() -> str:
    """Return the key to pin."""
    return str(listing.sign([("x", bytes(32))], key=KEY, name=NAME, until=None)[1])


def console(*answers: str, attended: bool = False) -> tuple[Screen, io.StringIO]:
    """Return a screen where *answers* are typed, and what it shows."""
    shown = io.StringIO()
    into = io.StringIO("".join(f"{answer}\n" for answer in answers))
    return Screen(shown, into, attended=attended or bool(answers), monotonic=lambda: 0.0), shown


@dataclass
class Bench:
    """The machine.

    Args:
        root: Where its sys, proc and dev are.
    """

    root: Path
    number: int = field(default=0)

    def __post_init__(self) -> None:
        for name in ("sys/block", "sys/firmware/efi/efivars", "proc/self", "dev"):
            (self.root / name).mkdir(parents=True)
        self.put("proc/self/mountinfo", "22 1 0:20 / / rw - tmpfs tmpfs rw\n")

    def put(self, name: str, text: str) -> None:
        """Let a file hold *text*."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def disk(
        self,
        name: str,
        size_bytes: int = DISK_BYTES,
        *,
        removable: int = 0,
        ro: int = 0,
        sector_bytes: int = 512,
    ) -> Path:
        """Add a disk; return its device."""
        self.number += 1
        block = f"sys/block/{name}"
        for file, value in (
            ("size", size_bytes // 512),
            ("removable", removable),
            ("ro", ro),
            ("dev", f"8:{16 * self.number}"),
            ("device/model", f"Model {name}"),
            ("queue/logical_block_size", sector_bytes),
        ):
            self.put(f"{block}/{file}", f"{value}\n")
        device = self.root / "dev" / name
        with device.open("wb") as opened:
            opened.truncate(size_bytes)
        return device

    def partition(self, disk: str, number: int, start: int, size: int) -> None:
        """Have the kernel see a partition."""
        for file, value in (
            ("partition", number),
            ("start", start // 512),
            ("size", size // 512),
            ("dev", f"8:{16 * self.number + number}"),
        ):
            self.put(f"sys/block/{disk}/{disk}{number}/{file}", f"{value}\n")

    def booted(self, guid: uuid.UUID, attributes: int = 6) -> None:
        """Have an EFI variable say which partition was booted: one of this boot, as a loader sets it, or another."""
        name = "LoaderDevicePartUUID-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
        value = attributes.to_bytes(4, "little") + f"{str(guid).upper()}\0".encode("utf-16-le")
        (self.root / "sys/firmware/efi/efivars" / name).write_bytes(value)

    @property
    def roots(self) -> dict[str, Path]:
        """Where the kiosk shall look."""
        return {name: self.root / name.removesuffix("fs") for name in ("sysfs", "procfs", "devfs")}

    @property
    def variables(self) -> dict[str, str]:
        """Settings that point here."""
        return {f"ITL_{name.upper()}": str(path) for name, path in self.roots.items()} | {
            "ITL_STATE_DIR": str(self.root / "state")
        }


class Served:
    """A source whose bytes and breaks a test chooses."""

    def __init__(self, name: str, data: bytes, *, piece: int = 100_000) -> None:
        self.name, self.data, self.piece = name, data, piece
        self.asked: list[int] = []
        self.on_piece: Callable[[int], None] = lambda at: None

    def chunks(self, from_byte: int):  # type: ignore[no-untyped-def]
        """Yield the bytes from there."""
        self.asked.append(from_byte)
        for at in range(from_byte, len(self.data), self.piece):
            self.on_piece(at)
            yield self.data[at : at + self.piece]

    def listing(self) -> bytes:
        """There is none."""
        raise NotImplementedError
