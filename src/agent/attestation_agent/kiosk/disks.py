"""Which disks there are, which of them carries us, and which one may be erased.

What /sys, /proc and firmware say is read here; the choice is a table over it, so that a test can hold both.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from attestation.errors import MalformedEvidence
from attestation.text import clean
from attestation_agent.kiosk import gpt
from attestation_agent.kiosk.exits import NoDisk

AUTO_ORDER: Final = ("nvme0n1", "sda", "sdb", "vda")
UNIT_BYTES: Final = 512
"""In this unit /sys counts, whatever the disk has."""
MIN_BYTES: Final = 16 << 20

_DISK = re.compile(r"(nvme\d+n\d+|mmcblk\d+|(sd|vd|xvd|hd)[a-z]{1,3})\Z")
_LOADER = "-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
_LOADER_VARIABLES = ("LoaderDevicePartUUID", "StubDevicePartUUID")
"""Where systemd-boot and systemd-stub leave the partition that they were read from (systemd, Boot Loader Interface)."""
_ATTRIBUTES_BYTES = 4
_NON_VOLATILE = 0x01
"""Of the attributes of an EFI variable (UEFI 2.10 §8.2): it outlives the boot in which it was set."""
_MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition, as the kernel sees it."""

    name: str
    start_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A whole disk.

    Args:
        name: As in /sys/block.
        path: Its device.
        number: Of its device, as major:minor; the next disk that is plugged in may get the same.
        sequence: Which of all disks since the start it is, in digits; empty where the kernel does not count them.
        size_bytes: Its length.
        sector_bytes: Its logical sectors.
        model: In its own words, cleaned.
        removable: It can be taken out, or hangs on USB.
        read_only: It takes no writes.
        in_use: By what of it: a mount, swap, another device; None where it is free.
        partitions: By their start.
    """

    name: str
    path: Path
    number: str
    sequence: str
    size_bytes: int
    sector_bytes: int
    model: str
    removable: bool
    read_only: bool
    in_use: str | None
    partitions: tuple[Partition, ...]

    @property
    def words(self) -> str:
        """The disk for people."""
        return f"{self.name}, {self.model}, {size_words(self.size_bytes)}"


def size_words(size_bytes: int) -> str:
    """Return a size as makers of disks write it."""
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if size_bytes >= size:
            return f"{size_bytes / size:.1f} {unit}"
    return f"{size_bytes} bytes"


def scan(*, sysfs: Path, procfs: Path, devfs: Path) -> tuple[Disk, ...]:
    """Return the disks of this machine, by name; what is no disk of its own (loop, RAM, mapper) is left out."""
    used = _used(procfs)
    try:
        names = sorted(each.name for each in (sysfs / "block").iterdir() if _DISK.match(each.name))
    except OSError:
        return ()
    return tuple(_disk(sysfs / "block" / name, devfs / name, used) for name in names)


def _disk(at: Path, device: Path, used: frozenset[str]) -> Disk:
    below = [each for each in _children(at) if (each / "partition").exists()]
    partitions = [
        Partition(
            name=each.name,
            start_bytes=_number(each / "start") * UNIT_BYTES,
            size_bytes=_number(each / "size") * UNIT_BYTES,
        )
        for each in below
    ]
    in_use = next((why for each in (at, *below) if (why := _in_use(each, used))), None)
    maker = " ".join(filter(None, (_text(at / "device/vendor"), _text(at / "device/model"))))
    return Disk(
        name=at.name,
        path=device,
        number=_text(at / "dev"),
        sequence=_text(at / "diskseq"),
        size_bytes=_number(at / "size") * UNIT_BYTES,
        sector_bytes=_number(at / "queue/logical_block_size") or UNIT_BYTES,
        model=clean(maker)[:60] or "unknown model",
        removable=_number(at / "removable") != 0 or "/usb" in str(at.resolve()),
        read_only=_number(at / "ro") != 0,
        in_use=in_use,
        partitions=tuple(sorted(partitions, key=lambda each: each.start_bytes)),
    )


def _in_use(at: Path, used: frozenset[str]) -> str | None:
    if at.name in used or _text(at / "dev") in used:
        return f"{at.name} is mounted or swapped to"
    holders = [each.name for each in _children(at / "holders")]
    return f"{at.name} is part of {holders[0]}" if holders else None


def _used(procfs: Path) -> frozenset[str]:
    """Return what is mounted, by major:minor and by name, and what is swapped to."""
    found = set()
    for line in _lines(procfs / "self/mountinfo"):
        words = line.split()
        if len(words) > 2:
            found.add(words[2])
        if "-" in words[:-2]:
            # Of some file systems the number is their own; then the name of the source tells.
            found.add(words[words.index("-") + 2].removeprefix("/dev/"))
    found |= {line.split()[0].removeprefix("/dev/") for line in _lines(procfs / "swaps") if line.strip()}
    return frozenset(found)


def booted_from(disks: Iterable[Disk], *, sysfs: Path) -> tuple[Disk, int] | None:
    """Return the disk that the firmware loaded us from, and where its partition begins; None where nobody says.

    systemd-boot and systemd-stub tell the PARTUUID of the partition; whose it is, the tables of the disks say. Two
    disks with one PARTUUID are a copy of the stick: then it is neither for sure, and both are left alone.
    """
    wanted = _loaded_from(sysfs)
    found = [
        (disk, entry.start_bytes)
        for disk in disks
        for entry in _table(disk)
        if wanted is not None and entry.guid == wanted
    ]
    if len(found) > 1:
        names = ", ".join(disk.name for disk, _ in found)
        raise NoDisk(f"{names} carry the same PARTUUID, that of the boot medium: take one of them out")
    return found[0] if found else None


def _loaded_from(sysfs: Path) -> uuid.UUID | None:
    for name in _LOADER_VARIABLES:
        raw = _read(sysfs / "firmware/efi/efivars" / (name + _LOADER))
        # A loader sets them for one boot. What lasts, the system that was on this machine left there: whoever had it
        # would choose the partition whose settings and keys are obeyed.
        if int.from_bytes(raw[:_ATTRIBUTES_BYTES], "little") & _NON_VOLATILE:
            continue
        text = raw[_ATTRIBUTES_BYTES:].decode("utf-16-le", "replace").rstrip("\0")
        with contextlib.suppress(ValueError):
            return uuid.UUID(text)
    return None


def _table(disk: Disk) -> tuple[gpt.Entry, ...]:
    try:
        with disk.path.open("rb") as file:
            return gpt.parse(file.read(gpt.HEAD_BYTES)).entries
    except (OSError, MalformedEvidence):
        return ()


def why_not(disk: Disk, *, boot: str | None, named: bool) -> str | None:
    """Return why *disk* must not be erased; None where it may.

    Args:
        disk: The disk.
        boot: Name of the one that carries us.
        named: Somebody chose it; only then a removable one may be.
    """
    if disk.name == boot:
        return "carries what was booted"
    if disk.in_use is not None:
        return disk.in_use
    if disk.read_only:
        return "is read-only"
    if disk.size_bytes < MIN_BYTES:
        return "is empty or too small"
    if disk.removable and not named:
        return "is removable: name it to have it erased"
    return None


def choose(disks: Sequence[Disk], wanted: str, *, boot: str | None, devfs: Path) -> Disk:
    """Return the disk to erase.

    Args:
        disks: All of them.
        wanted: `auto`, a name, or a path that leads to a device.
        boot: Name of the disk that carries us.
        devfs: Where devices are.

    Raises:
        NoDisk: None may be; it says of each why not.
    """
    if wanted != "auto":
        name = _named_by(devfs / wanted.removeprefix("/dev/"))
        disk = next((each for each in disks if each.name == name), None)
        if disk is None:
            raise NoDisk(f"there is no disk {clean(wanted)[:80]!r}; there are: {_listed(disks, boot)}")
        why = why_not(disk, boot=boot, named=True)
        if why is not None:
            raise NoDisk(f"{disk.words}: {why}")
        return disk
    by_name = {disk.name: disk for disk in disks}
    for name in AUTO_ORDER:
        if name in by_name and why_not(by_name[name], boot=boot, named=False) is None:
            return by_name[name]
    raise NoDisk(f"no disk is chosen by itself; there are: {_listed(disks, boot)}")


def _named_by(path: Path) -> str:
    try:
        return path.resolve(strict=True).name
    except OSError:
        return path.name


def _listed(disks: Sequence[Disk], boot: str | None) -> str:
    words = [f"{disk.words} ({why_not(disk, boot=boot, named=False) or 'must be named'})" for disk in disks]
    return "; ".join(words) or "none"


def _children(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE_BYTES)
    except OSError:
        return b""


def _text(path: Path) -> str:
    return _read(path).decode("utf-8", "replace").strip()


def _lines(path: Path) -> list[str]:
    return _text(path).split("\n")


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
