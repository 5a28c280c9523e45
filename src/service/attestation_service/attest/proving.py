"""A machine proves itself for something else than an order: an attestation whole, without what it would be told to do.

What it proves counts as any attestation does: result, trust and history are written. A configuration that is owed stays
owed, a lock or a wipe is told at the next attestation.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from attestation.api import AttestRequest
from attestation.appraisal import Appraisal
from attestation.audit import AuditEvent
from attestation.errors import AttestationError, MachineNotAdmitted
from attestation.machines import Machine, Status
from attestation.results import Verdict
from attestation.store import Tx
from attestation_service.attest.handlers import Signed, record
from attestation_service.attest.judging import Appraised, judge
from attestation_service.attest.refused import denied
from attestation_service.border import limits
from attestation_service.context.request import Origin
from attestation_service.entitlements.attempts import until_unchanged
from attestation_service.keys import statements
from attestation_service.resources import Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Proved:
    """A machine as it was when its evidence was recorded, and what it proved at `at`."""

    machine: Machine
    appraisal: Appraisal
    at: datetime


async def prove(request: AttestRequest, what: str, *, res: Resources, origin: Origin) -> Proved:
    """Judge *request* as an attestation, and let nobody pass who is not attested and verified by it.

    Args:
        request: A quote over a fresh challenge (PROTOCOL §4).
        what: What it is asked for, for the audit entry of a refusal.
        res: What the application owns.
        origin: Where the request came from.

    Raises:
        MachineUnknown, ChallengeUnknown, ChallengeUsed, ChallengeExpired: There is nothing to judge.
        MalformedEvidence, EvidenceRejected, EKFingerprintMismatch, AKNotActivated: It proves nothing.
        MachineNotAdmitted: It is not attested, not verified now, or locked; the challenge is spent.
        AgentTooOld: It could not tell whether the answer is meant for it.
        RateLimited: Too often.
    """
    statements.demand_nonce(request.node_nonce, res.settings)
    return await until_unchanged(lambda: _prove(request, what, res, origin))


async def _prove(request: AttestRequest, what: str, res: Resources, origin: Origin) -> Proved:
    at = res.clock.now()
    counted = limits.of_client(res.settings, origin.address, request.machine_id)
    async with limits.CountRefusals(res.store, counted, at):
        judged = await res.store.read(lambda tx: judge(tx, request, counted, res, origin, at))
        if judged.wanted and await res.collateral.fetch(judged.wanted):
            judged = await res.store.read(lambda tx: judge(tx, request, counted, res, origin, at))
    if judged.decision is not None:
        judged = judged._replace(decision=judged.decision._replace(action="none", deliver=False))

    def conclude(tx: Tx) -> Machine | AttestationError:
        limits.take(tx, counted, at)
        tx.challenges.redeem(judged.challenge.challenge_id, "attest", judged.machine.machine_id, at)
        if judged.refusal is not None:
            limits.audit_denied(tx, denied(judged.machine, judged.refusal, origin), at)
            return judged.refusal
        record(tx, judged, Signed(directive=None, result=None), None, origin, at)
        machine = tx.machines.require(judged.machine.machine_id)
        refusal = _refusal(machine, judged)
        if refusal is not None:
            limits.audit_denied(tx, _event(machine, what, refusal, origin), at)
        return refusal or machine

    async with limits.CountRefusals(res.store, counted, at):
        found = await res.store.write(conclude)
    if isinstance(found, AttestationError):
        raise found
    assert judged.appraisal is not None
    return Proved(machine=found, appraisal=judged.appraisal, at=at)


def _refusal(machine: Machine, judged: Appraised) -> MachineNotAdmitted | None:
    assert judged.appraisal is not None
    if machine.status is not Status.ATTESTED:
        return MachineNotAdmitted(f"the machine is {machine.status}")
    if judged.appraisal.result.verdict is not Verdict.VERIFIED:
        return MachineNotAdmitted(f"the evidence is {judged.appraisal.result.verdict}, not verified")
    return None


def _event(machine: Machine, what: str, refusal: AttestationError, origin: Origin) -> AuditEvent:
    return AuditEvent(
        operator_cn="unknown",
        action="denied",
        machine_id=machine.machine_id,
        detail=f"{what}: {refusal.code}: {refusal}",
        source_ip=origin.address,
    )
