"""Which disk is erased: never the one that carries us, nor one in use; a removable one where somebody names it."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from attestation.errors import MalformedEvidence
from attestation_agent.kiosk import disks, gpt
from attestation_agent.kiosk.disks import Disk
from attestation_agent.kiosk.exits import NoDisk
from tests.unit.agent.kiosk.bench import MIB, Bench, table

STICK = uuid.UUID("11111111-2222-4333-8444-555555555555")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A machine without disks."""
    return Bench(tmp_path / "machine")


def chosen(bench: Bench, wanted: str = "auto") -> str:
    """Return the name of the disk that is chosen."""
    return choice(bench, wanted).name


def choice(bench: Bench, wanted: str) -> Disk:
    """Choose."""
    seen = disks.scan(**bench.roots)
    booted = disks.booted_from(seen, sysfs=bench.roots["sysfs"])
    boot = booted[0].name if booted else None
    return disks.choose(seen, wanted, boot=boot, devfs=bench.roots["devfs"])


def refused(bench: Bench, words: str, wanted: str = "auto") -> None:
    """See that none is chosen, and why."""
    with pytest.raises(NoDisk, match=words):
        choice(bench, wanted)


def test_auto_takes_the_first_that_may_be_erased(bench: Bench) -> None:
    """In the order of the documentation; a disk of another name must be named."""
    bench.disk("nvme1n1")
    refused(bench, r"nvme1n1, Model nvme1n1, 25.2 MB \(must be named\)")
    for name in ("vda", "sdb", "sda", "nvme0n1"):
        bench.disk(name)
        assert chosen(bench) == name
    assert chosen(bench, "nvme1n1") == "nvme1n1"
    assert chosen(bench, "/dev/nvme1n1") == "nvme1n1"
    by_id = bench.root / "dev/disk/by-id"
    by_id.mkdir(parents=True)
    (by_id / "wwn-1").symlink_to("../../sdb")
    assert chosen(bench, "/dev/disk/by-id/wwn-1") == "sdb"
    refused(bench, "there is no disk 'sdz'", "sdz")


def test_what_is_no_disk_of_its_own_is_not_there(bench: Bench) -> None:
    """Loops, RAM, mappers, boot areas of eMMC; and a machine without a block layer has none."""
    for name in ("loop0", "ram0", "dm-0", "md0", "sr0", "mmcblk0boot0", "nvme0c0n1", "zram0"):
        bench.disk(name)
    refused(bench, "there are: none")
    assert disks.scan(sysfs=bench.root / "none", procfs=bench.root, devfs=bench.root) == ()


@pytest.mark.threat("T331")
def test_the_disk_that_carries_us_is_never_erased(bench: Bench) -> None:
    """As the boot loader says, whatever name it has, and whoever names it; a copy of it stops everything."""
    for name in ("sda", "sdb"):
        bench.disk(name).write_bytes(b"no table")
    bench.disk("sdc").write_bytes(table((gpt.ESP, STICK, MIB, MIB)))
    assert disks.booted_from(disks.scan(**bench.roots), sysfs=bench.roots["sysfs"]) is None
    bench.booted(STICK)
    booted = disks.booted_from(disks.scan(**bench.roots), sysfs=bench.roots["sysfs"])
    assert booted is not None
    assert (booted[0].name, booted[1]) == ("sdc", MIB)
    refused(bench, "carries what was booted", "sdc")
    (bench.root / "dev/sda").write_bytes(table((gpt.ESP, STICK, MIB, MIB)))
    refused(bench, "sda, sdc carry the same PARTUUID")


@pytest.mark.threat("T332")
def test_a_variable_that_lasts_names_no_medium(bench: Bench) -> None:
    """A loader's is gone with its boot; one that the system before left would choose whose settings are obeyed."""
    bench.disk("sda").write_bytes(table((gpt.ESP, STICK, MIB, MIB)))
    bench.booted(STICK, attributes=7)
    assert disks.booted_from(disks.scan(**bench.roots), sysfs=bench.roots["sysfs"]) is None
    bench.booted(STICK)
    assert disks.booted_from(disks.scan(**bench.roots), sysfs=bench.roots["sysfs"]) is not None


@pytest.mark.threat("T331")
@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("proc/self/mountinfo", "22 1 8:17 / /mnt rw - ext4 /dev/sda1 rw\n", "sda1 is mounted"),
        ("proc/self/mountinfo", "22 1 8:16 / /mnt rw - vfat /dev/sda rw\n", "sda is mounted"),
        ("proc/self/mountinfo", "22 1 0:31 / /mnt rw - btrfs /dev/sda1 rw\n", "sda1 is mounted"),
        ("proc/swaps", "Filename Type Size\n/dev/sda1 partition 1 1 -2\n", "sda1 is mounted or swapped"),
        ("sys/block/sda/holders/md0", "", "sda is part of md0"),
        ("sys/block/sda/sda1/holders/dm-0", "", "sda1 is part of dm-0"),
        ("sys/block/sda/ro", "1\n", "read-only"),
        ("sys/block/sda/size", "nonsense\n", "empty or too small"),
    ],
)
def test_a_disk_in_use_or_without_room_is_refused_though_it_is_named(
    bench: Bench, file: str, text: str, words: str
) -> None:
    """Each of these alone."""
    bench.disk("sda")
    bench.partition("sda", 1, MIB, MIB)
    assert chosen(bench, "sda") == "sda"
    bench.put(file, text)
    refused(bench, words, "sda")
    refused(bench, words)


@pytest.mark.threat("T331")
def test_a_removable_disk_is_erased_where_it_is_named(bench: Bench) -> None:
    """One that says so, and one on USB that says it is not."""
    bench.disk("sda", removable=1)
    real = bench.root / "sys/devices/pci0000:00/usb1/block/sdb"
    bench.disk("sdb")
    real.parent.mkdir(parents=True)
    (bench.root / "sys/block/sdb").rename(real)
    (bench.root / "sys/block/sdb").symlink_to(real)
    for name in ("sda", "sdb"):
        refused(bench, f"{name}, Model {name}, 25.2 MB .is removable: name it")
        assert chosen(bench, name) == name


def test_a_model_cannot_deceive_who_confirms(bench: Bench) -> None:
    """What a disk says of itself is cut and cleaned."""
    bench.disk("sda")
    bench.put("sys/block/sda/device/model", "x\x1b[2J\n" + "y" * 500)
    words = choice(bench, "sda").words
    assert words.isprintable()
    assert len(words) < 90


@pytest.mark.parametrize("sector_bytes", [512, 4096])
def test_a_table_is_read(sector_bytes: int) -> None:
    """Both sizes of sectors; type, PARTUUID, place and name."""
    made = gpt.parse(table((gpt.ESP, STICK, MIB, 3 * MIB), sector_bytes=sector_bytes))
    (entry,) = made.entries
    assert made.sector_bytes == sector_bytes
    assert (entry.type, entry.guid, entry.start_bytes, entry.size_bytes, entry.name) == (
        gpt.ESP,
        STICK,
        MIB,
        3 * MIB,
        "part",
    )


@pytest.mark.parametrize("at", [512, 512 + 12, 512 + 72, 1024, 1024 + 40, 512 + 16])
def test_a_damaged_table_is_none(at: int) -> None:
    """A bit in header or entries."""
    data = bytearray(table((gpt.ESP, STICK, MIB, MIB)))
    data[at] ^= 1
    with pytest.raises(MalformedEvidence):
        gpt.parse(bytes(data))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        table()[: 1024 + 100],
        table((gpt.ESP, STICK, 0, MIB)),
        table((gpt.ESP, STICK, MIB, 0)),
        table(entries_at=2047)[:MIB],
    ],
)
def test_a_table_that_cannot_be_is_none(data: bytes) -> None:
    """Cut off, entries beyond what is read, a partition that ends before it begins: checksums right or not."""
    with pytest.raises(MalformedEvidence):
        gpt.parse(data)
