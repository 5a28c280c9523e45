"""What is collected for a challenge, by backend, and what each missing or unreadable device is called (C13)."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attestation.api.runs import DeviceUnavailable, RunChallenge
from attestation.device import AKType, NodeTPM, Quote
from attestation.device.guest_ioctl import GuestDevice
from attestation.device.tsm import TsmReport
from attestation.errors import DeviceError
from attestation.report_data import report_data
from attestation.wire import b64decode, b64encode
from attestation_operator.runs.agent_devices import (
    TPM_TRIES,
    ChallengeRefused,
    Devices,
    Places,
    nonce_of,
)
from attestation_testing.tee.amd import Pki, Processor
from attestation_testing.tee.intel import Platform, td_report
from attestation_testing.tee.tsm import FakeTsm
from tests.unit.operator.doubles import Log
from tests.unit.operator.runs.agent_world import NODE, challenge

ROOT = Path("/sys/kernel/config/tsm/report")
PROCESSOR, PLATFORM = Processor(pki=Pki()), Platform()
SNP = lambda data: (PROCESSOR.report(data), PROCESSOR.cert_table())  # noqa: E731
TDX = lambda data: (PLATFORM.quote(td_report(data)), b"")  # noqa: E731


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A node without any device."""
    absent = tmp_path / "absent"
    return Places(
        tpms=(str(absent),),
        ak=AKType.ECC_P256,
        event_log=absent,
        sev_guest=absent,
        tdx_guests=(absent,),
        tsm=ROOT,
        ccel=tmp_path / "tables" / "CCEL",
    )


def of(places: Places, files: FakeTsm | None = None, log: Log | None = None, **how: Any) -> Devices:
    """Return the devices at *places*, with configfs-tsm as *files* have it."""
    absent = FakeTsm(root=ROOT, provider="", says=SNP, errno_of={("make", ""): errno.ENOENT})
    how.setdefault("tsm", TsmReport(ROOT, files or absent, pause=lambda _: None))
    return Devices(places, warn=(log or Log()).warning, pause=lambda _: None, **how)


def asked(backend: str = "tpm", **changed: Any) -> RunChallenge:
    """Return a challenge."""
    pcrs: dict[str, Any] = {} if backend == "tpm" else {"pcr_bank": None, "pcrs": ()}
    return challenge(backend=backend, **(pcrs | changed))


def fault(devices: Devices, backend: str) -> str:
    """Return why there is no evidence; it is a code of the interface."""
    with pytest.raises(DeviceError) as told:
        devices.collect(asked(backend), NODE.uid)
    DeviceUnavailable.model_validate({"code": f"device-{told.value.fault}", "detail": str(told.value)})
    return told.value.fault


def test_a_nonce_has_32_bytes() -> None:
    """Anything else is no nonce of a run."""
    assert len(nonce_of(asked())) == 32
    for nonce in (b64encode(bytes(31)), b64encode(bytes(64)), "!"):
        with pytest.raises(ChallengeRefused):
            nonce_of(asked(nonce=nonce))


# Confidential hardware


@pytest.mark.parametrize(
    ("backend", "provider", "says"), [("sev-snp", "sev_guest", SNP), ("tdx", "tdx_guest", TDX)]
)
def test_a_report_is_over_challenge_and_node(
    places: Places, backend: str, provider: str, says: Callable[[bytes], tuple[bytes, bytes]]
) -> None:
    """The 64 bytes of mode `itl-v1`, which the service computes again: nonce and UID of the Node."""
    (item,) = of(places, FakeTsm(root=ROOT, provider=provider, says=says)).collect(asked(backend), NODE.uid)
    data = report_data(backend, nonce_of(asked(backend)), NODE.uid)
    assert isinstance(item.value, dict)
    if backend == "tdx":
        assert (item.media_type, list(item.value)) == ("application/vnd.itl.tdx-quote", ["quote"])
        assert b64decode(item.value["quote"], "quote")[48 + 0x208 : 48 + 0x248] == data
    else:
        assert (item.media_type, list(item.value)) == (
            "application/vnd.itl.sev-snp",
            ["report", "cert_table"],
        )
        assert b64decode(item.value["report"], "report")[0x50:0x90] == data


def test_the_measurement_log_of_tdx_comes_with_the_quote(places: Places) -> None:
    """Table and log from the places that were chosen."""
    (places.ccel.parent / "data").mkdir(parents=True)
    places.ccel.write_bytes(b"a table")
    (places.ccel.parent / "data" / places.ccel.name).write_bytes(b"a log")
    (item,) = of(places, FakeTsm(root=ROOT, provider="tdx_guest", says=TDX)).collect(asked("tdx"), NODE.uid)
    assert isinstance(item.value, dict)
    assert b64decode(item.value["ccel_table"], "") == b"a table"
    assert b64decode(item.value["ccel"], "") == b"a log"


@pytest.mark.parametrize("backend", ["sev-snp", "tdx"])
@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOENT, "absent"),
        (errno.EACCES, "denied"),
        (errno.EPERM, "denied"),
        (errno.EBUSY, "busy"),
        (errno.ENXIO, "no-provider"),
        (errno.EIO, "failed"),
        (errno.ENOMEM, "failed"),
    ],
)
def test_each_fault_of_configfs(places: Places, backend: str, number: int, expected: str) -> None:
    """C13, where the entry of a report is made."""
    files = FakeTsm(root=ROOT, provider="sev_guest", says=SNP, errno_of={("make", ""): number})
    # What is not there is looked for as a device too, which is absent here.
    assert fault(of(places, files), backend) == ("absent" if expected == "absent" else expected)


@pytest.mark.parametrize(("backend", "provider"), [("sev-snp", "sev_guest"), ("tdx", "tdx_guest")])
def test_a_report_of_another_size(places: Places, backend: str, provider: str) -> None:
    """C13: it is malformed, whatever is in it."""
    for size in (0, 40, 1183, 1185, (32 << 10) + 1):
        files = FakeTsm(root=ROOT, provider=provider, says=lambda _, n=size: (bytes(n), b""))  # type: ignore[misc]
        assert fault(of(places, files), backend) == "malformed", size


def test_the_hardware_of_another_maker_is_absent(places: Places) -> None:
    """A run for SEV-SNP on a node with TDX gets no TDX quote."""
    assert fault(of(places, FakeTsm(root=ROOT, provider="tdx_guest", says=TDX)), "sev-snp") == "absent"
    assert fault(of(places, FakeTsm(root=ROOT, provider="sev_guest", says=SNP)), "tdx") == "absent"
    unknown = FakeTsm(root=ROOT, provider="arm_cca_guest", says=SNP)
    assert fault(of(places, unknown), "tdx") == "no-provider"


@pytest.mark.parametrize(
    ("number", "expected"),
    [(errno.EACCES, "denied"), (errno.EBUSY, "busy"), (errno.ENXIO, "no-provider"), (errno.EIO, "failed")],
)
@pytest.mark.parametrize("backend", ["sev-snp", "tdx"])
def test_each_fault_of_the_devices(
    places: Places, tmp_path: Path, backend: str, number: int, expected: str
) -> None:
    """C13, where there is no configfs-tsm: by ioctl."""
    file = tmp_path / "device"
    file.touch()
    here = replace(places, **({"sev_guest": file} if backend == "sev-snp" else {"tdx_guests": (file,)}))

    def ioctl(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    guest = GuestDevice(here.sev_guest, here.tdx_guests, ioctl=ioctl, pause=lambda _: None)
    # What has no provider is nothing that another way could not have.
    assert fault(of(here, guest=guest), backend) == ("absent" if expected == "no-provider" else expected)


# The TPM


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOENT, "absent"),
        (errno.EACCES, "denied"),
        (errno.EPERM, "denied"),
        (errno.EBUSY, "busy"),
        (errno.ENXIO, "no-provider"),
        (errno.ENODEV, "no-provider"),
        (errno.EIO, "failed"),
    ],
)
def test_each_fault_of_a_tpm(
    places: Places, monkeypatch: pytest.MonkeyPatch, number: int, expected: str
) -> None:
    """C13, where the device is opened; one that is busy is asked again before that is said."""
    tries = []

    def refuse(path: Any, *_: Any, **__: Any) -> int:
        tries.append(path)
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr("attestation.device.transport.os.open", refuse)
        found = fault(of(replace(places, tpms=("/dev/tpmrm0",))), "tpm")
    assert found == expected
    assert len(tries) == (TPM_TRIES if expected == "busy" else 1)


class OpenTPM:
    """A TPM that was opened."""

    def __init__(self) -> None:
        self.quotes, self.closed = 0, 0
        self.failing: DeviceError | None = None

    def quote(self, nonce: bytes, selection: Any) -> Quote:
        """Quote, unless it fails."""
        self.quotes += 1
        if self.failing is not None:
            raise self.failing
        return Quote(attest=nonce, signature=b"signed", pcr_values={"sha256": {0: bytes(32)}})

    def close(self) -> None:
        """Let go."""
        self.closed += 1
        raise DeviceError("it is gone")  # also that is no fault of a quote


@pytest.mark.parametrize(
    ("named", "is_held"),
    [("/dev/tpmrm0", True), ("device:/dev/tpmrm1", True), ("/dev/tpm0", False), ("unix:/tpmrm0", False)],
)
def test_only_a_tpm_that_the_kernel_shares_is_held(
    places: Places, monkeypatch: pytest.MonkeyPatch, named: str, is_held: bool
) -> None:
    """Its key is derived once, which takes an RSA key long; every other TPM is let go, for others use it too."""
    opened: list[OpenTPM] = []

    def open_(uri: str, *, ak: AKType) -> OpenTPM:
        opened.append(OpenTPM())
        return opened[-1]

    monkeypatch.setattr(NodeTPM, "open", open_)
    devices = of(replace(places, tpms=(named,)))
    for _ in range(3):
        devices.collect(asked(), NODE.uid)
    assert [(tpm.quotes, tpm.closed) for tpm in opened] == ([(3, 0)] if is_held else [(1, 1)] * 3)
    if is_held:
        # It was reset: what is held fails, one that is opened anew does not.
        opened[0].failing = DeviceError("no such handle")
        devices.collect(asked(), NODE.uid)
        devices.collect(asked(), NODE.uid)
        assert [(tpm.quotes, tpm.closed) for tpm in opened] == [(4, 1), (2, 0)]


def test_a_tpm_that_fails_when_it_is_opened_anew_is_let_go(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its fault is told."""
    tpm = OpenTPM()
    tpm.failing = DeviceError("it fails", fault="malformed")
    monkeypatch.setattr(NodeTPM, "open", lambda *_, **__: tpm)
    devices = of(replace(places, tpms=("/dev/tpmrm0",)))
    for _ in range(2):
        assert fault(devices, "tpm") == "malformed"
    assert (tpm.quotes, tpm.closed) == (2, 2)


@contextlib.contextmanager
def answering(folder: Path, answer: bytes) -> Iterator[str]:
    """Listen where a TPM would, and answer each command with *answer*; yield its URI."""
    path = folder / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen(1)

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    while connection.recv(4096):
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"unix:{path}"
        finally:
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
            thread.join(10)


@pytest.mark.parametrize(
    "answer",
    [
        b"\x80\x01\x00\x00\x00\x05\x00\x00\x00\x00",  # shorter than a header
        b"\x80\x01\x7f\xff\xff\xff\x00\x00\x00\x00",  # longer than any response
        b"\x80\x01\x00\x00\x00\x0b\x00\x00\x00\x00!",  # no tag of this command's answer, and a byte too many
    ],
)
def test_a_tpm_that_answers_another_size(places: Places, tmp_path: Path, answer: bytes) -> None:
    """C13: it is malformed."""
    with answering(tmp_path, answer) as uri:
        assert fault(of(replace(places, tpms=(uri,))), "tpm") == "malformed"


# What is there


def test_what_is_there_is_found_without_asking_it(places: Places, tmp_path: Path) -> None:
    """The provider of configfs-tsm, the devices, the TPM; nothing where there is nothing."""

    def never(_: bytes) -> tuple[bytes, bytes]:
        raise AssertionError("a report was asked for")

    assert of(places).found() == frozenset()
    for provider, backend in (("sev_guest", "sev-snp"), ("tdx_guest", "tdx")):
        files = FakeTsm(root=ROOT, provider=provider, says=never)
        assert of(places, files).found() == {backend}
        assert files.entries == {}
    assert of(places, FakeTsm(root=ROOT, provider="arm_cca_guest", says=never)).found() == frozenset()
    device = tmp_path / "device"
    device.touch()
    assert of(replace(places, sev_guest=device)).found() == {"sev-snp"}
    assert of(replace(places, tdx_guests=(places.sev_guest, device))).found() == {"tdx"}
    assert of(replace(places, tpms=(str(device),))).found() == {"tpm"}
    assert of(replace(places, tpms=(f"unix:{device}",))).found() == {"tpm"}
    assert of(replace(places, tpms=("tcp:127.0.0.1:1",))).found() == {"tpm"}
