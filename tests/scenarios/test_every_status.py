"""What the lifecycle table leaves to others: acknowledgement, deletion, bad results, fetching, in every status.

Operators' acts, activation and good attestations in every status stand in tests/unit/service/test_attest.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from attestation.testing import SoftwareNode
from tests.fixtures.in_process import InProcessService
from tests.fixtures.machine import Machine, refused
from tests.scenarios.scene import Scene

WAYS: dict[str, tuple[str, ...]] = {
    "pending_approval": (),
    "registered": ("approve",),
    "attested": ("approve", "attest"),
    "locked": ("approve", "attest", "lock"),
    "revoked": ("approve", "attest", "revoke"),
    "revoked, wipe pending": ("approve", "attest", "wipe"),
    "revoked, wiped": ("approve", "attest", "wipe", "acknowledge"),
    "rejected": ("reject",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What follows in one status.

    Args:
        action: Answer to an attestation that is not as expected; None where it is refused.
        told: A directive is sent, and its acknowledgement accepted.
        trust: Trust afterwards.
        deleted: Status and code of a deletion.
        fetched: What the machine's last config token yields.
    """

    action: str | None
    told: bool
    trust: str
    deleted: tuple[int, str]
    fetched: str


KEPT = (409, "transition-forbidden")
GONE = (204, "ok")
EXPECTED = {
    "pending_approval": Expected(action="none", told=False, trust="failed", deleted=KEPT, fetched="none"),
    "registered": Expected(action="none", told=False, trust="failed", deleted=KEPT, fetched="none"),
    "attested": Expected(action="none", told=False, trust="failed", deleted=KEPT, fetched="envelope"),
    "locked": Expected(action="lock", told=True, trust="failed", deleted=KEPT, fetched="consumed"),
    "revoked": Expected(action="none", told=False, trust="failed", deleted=KEPT, fetched="consumed"),
    "revoked, wipe pending": Expected(
        action="wipe", told=True, trust="failed", deleted=KEPT, fetched="consumed"
    ),
    "revoked, wiped": Expected(action="none", told=False, trust="failed", deleted=GONE, fetched="consumed"),
    "rejected": Expected(action=None, told=False, trust="unknown", deleted=GONE, fetched="none"),
}
STRICT = {
    "format": "itl-tpm-policy/1",
    "name": "strict",
    "version": 1,
    "bank": "sha256",
    "pcrs": {"7": {"any_of": ["11" * 32]}},
    "max_age_seconds": 180,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A machine in one status, its last config token, and what must follow."""

    machine: Machine
    token: str | None
    expected: Expected


@pytest.fixture(params=WAYS)
def case(request: pytest.FixtureRequest, local_scene: Scene) -> Case:
    """A machine in each status."""
    operator, machine, token = local_scene.operator, local_scene.machine(SoftwareNode(1)), None
    machine.enrol()
    for step in WAYS[request.param]:
        match step:
            case "approve":
                operator.approve(machine.machine_id)
            case "attest":
                token = machine.attest()["config_token"]
            case "wipe":
                operator.act(machine.machine_id, "revoke", wipe=True)
            case "acknowledge":
                directive = machine.attest()["directive"]
                assert machine.acknowledge(machine.acknowledgement(directive)).is_success
            case _:
                operator.act(machine.machine_id, step, reason="test")
    assert operator.machine(machine.machine_id)["status"] == request.param.partition(",")[0]
    return Case(machine=machine, token=token, expected=EXPECTED[request.param])


def test_a_result_that_is_not_as_expected_releases_nothing(local_scene: Scene, case: Case) -> None:
    """No status is left by it, no token comes of it, a lock or wipe is told all the same."""
    operator, machine = local_scene.operator, case.machine
    operator.call("POST", "/policies", json=STRICT)
    path = f"/policies/assignments/machine/{machine.machine_id}"
    operator.call("PUT", path, json={"policy": "strict@1"})
    before = operator.machine(machine.machine_id)
    answer = machine.send(machine.evidence(machine.challenge()))
    shown = operator.machine(machine.machine_id)
    assert shown["status"] == before["status"]
    if case.expected.action is None:
        assert refused(answer) == (403, "machine-rejected")
    else:
        found = answer.json()
        assert found["action"] == case.expected.action
        assert not found.get("config_token")
        assert bool(found.get("directive")) == (found["action"] != "none")
        assert "pcr" not in answer.text.replace("pcr_selection", ""), "which measurement differed is not told"
        assert shown["last_result"]["failed"]
    assert shown["trust"] == case.expected.trust
    if case.token is not None:
        assert refused(machine.fetch(case.token)) == (410, "token-consumed")


def test_an_acknowledgement_needs_a_directive(local_scene: Scene, case: Case) -> None:
    """Only a machine that was told something can acknowledge it, once; nobody can acknowledge a forged one."""
    machine = case.machine
    with local_scene.nothing_changes():
        expected = (403, "machine-rejected") if case.expected.action is None else KEPT
        assert refused(machine.acknowledge(machine.acknowledgement("a.b.c"))) == expected
    if case.expected.told:
        directive = machine.attest()["directive"]
        body = machine.acknowledgement(directive)
        assert machine.acknowledge(body).is_success
        with local_scene.nothing_changes():
            assert refused(machine.acknowledge(body)) == (409, "challenge-used")
            assert refused(machine.acknowledge(machine.acknowledgement(directive))) == KEPT


def test_only_rejected_and_wiped_machines_can_be_deleted(local_scene: Scene, case: Case) -> None:
    """The audit stays, and the machine may introduce itself anew: pending, without what it had."""
    operator, machine = local_scene.operator, case.machine
    entries = operator.audit(machine_id=machine.machine_id)
    answer = operator.request("DELETE", f"/machines/{machine.machine_id}")
    assert refused(answer) == case.expected.deleted
    if case.expected.deleted != GONE:
        assert operator.audit(machine_id=machine.machine_id) == entries
        return
    old = machine.machine_id
    assert operator.request("GET", f"/machines/{old}").status_code == 404
    assert operator.audit(machine_id=old)[1:] == entries
    answer_ = machine.enrol()
    assert machine.machine_id != old
    assert (answer_["status"], answer_["role"]) == ("pending_approval", None)
    assert operator.audit_is_valid()


def test_a_config_is_fetched_only_while_attested(
    local_scene: Scene, local: InProcessService, case: Case
) -> None:
    """The last token in each status, and an hour later in every status nothing."""
    if case.token is None:
        assert case.expected.fetched == "none"
        return
    answer = case.machine.fetch(case.token)
    if case.expected.fetched == "envelope":
        assert local_scene.canary.encode() in case.machine.unseal(answer.json())
    else:
        assert refused(answer) == (410, "token-consumed")
    local.clock.pass_(hours=1)
    assert refused(case.machine.fetch(case.token)) == (410, "token-consumed")
