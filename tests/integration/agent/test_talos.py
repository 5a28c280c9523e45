"""The agent on Talos against the real service: machined applies and wipes, and what memory forgets comes again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attestation_agent.exits import Exit
from attestation_agent.state import State
from attestation_agent.talos.machined import Machined
from attestation_testing.talos.machined import Behaviour, Call, FakeMachined, Stage
from tests.fixtures.in_process import InProcessService
from tests.integration.agent.rig import Rig


@pytest.fixture
def talos(tmp_path: Path) -> Iterator[FakeMachined]:
    with FakeMachined(tmp_path / "machine.sock") as found:
        yield found


@pytest.fixture
def rig(local: InProcessService, tmp_path: Path, talos: FakeMachined) -> Rig:
    return on_talos(Rig(local, tmp_path), talos)


def on_talos(rig: Rig, talos: FakeMachined) -> Rig:
    """Let the agent of *rig* ask machined, as `--machined-socket` does."""
    rig.machined = Machined(talos.path, timeout_seconds=60.0)
    return rig


def reboot(rig: Rig) -> None:
    """Forget what was kept in memory."""
    shutil.rmtree(rig.state.directory)
    rig.state = State(rig.state.directory)


def test_a_machine_in_maintenance_is_given_its_configuration(
    local: InProcessService, rig: Rig, talos: FakeMachined, tmp_path: Path
) -> None:
    """From maintenance to applied and acknowledged; nothing of it in a file, nor in the log."""
    rig.admitted()
    assert talos.stage is Stage.CONFIGURED
    assert local.canary.encode() in (talos.config or b"")
    assert [e["detail"] for e in local.operator().audit(action="directive_ack")] == ["done"]
    assert ("config.applied", "machined") in [(name, said.get("by")) for name, said in rig.events.entries]
    assert not rig.config_path.exists()
    kept = [p.read_bytes() for p in rig.state.directory.rglob("*") if p.is_file()]
    assert kept
    assert not any(local.canary.encode() in each for each in kept)
    assert local.canary not in repr(rig.events.entries)


def test_a_configuration_that_talos_refuses_is_owed(
    local: InProcessService, rig: Rig, talos: FakeMachined
) -> None:
    """The service hears the status and the line, not the words, and sends it again until it is applied."""
    talos.behaviour = Behaviour(
        refuse=lambda call: (
            ("INVALID_ARGUMENT", f"line 3: {call.members['data'].decode()}") if call.members else None
        )
    )
    operator = local.operator()
    assert rig.once() is Exit.PENDING_APPROVAL
    operator.approve(rig.machine_id, "worker-app")
    assert rig.once() is Exit.APPLY_FAILED
    [told] = [e["detail"] for e in operator.audit(action="directive_ack")]
    assert "machined answers INVALID_ARGUMENT, at line 3" in told
    assert local.canary not in repr(operator.audit()) + repr(rig.events.entries)
    assert talos.stage is Stage.MAINTENANCE
    talos.behaviour = Behaviour()
    assert rig.once() is Exit.OK
    assert local.canary.encode() in (talos.config or b"")


@pytest.mark.threat("T20")
def test_a_reset_follows_its_acknowledgement(local: InProcessService, rig: Rig, talos: FakeMachined) -> None:
    """When Reset arrives, the service shows `wiped_at` already."""
    rig.admitted()
    operator = local.operator()
    operator.act(rig.machine_id, "revoke", wipe=True)
    seen: list[dict[str, Any]] = []

    def look(call: Call) -> None:
        if call.method == "Reset":
            seen.append(operator.machine(rig.machine_id))

    talos.behaviour = Behaviour(before=look)
    assert rig.once() is Exit.REVOKED
    assert [each["wiped_at"] is not None for each in seen] == [True]
    assert talos.stage is Stage.WIPED
    assert rig.once() is Exit.REVOKED
    assert len(talos.named("Reset")) == 1


def test_a_reset_that_talos_refuses_is_tried_again(
    local: InProcessService, rig: Rig, talos: FakeMachined
) -> None:
    """The acknowledgement is given once; the wipe is tried until it is done, network or not."""
    rig.admitted()
    local.operator().act(rig.machine_id, "revoke", wipe=True)
    talos.behaviour = Behaviour(refuse=lambda _: ("UNKNOWN", "failed to reset: volume is not located"))
    assert rig.once() is Exit.WIPE_FAILED
    assert all(talos.partitions.values())
    talos.behaviour = Behaviour()
    assert rig.once() is Exit.REVOKED
    assert talos.stage is Stage.WIPED
    # One for the configuration, one for the wipe.
    assert rig.events.names().count("acknowledged") == 2


def test_a_machine_that_forgot_everything_is_itself_again(
    local: InProcessService, rig: Rig, talos: FakeMachined
) -> None:
    """The same EK with the same AK: the same machine with its approval and status, configured or not."""
    assert rig.once() is Exit.PENDING_APPROVAL
    first = rig.machine_id
    reboot(rig)
    assert rig.once() is Exit.PENDING_APPROVAL
    assert rig.machine_id == first
    operator = local.operator()
    operator.approve(first, "worker-app")
    reboot(rig)
    assert rig.once() is Exit.OK
    reboot(rig)
    assert rig.once() is Exit.OK
    assert rig.machine_id == first
    assert [each["machine_id"] for each in operator.call("GET", "/machines")["items"]] == [first]
    # It was acknowledged: nothing is sent again.
    assert len(talos.applied) == 1
    operator.act(first, "lock")
    reboot(rig)
    assert rig.once() is Exit.LOCKED
    assert rig.state.status() == "locked"


def test_power_that_fails_before_the_acknowledgement_costs_nothing(
    local: InProcessService, rig: Rig, talos: FakeMachined
) -> None:
    """Applied, and everything forgotten before the service heard of it: it comes once more, to the same effect."""
    assert rig.once() is Exit.PENDING_APPROVAL
    local.operator().approve(rig.machine_id, "worker-app")

    def cut(call: Call) -> None:
        if call.members and not call.members["dry_run"]:
            talos.behaviour = Behaviour()
            talos.hang_up()

    talos.behaviour = Behaviour(after=cut)
    assert rig.once() is Exit.APPLY_FAILED
    reboot(rig)
    talos.start()
    assert rig.once() is Exit.OK
    assert len(talos.applied) == 2
    assert local.operator().audit(action="directive_ack")[0]["detail"] == "done"


def test_a_registration_token_that_was_used_is_no_hindrance(
    local: InProcessService, tmp_path: Path, talos: FakeMachined
) -> None:
    """It is presented again after each boot: the machine is known, and another still gets nothing by it."""
    created = local.operator().call(
        "POST",
        "/registration-tokens",
        json={"role": "worker-app", "expires_in_seconds": 600, "minimum_assurance": "tofu"},
    )
    (tmp_path / "token").write_text(created["token"])
    rig = on_talos(Rig(local, tmp_path, registration_token_file=str(tmp_path / "token")), talos)
    assert rig.once() is Exit.OK
    first = rig.machine_id
    reboot(rig)
    assert rig.once() is Exit.OK
    assert rig.machine_id == first
    other = Rig(local, tmp_path, seed=2, registration_token_file=str(tmp_path / "token"))
    assert on_talos(other, talos).once() is Exit.PENDING_APPROVAL
