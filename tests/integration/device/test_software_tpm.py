"""`SoftwareTPM` itself: it starts, ends and manufactures as it says, and never outlives its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from attestation.device import TPM
from attestation.errors import DeviceError
from attestation.evidence import ek_certificate
from attestation.tpm import commands, parse_public
from attestation_testing import CertificateAuthority, EKCertificateOptions, Quirk, SoftwareTPM, fleet

pytestmark = pytest.mark.swtpm


def alive(directory: Path) -> list[int]:
    """Process ids of the swtpms whose state is below *directory*."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if words[0].endswith(b"swtpm") and any(str(directory).encode() in word for word in words):
                found.append(int(entry.name))
    return found


def gone(directory: Path) -> bool:
    """Say whether no swtpm below *directory* is left, within five seconds."""
    give_up_at = time.monotonic() + 60
    while alive(directory):
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.02)
    return True


def test_stop_leaves_no_process(tmp_path: Path) -> None:
    """From start to stop there is one process, afterwards none."""
    tpm = SoftwareTPM(tmp_path / "t").start()
    states = [tpm.running]
    assert tpm.start() is tpm
    assert len(alive(tmp_path)) == 1
    tpm.stop()
    tpm.stop()
    states.append(tpm.running)
    assert states == [True, False]
    assert gone(tmp_path)


def test_socket_of_a_long_directory_stands_elsewhere_and_goes(tmp_path: Path) -> None:
    """A path beyond 107 bytes gets a socket in a directory of its own, removed at the end."""
    with SoftwareTPM(tmp_path / ("d" * 100)) as tpm:
        socket_path = Path(tpm.uri.removeprefix("unix:"))
        assert tpm.directory not in socket_path.parents
        with tpm.client() as client:
            assert client.execute(commands.get_random(8))
    assert not socket_path.parent.exists()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_tpm_outlives_its_owner(tmp_path: Path, how: signal.Signals) -> None:
    """However the owning process dies, by SIGKILL too, its TPMs end."""
    code = (
        "import signal, sys, time; from pathlib import Path; from attestation_testing import SoftwareTPM\n"
        # A shell starts what it puts into the background with SIGINT ignored, and we inherit that.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "tpms = [SoftwareTPM(Path(sys.argv[1]) / str(i)).start() for i in range(3)]\n"
        "print('up', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        assert len(alive(tmp_path)) == 3
        os.kill(owner.pid, how)
        owner.wait(60)
    assert gone(tmp_path)


def test_same_directory_is_the_same_tpm(tmp_path: Path, tpm_ca: CertificateAuthority) -> None:
    """State survives the process: EK, AK and certificate are there again."""
    with SoftwareTPM(tmp_path / "t") as tpm:
        tpm.manufacture(tpm_ca)
        with tpm.node() as node:
            before = node.identify(), node.ak_public()
    with SoftwareTPM(tmp_path / "t") as tpm, tpm.node() as node:
        assert (node.identify(), node.ak_public()) == before


def test_missing_swtpm_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where swtpm is not installed, the error says so."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeviceError, match="swtpm is not installed"):
        SoftwareTPM(tmp_path / "t").start()


def test_swtpm_that_does_not_start_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An swtpm that ends at once is reported, and nothing stays behind."""
    monkeypatch.setattr("attestation_testing.software_tpm.START_TIMEOUT_SECONDS", 0.3)
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "tpm2-00.permall").write_bytes(b"rubbish")
    (tmp_path / "t" / "tpm.sock").mkdir()
    with pytest.raises((DeviceError, OSError)):
        SoftwareTPM(tmp_path / "t").start()
    assert gone(tmp_path)


def test_manufactured_certificate_passes_the_verifier(blank_tpm: SoftwareTPM) -> None:
    """What manufacture writes meets the EK profile, for the key it stands for."""
    authority = CertificateAuthority("Maker", seed=3)
    options = EKCertificateOptions(
        manufacturer="id:49465800", model="SLB9672", quirks=frozenset({Quirk.PADDING_11})
    )
    at = datetime.now(UTC)
    written = blank_tpm.manufacture(authority, template="H-3", options=options, at=at)
    with blank_tpm.node(ek_templates=("H-3",)) as node:
        identity = node.identify()
    assert identity.ek_certificate == written
    claims = ek_certificate.verify(
        ek_certificate.parse(written), ek=parse_public(identity.ek_public), at=at, allow_simulator=False
    )
    assert (claims.vendor, claims.model) == ("IFX", "SLB9672")


def test_certificate_can_be_replaced(software_tpm: SoftwareTPM, tpm_ca: CertificateAuthority) -> None:
    """A second write to the same index replaces the first, whatever its length."""
    software_tpm.install_certificate(b"short")
    again = software_tpm.manufacture(tpm_ca)
    with software_tpm.node() as node:
        assert node.identify().ek_certificate == again


def test_fleet_starts_different_machines_and_stops_them_all(
    tmp_path: Path, tpm_ca: CertificateAuthority
) -> None:
    """Every TPM of a fleet has an identity of its own; at the end no process is left."""
    with fleet(8, tmp_path, authority=tpm_ca) as tpms:
        seen = set()
        for tpm in tpms:
            with tpm.node() as node:
                identity = node.identify()
                assert identity.ek_source == "cert"
                seen |= {identity.ek_public, node.ak_public()}
        assert len(seen) == 16
        assert len(alive(tmp_path)) == 8
    assert gone(tmp_path)


def test_fleet_that_fails_halfway_leaves_nothing(tmp_path: Path) -> None:
    """One TPM that does not come up ends the others too."""
    (tmp_path / "0003").write_text("a file where the state directory should be")

    def begin() -> None:
        with fleet(5, tmp_path):
            pytest.fail("the fleet must not come up")

    with pytest.raises(OSError, match="exists"):
        begin()
    assert gone(tmp_path)


def test_a_tpm_in_use_is_not_rebooted_in_order(
    software_tpm: SoftwareTPM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who still holds the TPM keeps reboot() from talking to it; that ends in time, with a reason."""
    with software_tpm.client() as holder:
        holder.execute(commands.get_random(8))
        monkeypatch.setattr("attestation_testing.software_tpm.COMMAND_TIMEOUT_SECONDS", 0.3)
        with pytest.raises(DeviceError, match="no answer in time"):
            software_tpm.reboot()


def test_power_cut_ends_connections(software_tpm: SoftwareTPM) -> None:
    """A client of a TPM that lost its power gets an error, not silence."""
    holder = TPM.open(software_tpm.uri)
    software_tpm.power_cut()
    with pytest.raises(DeviceError):
        holder.execute(commands.get_random(8))
    with pytest.raises(DeviceError):
        holder.execute(commands.get_random(8))
    holder.close()
