"""Which medium says what: settings and keys from the one that was booted, images from any that holds a bundle.

An old disk of this machine can carry a partition of any name. So keys, CAs, tokens and settings are read from nowhere
but the partition that the firmware loaded us from: whoever can write that, is obeyed anyway. An image may come from
anywhere, because its list is signed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from attestation_agent.files import write_atomically
from attestation_agent.kiosk.disks import Disk
from attestation_agent.kiosk.fat import FAT, Medium, read_strange
from attestation_agent.kiosk.image import LIST_NAME, MAX_LIST_BYTES

FOLDER: Final = "EFI/itl/"
CONF: Final = "itl-reg.conf"
FILES: Final = {
    "registration.token": "ITL_REGISTRATION_TOKEN_FILE",
    "ca.pem": "ITL_CA_FILE",
    "service-keys.json": "ITL_SERVICE_KEYS_FILE",
    "image.keys": "ITL_IMAGE_KEYS",
}
"""Files beside `itl-reg.conf`, and the setting that each of them is where nothing else is said."""
MAX_FILE_BYTES: Final = 65_536
LABEL: Final = "ITL_BUNDLE"
BUNDLE_FOLDER: Final = "itl/"
OFFLINE_BUNDLE: Final = "reg-bundle.json"
MAX_BUNDLE_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A medium with an image and its list.

    Args:
        medium: The medium.
        folder: Where on it: `itl/`, or empty.
        name: For people.
        disk: On which disk it is; None where somebody mounted it.
    """

    medium: Medium
    folder: str
    name: str
    disk: str | None


def boot_medium(booted: tuple[Disk, int] | None) -> FAT | None:
    """Return the partition that was booted, where that is known and a FAT."""
    if booted is None:
        return None
    found = FAT(path=booted[0].path, start_bytes=booted[1])
    return found if found.label() is not None else None


def files_of(medium: Medium, folder: str, into: Path) -> dict[str, str]:
    """Copy the files of *medium* to the directory *into*, mode 0600; return the settings that they are.

    Raises:
        UsageError: One is too long.
        OSError: They cannot be kept.
    """
    found = {}
    for name, variable in FILES.items():
        data = medium.read(folder + name, max_bytes=MAX_FILE_BYTES)
        if data is not None:
            write_atomically(into / name, data)
            found[variable] = str(into / name)
    return found


def bundles(disks: Sequence[Disk]) -> Iterator[Bundle]:
    """Yield the bundles on the partitions of *disks*: those with the label first, then those with a list in `/itl`."""
    partitions = [
        (disk.name, FAT(path=disk.path, start_bytes=each.start_bytes))
        for disk in disks
        for each in disk.partitions
    ] + [(disk.name, FAT(path=disk.path)) for disk in disks if not disk.partitions]
    labelled = [(name, fat, label) for name, fat in partitions if (label := fat.label()) is not None]
    for name, fat, _ in sorted(labelled, key=lambda each: each[2] != LABEL):
        if read_strange(fat, BUNDLE_FOLDER + LIST_NAME, max_bytes=MAX_LIST_BYTES) is not None:
            yield Bundle(medium=fat, folder=BUNDLE_FOLDER, name=name, disk=name)
