"""Reports by configfs-tsm: the generation protocol, each errno, and what is sent of what came."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from attestation.device.tee import TEE
from attestation.device.tsm import ATTEMPTS, MAX_BLOB_BYTES, Disk, TsmReport
from attestation.errors import TEEDeviceError
from attestation.report_data import hardware_fingerprint
from attestation_testing.tee.amd import Pki, Processor
from attestation_testing.tee.intel import Platform, td_report
from attestation_testing.tee.tsm import Entry, FakeTsm

ROOT = Path("/sys/kernel/config/tsm/report")
DATA = bytes(range(64))
NAME = b"\x05" * 32
PROCESSOR, PLATFORM = Processor(pki=Pki()), Platform()


def snp(data: bytes) -> tuple[bytes, bytes]:
    return PROCESSOR.report(data, host_data=NAME), PROCESSOR.cert_table()


def tdx(data: bytes) -> tuple[bytes, bytes]:
    return PLATFORM.quote(td_report(data, mrconfigid=NAME + bytes(16))), b""


def fake(**changed: Any) -> FakeTsm:
    chosen: dict[str, Any] = {"root": ROOT, "provider": "sev_guest", "says": snp}
    return FakeTsm(**(chosen | changed))


def report(files: FakeTsm) -> TsmReport:
    return TsmReport(ROOT, files, pause=lambda _: None)


def fault(files: FakeTsm) -> str:
    with pytest.raises(TEEDeviceError) as raised:
        report(files).quote(DATA)
    assert files.entries == {} or ("remove", "") in files.errno_of
    assert f"device-{raised.value.fault}" in str(raised.value)
    return raised.value.fault


def test_a_report_and_nothing_left_behind() -> None:
    """Its entry is removed."""
    files = fake()
    found = report(files).quote(DATA)
    assert (found.provider, found.outblob[0x50:0x90]) == ("sev_guest", DATA)
    assert found.auxblob == PROCESSOR.cert_table()
    assert files.entries == {}


def test_without_a_certificate_table_and_levels() -> None:
    """An attribute that the kernel does not know is absent."""
    found = report(fake(auxblob=False, privlevel_floor=None)).quote(DATA)
    assert found.auxblob == b""


def test_the_floor_is_kept() -> None:
    """Where the firmware is more privileged, the kernel reports from its own level."""
    assert report(fake(privlevel_floor=2)).quote(DATA).outblob[0x50:0x90] == DATA


@pytest.mark.parametrize(
    ("operation", "name", "number", "expected"),
    [
        ("make", "", errno.ENOENT, "absent"),
        ("make", "", errno.ENXIO, "no-provider"),
        ("make", "", errno.ENODEV, "no-provider"),
        ("make", "", errno.EACCES, "denied"),
        ("make", "", errno.EPERM, "denied"),
        ("make", "", errno.EROFS, "denied"),
        ("make", "", errno.EBUSY, "busy"),
        ("read", "outblob", errno.EBUSY, "busy"),
        ("read", "outblob", errno.EAGAIN, "busy"),
        ("read", "outblob", errno.EINTR, "busy"),
        ("read", "outblob", errno.ETIMEDOUT, "busy"),
        ("read", "outblob", errno.EINVAL, "malformed"),
        ("read", "outblob", errno.EFBIG, "malformed"),
        ("read", "outblob", errno.EIO, "failed"),
        ("write", "inblob", errno.EACCES, "denied"),
        ("read", "generation", errno.ENOENT, "absent"),
    ],
)
def test_each_errno(operation: str, name: str, number: int, expected: str) -> None:
    """Each has its fault, and the entry is removed whatever happens."""
    assert fault(fake(errno_of={(operation, name): number})) == expected


def test_without_a_driver() -> None:
    """The folder is there, the hardware is not."""
    assert fault(fake(provider="")) == "no-provider"


def test_an_entry_that_cannot_be_removed_loses_no_report() -> None:
    """It is somebody else's to clean up."""
    assert report(fake(errno_of={("remove", ""): errno.EBUSY})).quote(DATA).outblob


def test_what_is_busy_is_tried_again() -> None:
    """Until it is not; with a pause that grows."""
    files, paused = fake(errno_of={("read", "outblob"): errno.EBUSY}), []

    def pause(seconds: float) -> None:
        paused.append(seconds)
        if len(paused) == ATTEMPTS - 1:
            files.errno_of.clear()

    assert TsmReport(ROOT, files, pause).quote(DATA).outblob
    assert len(paused) == ATTEMPTS - 1


@pytest.mark.threat("T198")
@pytest.mark.parametrize("times", [1, ATTEMPTS])
def test_a_writer_that_laps(times: int) -> None:
    """Whoever writes in between is noticed by the generation; five times, and it is busy."""
    left = [times]

    def intrude(entry: Entry) -> None:
        if left[0]:
            left[0] -= 1
            entry.inblob, entry.generation = bytes(64), entry.generation + 1

    files = fake(on_write=intrude)
    if times == 1:
        assert report(files).quote(DATA).outblob[0x50:0x90] == DATA
    else:
        assert fault(files) == "busy"


@pytest.mark.threat("T198")
def test_a_write_whose_error_was_lost() -> None:
    """It did not count up: nothing of it is read."""
    files = fake()
    written = files.write
    files.write = lambda path, data: written(path, b"" if path.name == "inblob" else data)  # type: ignore[method-assign]  # a kernel that refuses at close
    assert fault(files) == "busy"


@pytest.mark.parametrize(
    "says",
    [
        lambda _: (b"", b""),
        lambda _: (bytes(MAX_BLOB_BYTES + 1), b""),
        lambda data: (snp(data)[0], bytes(MAX_BLOB_BYTES + 1)),
    ],
)
def test_blobs_of_a_wrong_size(says: Any) -> None:
    """Empty or longer than the kernel ever makes them."""
    assert fault(fake(says=says)) == "malformed"


def test_what_should_be_a_number_or_a_name() -> None:
    """Text and digits, nothing else."""
    for name, value in (("generation", b"x"), ("generation", b"9" * 21), ("provider", b"\xff")):
        files = fake()
        read = files.read

        def told(path: Path, most: int, name: str = name, value: bytes = value, read: Any = read) -> bytes:
            found: bytes = value if path.name == name else read(path, most)
            return found

        files.read = told  # type: ignore[method-assign,assignment]  # a kernel that says something else
        assert fault(files) == "malformed"


def test_the_file_system_itself(tmp_path: Path) -> None:
    """A plain folder has no attributes: it is no such device; and files are read to their end, not beyond."""
    with pytest.raises(TEEDeviceError, match="device-absent"):
        TsmReport(tmp_path).quote(DATA)
    assert list(tmp_path.iterdir()) == []
    disk, path = Disk(), tmp_path / "file"
    path.touch()
    disk.write(path, b"abcdef")
    assert (disk.read(path, 3), disk.read(path, 6)) == (b"abcd", b"abcdef")


# What is sent of it


def tee(says: Any, provider: str, tmp_path: Path, *, log: bool = False) -> TEE:
    table, events = tmp_path / "CCEL", tmp_path / "log"
    if log:
        table.write_bytes(b"table")
        events.write_bytes(b"log")
    return TEE(report(fake(says=says, provider=provider)).quote, ccel_table=table, ccel=events)


def test_of_sev_snp(tmp_path: Path) -> None:
    """Report and certificates; the name that the service will find."""
    shown = tee(snp, "sev_guest", tmp_path).show(DATA)
    assert (shown.tee, shown.media_type) == ("sev-snp", "application/vnd.itl.sev-snp")
    assert shown.members.keys() == {"report", "cert_table"}
    assert (shown.chip, shown.guest, shown.ephemeral) == (PROCESSOR.chip_id, NAME, False)
    assert shown.fingerprint(b"key") == hardware_fingerprint("sev-snp", PROCESSOR.chip_id, NAME).hex()


@pytest.mark.parametrize("log", [False, True])
def test_of_tdx(tmp_path: Path, log: bool) -> None:
    """Quote, and the log where the firmware left one."""
    shown = tee(tdx, "tdx_guest", tmp_path, log=log).show(DATA)
    assert (shown.tee, shown.media_type) == ("tdx", "application/vnd.itl.tdx-quote")
    assert shown.members.keys() == ({"quote", "ccel_table", "ccel"} if log else {"quote"})
    assert (shown.chip, shown.guest) == (PLATFORM.ppid, NAME + bytes(16))
    assert shown.without_log().members.keys() == {"quote"}


def test_of_a_guest_without_a_name(tmp_path: Path) -> None:
    """Its key is part of its name."""
    shown = tee(lambda data: (PROCESSOR.report(data), b""), "sev_guest", tmp_path).probe()
    assert shown.ephemeral
    assert shown.members.keys() == {"report"}
    assert shown.fingerprint(b"one") != shown.fingerprint(b"two")


def test_of_a_masked_chip(tmp_path: Path) -> None:
    """It has no name."""
    shown = tee(
        lambda data: (PROCESSOR.report(data, chip_id=bytes(64), host_data=NAME), b""), "sev_guest", tmp_path
    ).probe()
    assert (shown.chip, shown.ephemeral) == (b"", True)


@pytest.mark.parametrize(
    ("says", "provider", "expected"),
    [
        (snp, "arm_cca_guest", "no-provider"),
        (lambda _: (bytes(1183), b""), "sev_guest", "malformed"),
        (lambda _: (bytes(40), b""), "tdx_guest", "malformed"),
        (lambda _: (b"\x04\x00" + bytes(40), b""), "tdx_guest", "malformed"),
        (lambda data: snp(bytes(64)), "sev_guest", "busy"),
        (lambda data: tdx(bytes(64)), "tdx_guest", "busy"),
    ],
)
def test_what_is_not_ours(tmp_path: Path, says: Any, provider: str, expected: str) -> None:
    """Another hardware, no report, or one over what another program wrote."""
    with pytest.raises(TEEDeviceError) as raised:
        tee(says, provider, tmp_path).show(DATA)
    assert raised.value.fault == expected


@pytest.mark.parametrize(
    "chain",
    [
        b"",
        b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----",
    ],
)
def test_a_quote_without_a_ppid(tmp_path: Path, chain: bytes) -> None:
    """What names no platform is a machine that ends with its boot."""
    quoted = PLATFORM.quote(td_report(DATA, mrconfigid=NAME + bytes(16)))
    cut = quoted[: quoted.find(b"-----BEGIN")] + chain
    shown = tee(lambda _: (cut, b""), "tdx_guest", tmp_path).show(DATA)
    assert (shown.chip, shown.ephemeral) == (b"", True)


def test_logs_that_are_too_long_stay_away(tmp_path: Path) -> None:
    """Whether one must come is for a policy to say."""
    found = tee(tdx, "tdx_guest", tmp_path, log=True)
    (tmp_path / "CCEL").write_bytes(bytes(257))
    assert found.show(DATA).members.keys() == {"quote"}
