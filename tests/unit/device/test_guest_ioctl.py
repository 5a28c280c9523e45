"""The devices of a guest: number and bytes of each request, retries, and what each failure is called."""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from attestation.device.guest_ioctl import (
    ATTEMPTS,
    SNP_GET_EXT_REPORT,
    TDX_GET_QUOTE,
    TDX_GET_REPORT,
    GuestDevice,
    first_that_answers,
)
from attestation.device.tsm import MAX_BLOB_BYTES, TsmQuote
from attestation.errors import TEEDeviceError
from attestation_testing.tee.amd import Pki, Processor
from attestation_testing.tee.intel import Platform, td_report

DATA = bytes(range(64))
PROCESSOR, PLATFORM = Processor(pki=Pki()), Platform()
Argument = ctypes.Array[ctypes.c_char]


class Kernel:
    """What the kernel does with a request; each fault once, then it answers."""

    def __init__(self, *faults: tuple[int, int]) -> None:
        self.faults = list(faults)
        self.numbers: list[int] = []
        self.paused: list[float] = []
        self.status, self.size, self.quote_status, self.flights = 0, 1184, 0, 0
        self.quote = PLATFORM.quote(td_report(DATA))
        self.quote_size: int | None = None
        self._buffer = 0

    def __call__(self, descriptor: int, request: int, argument: Argument) -> int:
        """Answer one request."""
        self.numbers.append(request)
        if self.faults:
            number, host = self.faults.pop(0)
            ctypes.memmove(ctypes.addressof(argument) + 28, host.to_bytes(4, "little"), 4)
            raise OSError(number, "told")
        if request == SNP_GET_EXT_REPORT:
            self._snp(argument)
        elif request == TDX_GET_REPORT:
            assert argument.raw[:64] == DATA
            assert len(argument) == 1088
            ctypes.memmove(ctypes.addressof(argument) + 64, b"\x81" + bytes(1023), 1024)
        else:
            assert request == TDX_GET_QUOTE
            self._tdx(argument)
        return 0

    def _snp(self, argument: Argument) -> None:
        raw = argument.raw
        assert (len(raw), raw[:8]) == (32, (1).to_bytes(8, "little"))
        asked = ctypes.string_at(int.from_bytes(raw[8:16], "little"), 112)
        assert (asked[:64], asked[64:96]) == (DATA, bytes(32))
        assert asked[104:112] == MAX_BLOB_BYTES.to_bytes(4, "little") + bytes(4)
        table = PROCESSOR.cert_table()
        ctypes.memmove(int.from_bytes(asked[96:104], "little"), table, len(table))
        head = self.status.to_bytes(4, "little") + self.size.to_bytes(4, "little") + bytes(24)
        answer = head + PROCESSOR.report(DATA)
        ctypes.memmove(int.from_bytes(raw[16:24], "little"), answer, len(answer))

    def _tdx(self, argument: Argument) -> None:
        raw = argument.raw
        assert (len(raw), int.from_bytes(raw[8:16], "little")) == (16, MAX_BLOB_BYTES)
        self._buffer = int.from_bytes(raw[:8], "little")
        head = ctypes.string_at(self._buffer, 25)
        assert (
            head == (1).to_bytes(8, "little") + bytes(8) + (1024).to_bytes(4, "little") + bytes(4) + b"\x81"
        )
        self._answer()

    def _answer(self) -> None:
        status = (1 << 64) - 1 if self.flights else self.quote_status
        size = len(self.quote) if self.quote_size is None else self.quote_size
        head = status.to_bytes(8, "little") + (1024).to_bytes(4, "little") + size.to_bytes(4, "little")
        ctypes.memmove(self._buffer + 8, head + self.quote, 16 + len(self.quote))

    def pause(self, seconds: float) -> None:
        """Let time pass: a quote that is in flight comes nearer."""
        self.paused.append(seconds)
        if self.flights:
            self.flights -= 1
            self._answer()


@pytest.fixture
def device(tmp_path: Path) -> Callable[..., GuestDevice]:
    """Return a guest's device of AMD or Intel, whose kernel is the given one."""

    def made(kernel: Kernel, tee: str = "sev") -> GuestDevice:
        path = tmp_path / tee
        path.touch()
        absent = tmp_path / "absent"
        sev, tdx = (path, absent) if tee == "sev" else (absent, path)
        return GuestDevice(sev, (absent, tdx), ioctl=kernel, pause=kernel.pause)

    return made


def test_a_report_with_its_certificates(device: Callable[..., GuestDevice]) -> None:
    """By one request, whose number and bytes are those of the header."""
    kernel = Kernel()
    found = device(kernel).quote(DATA)
    assert (found.provider, found.outblob[0x50:0x90]) == ("sev_guest", DATA)
    assert found.auxblob.startswith(PROCESSOR.cert_table())
    assert kernel.numbers == [SNP_GET_EXT_REPORT] == [0xC0205302]


def test_a_quote_that_takes_its_time(device: Callable[..., GuestDevice]) -> None:
    """A TDREPORT first, then the quote, which is waited for."""
    kernel = Kernel()
    kernel.flights = 3
    found = device(kernel, "tdx").quote(DATA)
    assert found == TsmQuote("tdx_guest", kernel.quote, b"")
    assert kernel.numbers == [0xC4405401, 0xC0105402]
    assert len(kernel.paused) == 3


def test_a_host_that_is_busy_is_asked_again(device: Callable[..., GuestDevice]) -> None:
    """So often, and no more."""
    kernel = Kernel((errno.EIO, 2), (errno.EIO, 2))
    assert device(kernel).quote(DATA).provider == "sev_guest"
    assert len(kernel.paused) == 2
    kernel = Kernel(*[(errno.EIO, 2)] * ATTEMPTS)
    with pytest.raises(TEEDeviceError) as told:
        device(kernel).quote(DATA)
    assert told.value.fault == "busy"
    assert len(kernel.numbers) == ATTEMPTS


@pytest.mark.parametrize(
    ("number", "host", "fault"),
    [
        (errno.EIO, 1, "malformed"),
        (errno.EIO, 0, "failed"),
        (errno.ENOTTY, 0, "no-provider"),
        (errno.EACCES, 0, "denied"),
        (errno.EBUSY, 0, "busy"),
        (errno.ENXIO, 0, "no-provider"),
    ],
)
def test_what_a_failure_is_called(
    device: Callable[..., GuestDevice], number: int, host: int, fault: str
) -> None:
    """By errno, and by what the host says."""
    for tee in ("sev", "tdx") if not host else ("sev",):
        with pytest.raises(TEEDeviceError) as told:
            device(Kernel((number, host)), tee).quote(DATA)
        assert told.value.fault == fault


def test_answers_that_cannot_be(device: Callable[..., GuestDevice]) -> None:
    """A status, another size, a quoting service that fails or never comes."""
    for name, value, tee, fault in (
        ("status", 0x16, "sev", "malformed"),
        ("size", 4, "sev", "malformed"),
        ("quote_status", 0x8000000000000001, "tdx", "no-provider"),
        ("quote_size", 0, "tdx", "malformed"),
        ("quote_size", MAX_BLOB_BYTES, "tdx", "malformed"),
        ("flights", 10_000, "tdx", "busy"),
    ):
        kernel = Kernel()
        setattr(kernel, name, value)
        with pytest.raises(TEEDeviceError) as told:
            device(kernel, tee).quote(DATA)
        assert told.value.fault == fault, name


def test_no_device_and_one_that_is_denied(tmp_path: Path) -> None:
    """The first is absent, so another way is tried; the second is there."""
    absent = tmp_path / "absent"
    with pytest.raises(TEEDeviceError) as told:
        GuestDevice(absent, (absent,)).quote(DATA)
    assert told.value.fault == "absent"
    with pytest.raises(TEEDeviceError) as told:
        GuestDevice(tmp_path, (absent,)).quote(DATA)
    assert told.value.fault == "failed"  # a directory
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(TEEDeviceError) as told:
        GuestDevice(file, (absent,)).quote(DATA)
    assert told.value.fault == "no-provider"  # no device


def test_the_first_way_that_is_there() -> None:
    """What is absent gives way; what is denied does not."""

    def fails(fault: str) -> Callable[[bytes], TsmQuote]:
        def way(_: bytes) -> TsmQuote:
            raise TEEDeviceError(fault, "told")

        return way

    good = TsmQuote("sev_guest", b"x", b"")
    for fault in ("absent", "no-provider"):
        assert first_that_answers(fails(fault), lambda _: good)(DATA) == good
    for first, second, told in (("denied", "busy", "denied"), ("absent", "no-provider", "absent")):
        with pytest.raises(TEEDeviceError) as raised:
            first_that_answers(fails(first), fails(second))(DATA)
        assert raised.value.fault == told
