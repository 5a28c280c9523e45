"""The agent against the real service, on software TPMs and on software machines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from attestation.device import AKType
from attestation.store import open_store
from attestation_agent.exits import Exit
from attestation_service.storage.database import DatabaseNotRecognised, accept
from attestation_service.transparency.memory import MemoryFile
from attestation_testing import CertificateAuthority, SoftwareTPM
from tests.fixtures.in_process import HeldClock, InProcessService, in_process_service
from tests.fixtures.service import Operator, StartService
from tests.integration.agent.rig import Rig


@pytest.mark.swtpm
@pytest.mark.parametrize("ak", list(AKType))
def test_a_real_tpm_goes_from_nothing_to_its_configuration(
    local: InProcessService, blank_tpm: SoftwareTPM, tpm_ca: CertificateAuthority, tmp_path: Path, ak: AKType
) -> None:
    """Introduce, wait for approval, attest, open in the TPM, acknowledge; the second run changes nothing."""
    blank_tpm.manufacture(tpm_ca, at=local.clock.now())
    rig = Rig(local, tmp_path, open_tpm=lambda: blank_tpm.node(ak=ak), apply_command="apply")
    operator = local.operator()
    assert rig.once() is Exit.PENDING_APPROVAL
    assert rig.once() is Exit.PENDING_APPROVAL
    assert not rig.config_path.exists()
    operator.approve(rig.machine_id, hostname="w-1")
    assert rig.once() is Exit.OK
    assert local.canary in rig.config_path.read_text()
    assert "w-1" in rig.config_path.read_text()
    assert rig.commands == [("apply", str(rig.config_path))]
    assert [e["detail"] for e in operator.audit(action="directive_ack")] == ["done"]
    before = len(operator.audit())
    assert rig.once() is Exit.OK
    assert len(rig.commands) == 1
    assert len(operator.audit()) == before
    assert operator.machine(rig.machine_id)["trust"] == "verified"
    assert operator.audit_is_valid()
    kept = b"".join(p.read_bytes() for p in rig.state.directory.rglob("*") if p.is_file())
    assert local.canary.encode() not in kept
    assert local.canary not in repr(rig.events.entries)


def test_steady_state_keeps_trust_alive(local: InProcessService, tmp_path: Path) -> None:
    """At the pace of the service, the lease never runs out; one request a round."""
    rig = Rig(local, tmp_path)
    rig.admitted()
    trust: list[str] = []
    rig.after_round = lambda passed: trust.append(local.operator().machine(rig.machine_id)["trust"])
    assert rig.rounds(10) is Exit.OK
    assert trust == ["verified"] * 10
    assert "attempt.failed" not in rig.events.names()


def test_a_lock_is_obeyed_and_an_unlock_ends_it(local: InProcessService, tmp_path: Path) -> None:
    """Within one round each; the lock command runs once."""
    rig = Rig(local, tmp_path, lock_command="lock")
    rig.admitted()
    operator = local.operator()
    operator.act(rig.machine_id, "lock")
    assert rig.once() is Exit.LOCKED
    assert rig.once() is Exit.LOCKED
    assert rig.commands == [("lock",)]
    assert rig.state.status() == "locked"
    operator.act(rig.machine_id, "unlock")
    assert rig.once() is Exit.OK
    assert rig.state.status() == "attested"


@pytest.mark.threat("T20")
def test_a_wipe_is_on_record_before_it_begins(local: InProcessService, tmp_path: Path) -> None:
    """When the command runs, the service shows `wiped_at` already."""
    rig = Rig(local, tmp_path, wipe_command="wipe")
    rig.admitted()
    operator = local.operator()
    operator.act(rig.machine_id, "revoke", wipe=True)
    seen: list[dict[str, Any]] = []
    rig.on_command = lambda: seen.append(operator.machine(rig.machine_id))
    assert rig.once() is Exit.REVOKED
    assert rig.commands == [("wipe",)]
    assert seen[0]["wiped_at"] is not None
    assert seen[0]["wipe_pending"] is False
    assert rig.once() is Exit.REVOKED
    assert rig.commands == [("wipe",)]


def test_a_wipe_that_cannot_be_done_stays_ordered(local: InProcessService, tmp_path: Path) -> None:
    """Without a wipe command the machine says so, and is not recorded as wiped."""
    rig = Rig(local, tmp_path)
    rig.admitted()
    operator = local.operator()
    operator.act(rig.machine_id, "revoke", wipe=True)
    assert rig.once() is Exit.REVOKED
    machine = operator.machine(rig.machine_id)
    assert (machine["wipe_pending"], machine["wiped_at"]) == (True, None)


def test_a_revoked_machine_gets_nothing(local: InProcessService, tmp_path: Path) -> None:
    """And knows it."""
    rig = Rig(local, tmp_path, wipe_command="wipe")
    rig.admitted()
    local.operator().act(rig.machine_id, "revoke")
    assert rig.once() is Exit.REVOKED
    assert rig.commands == []


def test_a_rejected_machine_is_told(local: InProcessService, tmp_path: Path) -> None:
    """Exit 13, at every start."""
    rig = Rig(local, tmp_path)
    rig.once()
    local.operator().act(rig.machine_id, "reject", reason="not ours")
    assert rig.once() is Exit.REJECTED
    assert rig.once() is Exit.REJECTED


def test_an_ak_reset_is_repaired_by_the_agent(local: InProcessService, tmp_path: Path) -> None:
    """It introduces itself again under the same pins, and stays the same machine."""
    rig = Rig(local, tmp_path)
    rig.admitted()
    before = rig.machine_id
    local.operator().act(rig.machine_id, "ak-reset", reason="new key")
    assert rig.once() is Exit.OK
    assert rig.machine_id == before
    assert "enrol.again" in rig.events.names()


def test_a_redelivery_is_applied_again(local: InProcessService, tmp_path: Path) -> None:
    """At the next attestation, once."""
    rig = Rig(local, tmp_path)
    rig.admitted()
    rig.config_path.unlink()
    local.operator().act(rig.machine_id, "redeliver")
    assert rig.once() is Exit.OK
    assert local.canary in rig.config_path.read_text()
    rig.config_path.unlink()
    assert rig.once() is Exit.OK
    assert not rig.config_path.exists()


def test_a_machine_that_does_not_boot_as_expected_gets_no_configuration(
    local: InProcessService, tmp_path: Path
) -> None:
    """Exit 14; what differed is for operators only."""
    rig = Rig(local, tmp_path)
    operator = local.operator()
    strict = {
        "format": "itl-tpm-policy/1",
        "name": "strict",
        "version": 1,
        "bank": "sha256",
        "pcrs": {"0": {"any_of": ["ff" * 32]}},
    }
    operator.call("POST", "/policies", json=strict)
    operator.call("PUT", "/policies/assignments/fleet/*", json={"policy": "strict@1"})
    rig.once()
    operator.approve(rig.machine_id)
    assert rig.once() is Exit.NOT_AFFIRMED
    assert not rig.config_path.exists()
    assert "ff" * 32 not in repr(rig.events.entries)


def test_a_registration_token_admits_at_once(local: InProcessService, tmp_path: Path) -> None:
    """From nothing to the configuration in one run, without an operator."""
    operator = local.operator()
    created = operator.call(
        "POST",
        "/registration-tokens",
        json={"role": "worker-app", "expires_in_seconds": 600, "minimum_assurance": "tofu"},
    )
    (tmp_path / "token").write_text(created["token"])
    rig = Rig(local, tmp_path, registration_token_file=str(tmp_path / "token"))
    assert rig.once() is Exit.OK
    assert local.canary in rig.config_path.read_text()
    second = Rig(local, tmp_path, seed=2, registration_token_file=str(tmp_path / "token"))
    assert second.once() is Exit.PENDING_APPROVAL


@pytest.mark.threat("T19")
def test_a_service_with_other_keys_is_not_obeyed(local: InProcessService, tmp_path: Path) -> None:
    """Rebuilt or impersonated: the agent cannot tell, and refuses both."""
    rig = Rig(local, tmp_path, wipe_command="wipe")
    rig.admitted()
    with in_process_service(tmp_path / "impostor") as impostor:
        rig.service = impostor
        assert rig.once() is Exit.NOT_AUTHENTIC
        rig.service = local
    assert rig.once() is Exit.OK
    assert rig.commands == []


def test_a_restored_service_is_introduced_to_again(tmp_path: Path) -> None:
    """The database is an older one that somebody accepted: the machine comes back as pending, by itself."""
    with in_process_service(tmp_path / "service") as first:
        rig = Rig(first, tmp_path)
        rig.admitted()
        lost = rig.machine_id
        # The keys know of it from the signature on, which follows the act.
        _until(lambda: MemoryFile.of(first.settings).demand().last.size > 0)
    for file in (tmp_path / "service").glob("machines.db*"):
        file.unlink()
    name = {"audit_origin": "service.example/audit/2"}
    with pytest.raises(DatabaseNotRecognised), in_process_service(tmp_path / "service", **name):
        pass
    settings = first.settings.model_copy(update=name)
    with closing(open_store(settings.db_url)) as store:
        accept(settings, store, HeldClock())
    with in_process_service(tmp_path / "service", **name) as second:
        rig.service = second
        assert rig.once() is Exit.PENDING_APPROVAL
        assert rig.machine_id != lost


@pytest.mark.swtpm
@pytest.mark.slow
def test_the_process_lives_through_a_restart_of_the_service_and_ends_on_sigterm(
    start_service: StartService, software_tpm: SoftwareTPM, tmp_path: Path
) -> None:
    """`itl-tpm-register` as an image runs it: JSON logs, back-off, recovery, a clean end."""
    service = start_service(ITL_REATTEST_SECONDS="1")
    operator = service.operator()
    config = tmp_path / "config.yaml"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("ITL_", "COVERAGE_"))} | {
        "ITL_REG_URL": service.url,
        "ITL_TPM": software_tpm.uri,
        "ITL_STATE_DIR": str(tmp_path / "state"),
        "ITL_CONFIG_PATH": str(config),
        "ITL_SPLAY_SECONDS": "0",
        "ITL_APPLY_COMMAND": "cp -t " + str(_made(tmp_path / "applied")),
    }
    log = tmp_path / "agent.log"
    with log.open("wb") as out:
        agent = subprocess.Popen(
            [str(Path(sys.executable).with_name("itl-tpm-register"))],
            env=environment,
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
        )
    try:
        machine_id = _until(lambda: _only_machine(operator))["machine_id"]
        operator.approve(machine_id)
        _until(lambda: (tmp_path / "applied" / "config.yaml").exists())
        service.stop()
        _until(lambda: "service-unreachable" in log.read_text())
        service.start()
        at = operator.machine(machine_id)["last_result"]["at"]
        _until(lambda: operator.machine(machine_id)["last_result"]["at"] > at)
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(60) == 0
    finally:
        operator.http.close()
        if agent.poll() is None:
            agent.kill()
            agent.wait()
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [events[0]["event"], events[-1]["event"]] == ["agent.starts", "agent.ends"]
    assert service.canary not in log.read_text()
    assert service.canary in config.read_text()
    # The TPM was let go of, and nothing of ours is left in it.
    with software_tpm.node() as node:
        assert node.identify().ek_source == "cert"


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def _only_machine(operator: Operator) -> Any:
    machines = operator.machines()
    return machines[0] if machines else None


def _until(condition: Any, seconds: float = 240) -> Any:
    give_up_at = time.monotonic() + seconds
    while time.monotonic() < give_up_at:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")
