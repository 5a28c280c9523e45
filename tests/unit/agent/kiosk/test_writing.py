"""An image comes onto a disk whole and verified, or the disk boots nothing, wherever it is killed."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import lzma
import os
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from attestation.client import ServiceUnreachable
from attestation.errors import AttestationError, MalformedEvidence
from attestation_agent.kiosk import gpt, writing
from attestation_agent.kiosk.exits import ImageRejected, NoDisk, NoImage, WriteFailed
from attestation_agent.kiosk.fat import FAT
from attestation_agent.kiosk.writing import HEAD_BYTES, TAIL_BYTES, Plan, Target, install
from tests.unit.agent.kiosk.bench import ESP_AT, MIB, Served, make_image, table

DISK_BYTES = 12 * MIB
OLD_HEAD = table((gpt.ESP, gpt.ESP, MIB, MIB))


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An image that boots."""
    return make_image(tmp_path_factory.mktemp("image"))


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A disk with another system on it, and a copy of its table at its end."""
    path = tmp_path / "sda"
    with path.open("wb") as file:
        file.write(OLD_HEAD)
        file.truncate(DISK_BYTES)
        file.seek(DISK_BYTES - 512)
        file.write(b"EFI PART".ljust(512, b"x"))
    return path


def plan(source: Served, **changes: object) -> Plan:
    """Return the plan to write what *source* has."""
    values = {
        "source": source,
        "sha256": hashlib.sha256(source.data).digest(),
        "files": {"EFI/itl/tpm-receipt.json": b"{}\n"},
        "sector_bytes": 512,
        "retry": lambda error, failures: failures < 3,
        "progress": lambda step, done, whole: None,
    }
    return Plan(**(values | changes))  # type: ignore[arg-type]


def written(disk: Path, made: Plan) -> None:
    """Install."""
    with Target(disk, number=None) as target:
        install(target, made)


def holds(disk: Path, image: bytes) -> bool:
    """Return True if the image is there, byte for byte but for its ESP, which has the receipt too."""
    data, esp = disk.read_bytes(), FAT(path=disk, start_bytes=ESP_AT)
    return (
        data[:ESP_AT] == image[:ESP_AT]
        and data[3 * MIB : 4 * MIB] == image[3 * MIB :]
        and esp.read("EFI/itl/tpm-receipt.json", max_bytes=99) == b"{}\n"
        and esp.read("EFI/BOOT/BOOTX64.EFI", max_bytes=99) == b"MZ loader"
    )


def boots(disk: Path) -> bool:
    """Return True if firmware would find anything: a table, its copy at the end, or the mark of a boot sector."""
    data = disk.read_bytes()
    try:
        gpt.parse(data[:HEAD_BYTES])
    except MalformedEvidence:
        return data[510:512] == b"\x55\xaa" or b"EFI PART" in data[-TAIL_BYTES:]
    return True


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [
        (".raw", lambda data: data),
        (".raw.xz", lzma.compress),
        (".raw.xz", lambda data: lzma.compress(data[:MIB]) + bytes(8) + lzma.compress(data[MIB:])),
        (".raw.gz", lambda data: _gzip(data[:MIB]) + _gzip(data[MIB:])),
    ],
)
def test_the_disk_holds_the_image_and_the_receipt(
    disk: Path, image: bytes, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    """Byte for byte, but for what is left on its ESP; also where it came in pieces and streams."""
    written(disk, plan(Served("os" + suffix, pack(image))))
    assert holds(disk, image)
    assert b"EFI PART" not in disk.read_bytes()[-TAIL_BYTES:]


def _gzip(data: bytes) -> bytes:
    made = zlib.compressobj(1, zlib.DEFLATED, 31)
    return made.compress(data) + made.flush()


@pytest.mark.threat("T330")
def test_what_breaks_off_goes_on_where_it_did(disk: Path, image: bytes) -> None:
    """A connection that breaks costs what was on its way, and only a source that gives nearly nothing ends it."""
    source, broken = Served("os.raw", image), [300_000, 300_000, 2_000_000, 3_100_000, 3_200_000]

    def on_piece(at: int) -> None:
        if broken and at >= broken[0]:
            broken.pop(0)
            raise ServiceUnreachable("broke off")

    source.on_piece = on_piece
    written(disk, plan(source))
    assert source.asked == [0, 300_000, 300_000, 2_000_000, 3_100_000, 3_200_000]
    for steps in ([0, 0, 0], [100_000, 200_000, 300_000]):
        broken[:] = steps
        with pytest.raises(NoImage, match="broke off"):
            written(disk, plan(source))
        assert not boots(disk)


@pytest.mark.threat("T330")
@pytest.mark.parametrize(
    ("name", "change", "error", "words"),
    [
        ("os.raw", lambda data: data[:-1] + b"x", ImageRejected, "signed list says"),
        ("os.raw", lambda data: data + bytes(MIB * 3 // 2), WriteFailed, "half of the disk"),
    ],
)
def test_what_the_list_does_not_say_leaves_nothing_that_boots(
    disk: Path,
    image: bytes,
    name: str,
    change: Callable[[bytes], bytes],
    error: type[AttestationError],
    words: str,
) -> None:
    """Neither the image, nor what was on the disk before."""
    source = Served(name, change(image))
    with pytest.raises(error, match=words):
        written(disk, plan(source, sha256=hashlib.sha256(image).digest()))
    assert not boots(disk)


@pytest.mark.threat("T330")
@pytest.mark.parametrize(
    ("name", "make", "error", "words"),
    [
        ("os.raw.xz", lambda image: lzma.compress(image)[:-20], ImageRejected, "ends before"),
        ("os.raw.xz", lambda image: image, ImageRejected, "does not unpack"),
        ("os.raw.xz", lambda image: b"", ImageRejected, "ends before"),
        ("os.raw.xz", lambda image: lzma.compress(bytes(7 * MIB)), WriteFailed, "no room"),
        ("os.raw.gz", lambda image: _gzip(image)[:-20], ImageRejected, "ends before"),
        ("os.raw", lambda image: image[:MIB], ImageRejected, "does not lie in it"),
        ("os.raw", lambda image: image[: MIB - 1], ImageRejected, "no disk"),
        ("os.raw", lambda image: bytes(2 * MIB), ImageRejected, "no partition table"),
        (
            "os.raw",
            lambda image: table((gpt.ESP, gpt.ESP, 4096, 4096)) + bytes(MIB),
            ImageRejected,
            "does not lie in it",
        ),
        ("os.raw", lambda image: table() + bytes(MIB), ImageRejected, "no EFI system partition"),
        (
            "os.raw",
            lambda image: table((gpt.ESP, gpt.ESP, MIB, MIB)) + bytes(MIB),
            WriteFailed,
            "cannot be written",
        ),
        ("os.raw", lambda image: table(sector_bytes=4096) + bytes(MIB), ImageRejected, "sectors of 4096"),
    ],
)
def test_a_signed_image_that_is_none_leaves_nothing_that_boots(
    disk: Path,
    image: bytes,
    name: str,
    make: Callable[[bytes], bytes],
    error: type[AttestationError],
    words: str,
) -> None:
    """Who signs can err, too: a bomb, a file cut off, an image without an ESP or for other sectors."""
    with pytest.raises(error, match=words):
        written(disk, plan(Served(name, make(image))))
    assert not boots(disk)


class Killed(BaseException):
    """The power is gone."""


@pytest.mark.threat("T330")
def test_killed_at_any_call_it_boots_nothing_or_the_whole_image(
    disk: Path, image: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first write to the last, and while it reads back; the run after it begins anew, and succeeds."""
    real = {name: getattr(os, name) for name in ("pread", "pwrite", "fsync")}
    steps = 0
    dies_at = 0

    def step(name: str) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            nonlocal steps
            if arguments[0] in ours:
                steps += 1
                if steps == dies_at:
                    raise Killed
            return real[name](*arguments)

        return call

    ours: list[int] = []
    made = Target(disk, number=None)
    ours.append(made._fd)
    for name in real:
        monkeypatch.setattr(os, name, step(name))
    before = disk.read_bytes()
    source = Served("os.raw", image, piece=2 * MIB)
    install(made, plan(source))
    count = steps
    assert count > 8
    for dies_at in range(1, count + 1):
        steps = 0
        disk.write_bytes(before)
        with pytest.raises(Killed):
            install(made, plan(source))
        data = disk.read_bytes()
        if data[:HEAD_BYTES] != before[:HEAD_BYTES] and boots(disk):
            assert holds(disk, image), dies_at
    steps, dies_at = 0, 0
    install(made, plan(source))
    assert holds(disk, image)
    made.close()


@pytest.mark.threat("T330")
def test_a_disk_that_gives_back_other_bytes_boots_nothing(
    disk: Path, image: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it holds is what is read from it, not what was written to it."""
    lies_at: list[int] = []
    real = os.pread

    def pread(fd: int, size: int, at: int) -> bytes:
        data = real(fd, size, at)
        return data[:-1] + bytes([data[-1] ^ 1]) if at in lies_at else data

    monkeypatch.setattr(os, "pread", pread)
    for at, error in ((DISK_BYTES // 2, ImageRejected), (3 * MIB, WriteFailed), (0, WriteFailed)):
        lies_at[:] = [at]
        with pytest.raises(error):
            written(disk, plan(Served("os.raw", image)))
        assert not boots(disk)


@pytest.mark.threat("T331")
def test_only_a_device_is_written(disk: Path) -> None:
    """A file is none, where the kernel knows a disk of that name; what is not there is none."""
    with pytest.raises(NoDisk, match="not the disk 8:16"):
        Target(disk, number="8:16")
    with pytest.raises(NoDisk, match="No such file"):
        Target(disk.with_name("sdz"), number=None)


@pytest.mark.threat("T331")
def test_a_disk_that_took_name_and_number_is_not_written(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An approval may take a day; what was pulled out and what was plugged in meanwhile, the kernel counted."""
    monkeypatch.setattr(writing, "_number", lambda found: "8:16")
    with pytest.raises(NoDisk, match="not the disk 8:16"):  # a file: the kernel counts none
        Target(disk, number="8:16", sequence="9")
    asked: list[int] = []

    def ioctl(fd: int, request: int, room: bytes) -> bytes:
        asked.append(request)
        return (9).to_bytes(8, sys.byteorder)

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    Target(disk, number="8:16", sequence="9").close()
    with pytest.raises(NoDisk, match="not the disk 8:16"):
        Target(disk, number="8:16", sequence="8")
    assert asked == [0x8008_1280] * 2


@pytest.mark.threat("T331")
def test_a_disk_that_the_kernel_uses_is_not_opened(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mounted, or part of another device: the kernel says so to who asks for it alone."""

    def busy(path: Path, flags: int) -> int:
        raise OSError(errno.EBUSY if flags & os.O_EXCL else errno.ENOENT, "as the kernel says")

    monkeypatch.setattr(os, "open", busy)
    with pytest.raises(NoDisk) as caught:
        Target(disk, number=None)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EBUSY
