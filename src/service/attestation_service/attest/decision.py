"""What follows from an appraisal for a machine: the table of PROTOCOL §4, without database or clock."""

from __future__ import annotations

from typing import NamedTuple

from attestation.api.node import Action
from attestation.appraisal import KINDS, Appraisal
from attestation.machines import Machine, Status, Transition, next_status
from attestation.reference import Policy
from attestation.results import Verdict


class Decision(NamedTuple):
    """What the machine is told and becomes.

    Args:
        status: Its status from now on.
        action: What it shall do.
        message: One sentence; never which measurement differed.
        deliver: It gets a config token.
        changed: Something is different from the last result, so history, audit and events learn of it.
        verdict_changed: The verdict itself is different.
        result_key: What the next result is compared with.
    """

    status: Status
    action: Action
    message: str
    deliver: bool
    changed: bool
    verdict_changed: bool
    result_key: str


def decide(machine: Machine, appraisal: Appraisal, policy: Policy) -> Decision:
    """Return what follows from an authentic *appraisal* of *machine* under *policy*.

    Raises:
        MachineRejected: An operator rejected this machine; good evidence does not change that.
    """
    # Judged for every verdict: a rejected machine is refused whatever it shows.
    allowed = next_status(machine.status, Transition.ATTEST)
    verdict = appraisal.result.verdict
    affirming = verdict is Verdict.VERIFIED
    status = allowed if affirming else machine.status
    due = machine.status is Status.REGISTERED or (
        machine.status is Status.ATTESTED and machine.config_owed_since is not None
    )
    # An order at a time: the configuration comes when the machine said that it is unlocked.
    deliver = affirming and due and not machine.unlock_pending
    key = _key(appraisal, policy)
    return Decision(
        status=status,
        action=_action(machine, deliver=deliver),
        message=_message(machine, status, verdict),
        deliver=deliver,
        changed=status is not machine.status or key != machine.last_result_key,
        verdict_changed=verdict is not machine.last_verdict,
        result_key=key,
    )


def _action(machine: Machine, *, deliver: bool) -> Action:
    if machine.status is Status.LOCKED:
        return "lock"
    if machine.status is Status.REVOKED and machine.wipe_pending:
        return "wipe"
    if machine.status is Status.ATTESTED and machine.unlock_pending:
        return "unlock"
    return "apply-config" if deliver else "none"


def _message(machine: Machine, status: Status, verdict: Verdict) -> str:
    if verdict is Verdict.INDETERMINATE:
        return "could not be decided; answer the next challenge"
    if machine.status in _WORDS:
        return _WORDS[machine.status]
    if verdict is Verdict.FAILED:
        return "the evidence is authentic but not as expected"
    return "attested" if status is Status.ATTESTED else status.value


_WORDS = {
    Status.PENDING_APPROVAL: "waits for an operator's approval",
    Status.LOCKED: "locked by an operator",
    Status.REVOKED: "revoked by an operator",
}


def _key(appraisal: Appraisal, policy: Policy) -> str:
    """Return what makes two results alike: verdict, policy, what each kind of evidence told, failed checks."""
    result = appraisal.result
    told = ""
    for name, found in appraisal.found.items():
        told += f" {KINDS[name].alike(found, policy)}"
    return f"{result.verdict} {result.policy}{told} {result.failed_line() or ''}"
