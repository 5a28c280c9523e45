"""Why a device says nothing: each errno is one word, and a TPM has the same words as confidential hardware."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from attestation.device.faults import AGAIN, fault_of
from attestation.device.guest_ioctl import GuestDevice
from attestation.device.transport import DeviceTransport, SocketTransport
from attestation.device.tsm import TsmReport
from attestation.errors import DEVICE_FAULTS, DeviceError, TEEDeviceError, TPMResponseError
from attestation.tpm import response_codes
from attestation.tpm.commands import get_properties, parse_response
from attestation_testing.tee.tsm import FakeTsm

ROOT = Path("/sys/kernel/config/tsm/report")


def test_each_errno_is_one_word() -> None:
    """Those of C13, and what has no word of its own is `failed`."""
    for name, number in vars(errno).items():
        if re.fullmatch("E[A-Z0-9]+", name):
            assert fault_of(OSError(number, os.strerror(number))) in DEVICE_FAULTS, name
    said = {
        name: fault_of(OSError(getattr(errno, name), name))
        for name in ("ENOENT", "EACCES", "EPERM", "EBUSY", "ENXIO", "EFBIG", "ECONNREFUSED", "EIO")
    }
    assert list(said.values()) == [
        "absent", "denied", "denied", "busy", "no-provider", "malformed", "absent", "failed",
    ]  # fmt: skip
    assert {fault_of(OSError(number, "")) for number in AGAIN} == {"busy"}
    assert fault_of(TimeoutError("timed out")) == "busy"  # as `socket` raises it, without a number
    assert fault_of(OSError("no number")) == "failed"


def test_a_tpm_that_cannot_be_opened(tmp_path: Path) -> None:
    """A path, a socket that is not there, one to which nobody listens."""
    for open_ in (
        lambda: DeviceTransport(str(tmp_path / "absent")),
        lambda: SocketTransport.unix(str(tmp_path / "absent")),
        lambda: SocketTransport.tcp("127.0.0.1", 1),
    ):
        with pytest.raises(DeviceError) as told:
            open_()
        assert told.value.fault == "absent"
    with pytest.raises(DeviceError) as told:
        DeviceTransport(str(tmp_path))  # a folder
    assert told.value.fault == "failed"


def test_a_tpm_that_begins_no_command_is_busy() -> None:
    """It answers that the same is to be sent again, until the time is over; any other refusal is none of that."""
    for code in (*response_codes.RESUBMIT, 0x101):
        answer = b"\x80\x01" + (10).to_bytes(4) + code.to_bytes(4)
        with pytest.raises(TPMResponseError) as told:
            parse_response(get_properties(0x100), answer, authorisations=0)
        assert told.value.fault == ("failed" if code == 0x101 else "busy")


def test_which_hardware_is_there_is_known_without_a_report(tmp_path: Path) -> None:
    """By the provider of configfs-tsm, whose entry goes again, or by the device that is there."""

    def never(_: bytes) -> tuple[bytes, bytes]:
        raise AssertionError("a report was asked for")

    files = FakeTsm(root=ROOT, provider="tdx_guest", says=never)
    assert TsmReport(ROOT, files).provider() == "tdx_guest"
    assert files.entries == {}
    files.errno_of[("read", "provider")] = errno.EACCES
    with pytest.raises(TEEDeviceError) as told:
        TsmReport(ROOT, files).provider()
    assert (told.value.fault, files.entries) == ("denied", {})
    absent, device = tmp_path / "absent", tmp_path / "device"
    device.touch()
    assert GuestDevice(device, (absent,)).provider() == "sev_guest"
    assert GuestDevice(absent, (absent, device)).provider() == "tdx_guest"
    with pytest.raises(TEEDeviceError) as told:
        GuestDevice(absent, ()).provider()
    assert told.value.fault == "absent"
