"""What the lifecycle table leaves to others, in every status: acknowledging, deleting, fetching, certificates.

Operators' acts, activation and good attestations in every status stand in tests/unit/service/test_attest.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from attestation.device import TPMKey
from attestation_testing import SoftwareNode
from tests.fixtures.in_process import InProcessService, in_process_service
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
        certified: What becomes of a request for a certificate.
        enrolled: What becomes of an enrolment with the one it got while attested; None where it got none.
    """

    action: str | None
    told: bool
    trust: str
    deleted: tuple[int, str]
    fetched: str
    certified: tuple[int, str]
    enrolled: tuple[int, str] | None


KEPT = (409, "transition-forbidden")
GONE = (204, "ok")
OUT = (403, "machine-not-admitted")
NEVER: dict[str, Any] = {"certified": OUT, "enrolled": None}
ENDED: dict[str, Any] = {"certified": OUT, "enrolled": OUT}
EXPECTED = {
    "pending_approval": Expected(
        action="none", told=False, trust="failed", deleted=KEPT, fetched="none", **NEVER
    ),
    "registered": Expected(action="none", told=False, trust="failed", deleted=KEPT, fetched="none", **NEVER),
    "attested": Expected(
        action="none",
        told=False,
        trust="failed",
        deleted=KEPT,
        fetched="envelope",
        certified=(200, "ok"),
        enrolled=(200, "ok"),
    ),
    "locked": Expected(action="lock", told=True, trust="failed", deleted=KEPT, fetched="consumed", **ENDED),
    "revoked": Expected(action="none", told=False, trust="failed", deleted=KEPT, fetched="consumed", **ENDED),
    "revoked, wipe pending": Expected(
        action="wipe", told=True, trust="failed", deleted=KEPT, fetched="consumed", **ENDED
    ),
    "revoked, wiped": Expected(
        action="none", told=False, trust="failed", deleted=GONE, fetched="consumed", **ENDED
    ),
    "rejected": Expected(
        action=None,
        told=False,
        trust="unknown",
        deleted=GONE,
        fetched="none",
        certified=(403, "machine-rejected"),
        enrolled=None,
    ),
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
    key: TPMKey
    certificate: str | None


@pytest.fixture
def local(tmp_path: Path) -> Iterator[InProcessService]:
    """A service with a CA."""
    with in_process_service(tmp_path / "service", enrollment_ca_unencrypted=True) as found:
        yield found


@pytest.fixture(params=WAYS)
def case(request: pytest.FixtureRequest, local_scene: Scene) -> Case:
    """A machine in each status."""
    operator, machine, token = local_scene.operator, local_scene.machine(SoftwareNode(1)), None
    key, certificate = machine.keys.create_signing_key(), None
    machine.enrol()
    for step in WAYS[request.param]:
        match step:
            case "approve":
                operator.approve(machine.machine_id)
            case "attest":
                token = machine.attest()["config_token"]
                certificate = machine.certificate(key)["enrollment_cert_pem"]
            case "wipe":
                operator.act(machine.machine_id, "revoke", wipe=True)
            case "acknowledge":
                directive = machine.attest()["directive"]
                assert machine.acknowledge(machine.acknowledgement(directive)).is_success
            case _:
                operator.act(machine.machine_id, step, reason="test")
    assert operator.machine(machine.machine_id)["status"] == request.param.partition(",")[0]
    expected = EXPECTED[request.param]
    return Case(machine=machine, token=token, expected=expected, key=key, certificate=certificate)


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
        # Without what is random, which may spell anything.
        told = re.sub(r'"[\w.+/=-]{22,}"', "", answer.text.replace("pcr_selection", ""))
        assert "pcr" not in told.lower(), "which measurement differed is not told"
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


@pytest.mark.threat("T105")
def test_a_certificate_is_given_only_while_attested(
    local_scene: Scene, local: InProcessService, case: Case
) -> None:
    """In each status, and an hour later, when every lease is over, in none (R5, R6)."""
    machine = case.machine
    before = local_scene.operator.machine(machine.machine_id)["status"]
    body = machine.cert_request(machine.certificate_challenge(), case.key)
    assert refused(machine.request_certificate(body)) == case.expected.certified
    assert refused(machine.request_certificate(body)) == (409, "challenge-used")
    local.clock.pass_(hours=1)
    late = machine.request_certificate(machine.cert_request(machine.certificate_challenge(), case.key))
    assert late.status_code == 403
    assert local_scene.operator.machine(machine.machine_id)["status"] == before


def test_a_certificate_counts_only_while_attested(local_scene: Scene, case: Case) -> None:
    """What was given while attested is refused with the lock or the revocation, at once; no status is left by it."""
    machine = case.machine
    assert (case.certificate is None) == (case.expected.enrolled is None)
    if case.certificate is None:
        return
    before = local_scene.operator.machine(machine.machine_id)["status"]
    for _ in range(2):
        assert refused(machine.enroll(case.certificate, case.key)) == case.expected.enrolled
    assert local_scene.operator.machine(machine.machine_id)["status"] == before
