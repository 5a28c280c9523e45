"""The agent of a confidential machine against the service: without a TPM, and with one beside the processor."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from attestation.device.tee import TEE
from attestation.device.tsm import TsmReport
from attestation_agent.exits import Exit
from attestation_agent.guest import KEY_FILE, GuestAgent
from attestation_testing.tee.intel import ISSUED
from attestation_testing.tee.tsm import FakeTsm
from tests.fixtures.in_process import InProcessService, in_process_service
from tests.integration.agent.rig import Rig
from tests.unit.device.test_tsm import NAME, PLATFORM, PROCESSOR, ROOT, snp, tdx
from tests.unit.service.test_protocol_without_a_tpm import believing


@pytest.fixture
def service(tmp_path: Path) -> Iterator[InProcessService]:
    """A service that believes the vendors of the test kit."""
    directory = tmp_path / "vendors"
    directory.mkdir()
    with in_process_service(tmp_path, **believing(directory)) as found:
        found.clock.pass_(seconds=(ISSUED + timedelta(days=1) - found.clock.now()).total_seconds())
        yield found


class GuestRig(Rig):
    """A machine without a TPM."""

    agent = GuestAgent

    def __init__(self, service: InProcessService, tmp_path: Path, tee: str, **options: Any) -> None:
        def absent() -> Any:
            raise AssertionError("nobody asks for a TPM")

        super().__init__(service, tmp_path, open_tpm=absent, tee=tee, **options)
        provider, says = ("sev_guest", snp) if tee == "sev-snp" else ("tdx_guest", tdx)
        self.files = FakeTsm(root=ROOT, provider=provider, says=says)
        self.tee = lambda: TEE(TsmReport(ROOT, self.files, lambda _: None).quote, ccel=tmp_path / "none")


@pytest.mark.parametrize("tee", ["sev-snp", "tdx"])
def test_from_nothing_to_a_wipe(service: InProcessService, tmp_path: Path, tee: str) -> None:
    """Introduced, approved, configured, locked, unlocked, wiped; each order is acknowledged."""
    rig = GuestRig(service, tmp_path, tee, lock_command="lock", unlock_command="unlock", wipe_command="wipe")
    rig.admitted()
    operator = service.operator()
    assert service.canary in rig.config_path.read_text()
    detail = operator.machine(rig.machine_id)
    assert (detail["trust"], detail["redeliver_pending"], detail["ek_source"]) == ("verified", False, tee)
    assert detail["hardware"]["chip"] == (PROCESSOR.chip_id if tee == "sev-snp" else PLATFORM.ppid).hex()
    operator.act(rig.machine_id, "lock")
    assert rig.once() is Exit.LOCKED
    operator.act(rig.machine_id, "unlock")
    assert rig.once() is Exit.OK
    operator.act(rig.machine_id, "revoke", wipe=True)
    assert rig.once() is Exit.REVOKED
    assert [each[0] for each in rig.commands][-3:] == ["lock", "unlock", "wipe"]
    assert operator.machine(rig.machine_id)["wiped_at"] is not None
    key = rig.state.directory / KEY_FILE
    assert key.stat().st_mode & 0o777 == 0o600
    assert rig.files.entries == {}


def test_the_key_outlasts_the_agent(service: InProcessService, tmp_path: Path) -> None:
    """Another process is the same machine; with another key it is not."""
    rig = GuestRig(service, tmp_path, "sev-snp")
    rig.admitted()
    known = rig.machine_id
    assert rig.once() is Exit.OK
    assert rig.machine_id == known
    (rig.state.directory / KEY_FILE).unlink()
    assert rig.once() is not Exit.OK
    assert service.operator().machine(known)["trust"] == "verified"


def test_an_ephemeral_guest_keeps_no_key(service: InProcessService, tmp_path: Path) -> None:
    """And is let in by nobody who did not say so."""
    rig = GuestRig(service, tmp_path, "sev-snp")
    rig.files.says = lambda data: (PROCESSOR.report(data), PROCESSOR.cert_table())
    assert rig.once() is not Exit.OK
    assert not (rig.state.directory / KEY_FILE).exists()
    assert "ephemeral-forbidden" in str(rig.events.entries)


@pytest.mark.parametrize("provider", ["", "tdx_guest"])
def test_the_hardware_that_was_named_is_not_there(
    service: InProcessService, tmp_path: Path, provider: str
) -> None:
    """Nothing is introduced, and the operator reads why."""
    rig = GuestRig(service, tmp_path, "sev-snp")
    rig.files.provider, rig.files.says = provider, tdx
    with pytest.raises(Exception, match="device-no-provider"):
        rig.once()
    assert service.operator().machines() == []


def test_beside_a_tpm_it_is_seen(service: InProcessService, tmp_path: Path) -> None:
    """Once unasked; after an approval always."""
    rig = Rig(service, tmp_path)
    files = FakeTsm(root=ROOT, provider="sev_guest", says=snp)
    rig.tee = lambda: TEE(TsmReport(ROOT, files, lambda _: None).quote)
    rig.admitted()
    operator = service.operator()
    seen = operator.machine(rig.machine_id)["hardware"]
    assert (seen["chip"], seen["guest"], seen["ephemeral"]) == (PROCESSOR.chip_id.hex(), NAME.hex(), False)
    operator.act(rig.machine_id, "approve-hardware", reason="compared")
    assert rig.once() is Exit.OK
    assert operator.machine(rig.machine_id)["hardware"]["approved_chip"] == PROCESSOR.chip_id.hex()
    # It does not come any more: refused, and the machine stays away.
    files.provider = ""
    assert rig.once() is not Exit.OK
    assert "hardware.not_shown" in str(rig.events.entries)


def test_whoever_wants_none_shows_none(service: InProcessService, tmp_path: Path) -> None:
    """`--tee none`."""
    rig = Rig(service, tmp_path, tee="none")
    rig.tee = lambda: pytest.fail("asked")
    rig.admitted()
    assert service.operator().machine(rig.machine_id)["hardware"] is None
