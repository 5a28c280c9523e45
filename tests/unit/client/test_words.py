"""Why a machine is trusted, or not, in words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from attestation.api import MachineDetail, PCRChange, ResultDetail
from attestation.client.words import ASSURANCE, Explanation, explain
from attestation.machines import Status
from attestation.results import Assurance
from tests.unit.cli.stub import machine, result

A = "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"
NOW = datetime(2026, 11, 21, 4, 10, tzinfo=UTC)
GOOD = {"verdict": "Verified", "at": NOW - timedelta(seconds=12), "policy": "identity-only@1", "failed": None}
BAD = {"verdict": "Failed", "at": NOW - timedelta(seconds=12), "policy": "workers@2", "failed": "pcr-7"}


def told(newest: dict[str, Any] | None = None, **changes: Any) -> Explanation:
    detail = MachineDetail.model_validate(machine(A, **changes))
    return explain(detail, ResultDetail.model_validate(newest) if newest else None, NOW)


def text(explanation: Explanation) -> str:
    return "\n".join([explanation.headline, *explanation.why, *explanation.next])


def test_a_pending_machine_needs_an_operator() -> None:
    """It names the wish, the fingerprint to compare and both commands."""
    pending = text(told())
    assert "waits for an operator's approval" in pending
    assert "attestation machine approve 7f3ad3ac --role worker-app" in pending
    assert "attestation machine reject 7f3ad3ac" in pending
    assert "7f3ad3ac0f0e4c55…" in pending
    assert "never sent a quote" in pending


def test_an_expected_machine_has_proven_nothing() -> None:
    """Nobody is told to approve what only a receipt tells of, nor that it proved its key."""
    said = text(told(status="pending_approval", expected=True, ak_activated_at=None))
    assert "is expected: it has not come yet" in said
    assert "it has proven nothing" in said
    assert "machine reject" in said
    assert "machine approve" not in said
    assert "activated attestation key" not in said


def test_a_trusted_machine_is_said_to_be() -> None:
    """Attested, good result, lease running; and what it does not mean."""
    good = told(
        result(A),
        status="attested",
        trust="verified",
        attested_at=NOW,
        trust_expires_at=NOW + timedelta(seconds=168),
        last_result=GOOD,
        hostname="cp-1",
        role="controlplane",
    )
    assert good.trusted
    assert good.headline == "cp-1 (7f3ad3ac) is attested and trusted."
    assert "trust ends in 3 min" in text(good)
    assert "Boot state not appraised" in text(good)


def test_an_appraised_boot_state_is_not_called_unappraised() -> None:
    """The remark belongs to policies that compare no PCR."""
    assert "not appraised" not in text(told(result(A, boot_state_appraised=["firmware"], checks=[])))


def test_rules_that_are_only_reported_are_named() -> None:
    """The operator sees what would fail under `enforce`, with expected and found; nothing is called failed."""
    checks = [
        {"check": "pcr-7", "outcome": "reported", "expected": "aa", "found": "bb"},
        {"check": "boot-state", "outcome": "flagged", "note": "boot state not appraised"},
    ]
    found = told(result(A, checks=checks))
    assert "only reports, and these rules do not hold: pcr-7." in text(found)
    assert [(c.check, c.found) for c in found.checks] == [("pcr-7", "bb")]


def test_failed_checks_are_shown_and_a_way_out() -> None:
    """Each failed check is handed on, with the policy commands."""
    checks = [
        {"check": "quote", "outcome": "passed"},
        {"check": "pcr-7", "outcome": "failed", "expected": "aa", "found": "bb"},
        {"check": "firmware", "outcome": "flagged", "note": "changed"},
        {"check": "event-log", "outcome": "undecided", "note": "absent"},
    ]
    failed = told(
        result(A, "Failed", checks=checks),
        status="attested",
        trust="failed",
        attested_at=NOW,
        last_result=BAD,
    )
    assert not failed.trusted
    assert [c.check for c in failed.checks] == ["pcr-7", "firmware", "event-log"]
    assert "not as expected: pcr-7" in text(failed)
    assert "attestation policy assign NAME@VERSION --machine 7f3ad3ac" in text(failed)


def test_what_to_look_at_follows_from_what_changed() -> None:
    """An initrd asks for who rebuilt it, and for nothing else; without changes, what the failed PCR may hold."""
    checks = [{"check": "pcr9", "outcome": "failed", "expected": "aa", "found": "bb"}]
    newest = ResultDetail.model_validate(result(A, "Failed", checks=checks))
    detail = MachineDetail.model_validate(machine(A, status="attested", trust="failed", last_result=BAD))
    changed = PCRChange(pcr=9, before=None, after="bb", text="PCR 9 changed: initrd /i replaced", entries=[])
    asked = "\n".join(explain(detail, newest, NOW, [changed]).next)
    assert "Look at the initrd: who rebuilt it" in asked
    assert "kernel" not in asked
    assert "attestation machine lock 7f3ad3ac" in asked
    assert "Look at the kernel: " in "\n".join(explain(detail, newest, NOW).next)


def test_a_stale_machine_has_a_silent_agent() -> None:
    """The age of trust, and where to look."""
    stale = told(
        status="attested",
        trust="stale",
        trust_expires_at=NOW - timedelta(seconds=300),
        last_result={**GOOD, "at": NOW - timedelta(seconds=480)},
    )
    assert not stale.trusted
    assert "trust ended 5 min ago" in text(stale)
    assert "See that its agent runs" in text(stale)


def test_trust_that_an_operator_ended_is_not_the_agents_fault() -> None:
    """A lock or an unlock ends the lease at once; no instant is invented for it."""
    ended = told(
        status="locked",
        trust="stale",
        trust_expires_at=None,
        last_result={**GOOD, "at": NOW - timedelta(seconds=300)},
    )
    assert "an operator's act ended the trust" in text(ended)
    assert "See that its agent runs" not in text(ended)


def test_what_could_not_be_judged_is_not_called_failed() -> None:
    """Indeterminate is neither good nor bad."""
    unclear = told(last_result={**GOOD, "verdict": "Indeterminate", "failed": "policy"})
    assert "could not be judged: policy" in text(unclear)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"status": "registered", "role": "generic"}, "admitted it as generic"),
        ({"status": "locked", "locked_at": NOW}, "attestation machine unlock 7f3ad3ac"),
        ({"status": "rejected", "rejected_at": NOW}, "attestation machine delete 7f3ad3ac"),
        ({"status": "revoked", "revoked_at": NOW}, "This is final"),
        ({"status": "revoked", "revoked_at": NOW, "wipe_pending": True}, "has not acknowledged"),
        ({"status": "revoked", "revoked_at": NOW, "wiped_at": NOW}, "attestation machine delete 7f3ad3ac"),
        ({"status": "registered", "ak_activated_at": None}, "no activated attestation key"),
    ],
)
def test_each_status_says_what_comes_next(changes: dict[str, Any], words: str) -> None:
    """Never a status word alone."""
    assert words in text(told(**changes))


@pytest.mark.parametrize("status", list(Status))
@pytest.mark.parametrize("assurance", list(Assurance))
def test_every_explanation_names_assurance_and_what_it_means(status: Status, assurance: Assurance) -> None:
    """In every status, for every level."""
    assert f"Assurance {assurance}: {ASSURANCE[assurance]}." in told(status=status, assurance=assurance).why


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.ATTESTED])
def test_only_attested_machines_are_trusted(status: Status) -> None:
    """A good last result does not help a machine that an operator locked."""
    assert not told(status=status, trust="verified", last_result=GOOD).trusted


def test_what_its_policy_looks_away_from_is_said() -> None:
    """Beside a boot that was appraised in part; where nothing was appraised, that is said instead."""
    appraised = ResultDetail.model_validate(result(A, boot_state_appraised=["firmware"], checks=[]))
    known = MachineDetail.model_validate(machine(A))
    why = explain(known, appraised, NOW, (), ["the initrd (PCR 9)", "the kernel"]).why
    assert "Its policy looks away: not compared are the initrd (PCR 9); the kernel." in why


@pytest.mark.threat("T173")
def test_a_machine_without_its_configuration_is_trusted_and_not_as_it_should_be() -> None:
    """Why and since when come first; the headline says it, and what to do."""
    owed = {"why": "apply command: exit status 3\x1b[2J", "since": NOW - timedelta(minutes=5)}
    found = told(status="attested", trust="verified", configuration_not_delivered=owed)
    assert (found.trusted, found.configured) == (True, False)
    assert found.headline.endswith("attested and trusted; configuration not delivered.")
    since = f"{NOW - timedelta(minutes=5):%Y-%m-%d %H:%M:%S}Z (5 min ago)"
    assert found.why[0] == (
        f"Configuration not delivered: apply command: exit status 3\ufffd[2J, since {since}."
    )
    assert "heals by itself" in text(found)
    assert told(status="attested", trust="verified").configured
