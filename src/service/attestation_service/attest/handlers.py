"""One attestation: what was asked, what the TPM says, what follows (PROTOCOL §§3-4).

The order of judgement: parse → challenge redeemed (spent whatever follows) → signature → nonce → selection →
digest → clock → policy. One read loads and judges, one unit writes everything that follows or nothing.
Evidence that is not authentic proves nothing about the machine: it spends its challenge and changes neither
trust nor tokens nor history (docs/adr/0005).
"""

# Algorithms for: digest
from __future__ import annotations

import asyncio
import hashlib
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, NamedTuple

from fastapi import Query

from attestation.api import AttestRequest, AttestResponse, QuoteChallenge
from attestation.api.base import MachineId
from attestation.appraisal import Appraisal
from attestation.audit import AuditEvent
from attestation.clock import rfc3339
from attestation.errors import (
    AgentTooOld,
    AttestationError,
    MachineChanged,
)
from attestation.keys import DIRECTIVE_TYP
from attestation.machines import Machine, NodeEvent
from attestation.reference import identifier
from attestation.results import Verdict
from attestation.results.ear import TYP as EAR_TYPE
from attestation.results.ear import ear_claims
from attestation.store import Tx
from attestation.wire import b64encode
from attestation_service import __version__
from attestation_service.attest import hardware, key_attestation, tpm
from attestation_service.attest.judging import Appraised, judge
from attestation_service.attest.key_attestation import Offered
from attestation_service.attest.kinds import asked_of
from attestation_service.attest.refused import denied
from attestation_service.border import limits
from attestation_service.context.request import From, Origin
from attestation_service.entitlements import config_tokens, leases
from attestation_service.entitlements.attempts import until_unchanged
from attestation_service.entitlements.events import emit
from attestation_service.keys import statements
from attestation_service.resources import Res, Resources
from attestation_service.settings import Settings
from attestation_service.verifier import challenges, policy

AGAIN_SECONDS: Final = 1
"""After an answer that could not be decided, the next challenge is answered at once."""


class Signed(NamedTuple):
    """What was signed for this answer; only what somebody asked for."""

    directive: str | None
    result: str | None
    next_keys: str | None = None

    @property
    def directive_sha256(self) -> bytes | None:
        """SHA-256 over the compact JWS, which the acknowledgement names."""
        return hashlib.sha256(self.directive.encode("ascii")).digest() if self.directive else None


async def challenge(machine_id: Annotated[MachineId, Query()], *, res: Res, origin: From) -> QuoteChallenge:
    """Get a fresh challenge.

    Single use, bound to the machine; works whichever worker or replica answers.

    Raises:
        MachineUnknown: No such machine.
        RateLimited: Too often from this address or for this machine.
    """
    at = res.clock.now()
    counted = limits.of_client(res.settings, origin.address, machine_id)

    def prepare(tx: Tx) -> Offered:
        limits.check(tx, counted, at)
        machine = tx.machines.require(machine_id)
        known = machine.event_log_sha256 is not None
        in_force = policy.in_force(tx, machine, res.settings)
        besides = asked_of(machine, tx.identities.of(machine_id), in_force)
        return key_attestation.offer_first(
            challenges.make(machine, in_force, res.settings, at, event_log_known=known, besides=besides),
            machine,
        )

    async with limits.CountRefusals(res.store, counted[:1], at):
        fresh = await res.store.read(prepare)

    def keep(tx: Tx) -> None:
        limits.take(tx, counted, at)
        tx.challenges.issue(fresh.challenge)

    await res.store.write(keep)
    return challenges.show(fresh.challenge, fresh.ek_challenge)


async def attest(request: AttestRequest, *, res: Res, origin: From) -> AttestResponse:
    """Attest with a quote over a fresh challenge.

    Spend the challenge, appraise the evidence, say what to do and give the next challenge.

    Raises:
        MachineUnknown, ChallengeUnknown, ChallengeUsed, ChallengeExpired: There is nothing to judge.
        MalformedEvidence, EvidenceRejected, EKFingerprintMismatch, AKNotActivated: It proves nothing.
        MachineRejected: An operator rejected this machine.
        MachineChanged: Operators changed the machine faster than it could be judged.
        RateLimited: Too often.
    """
    return await until_unchanged(lambda: _attest(request, res, origin))


async def _attest(request: AttestRequest, res: Resources, origin: Origin) -> AttestResponse:
    at = res.clock.now()
    counted = limits.of_client(res.settings, origin.address, request.machine_id)
    # Load and judge in one hop to the reader thread: pure, so it may run twice, and never on the loop.
    async with limits.CountRefusals(res.store, counted, at):
        judged = await res.store.read(lambda tx: judge(tx, request, counted, res, origin, at))
        if judged.wanted and await res.collateral.fetch(judged.wanted):
            judged = await res.store.read(lambda tx: judge(tx, request, counted, res, origin, at))
    judged, withheld = _without_orders(judged, request, res.settings)
    delivers = judged.decision is not None and judged.decision.deliver
    # The directive names its token, so it is made before anything is signed; it has no right yet.
    token = config_tokens.make(judged.machine, res.settings, at) if delivers else None
    signed = await _sign(judged, request, token, res, at)
    fresh = key_attestation.offer_next(
        challenges.make(
            judged.machine,
            judged.policy,
            res.settings,
            at,
            event_log_known=judged.event_log_known,
            besides=asked_of(judged.machine, judged.identities, judged.policy),
        ),
        judged.machine,
        judged.policy,
        judged.appraisal,
        judged.certified,
    )

    def conclude(tx: Tx) -> AttestResponse | AttestationError:
        limits.take(tx, counted, at)
        # Single use: the second of two racers fails here, and nothing of its unit remains.
        tx.challenges.redeem(judged.challenge.challenge_id, "attest", judged.machine.machine_id, at)
        if judged.refusal is not None:
            limits.audit_denied(tx, denied(judged.machine, judged.refusal, origin), at)
            return judged.refusal
        record(tx, judged, signed, token, origin, at)
        if withheld is not None:
            config_tokens.failed(tx, judged.machine.machine_id, str(withheld))
            return withheld
        tx.challenges.issue(fresh.challenge)
        return _answer(judged, signed, token, fresh, res)

    async with limits.CountRefusals(res.store, counted, at):
        answer = await res.store.write(conclude)
    if isinstance(answer, AttestationError):
        res.observe("machine_attestations", {"action": "refused", "status": judged.machine.status})
        raise answer
    res.observe("machine_attestations", {"action": answer.action, "status": answer.status})
    # No quote is older than what it was made over.
    res.observe("quote_age_seconds", {}, (at - judged.challenge.issued_at).total_seconds())
    if judged.machine.anchor.ek_chain_ok or judged.machine.anchor.ek_allow_listed:
        res.room.prove(origin.address)
    return answer


def record(
    tx: Tx,
    judged: Appraised,
    signed: Signed,
    token: config_tokens.MadeToken | None,
    origin: Origin,
    at: datetime,
) -> None:
    """Write what an authentic appraisal changes: trust, and on change history, audit, event and token.

    Raises:
        MachineChanged: The machine is not the one that was judged any more.
    """
    machine, appraisal, decision = judged.machine, judged.appraisal, judged.decision
    assert appraisal is not None
    assert decision is not None
    result = appraisal.result
    if result.verdict is Verdict.INDETERMINATE:
        # Could not decide: nothing becomes trust, nothing is taken away; the lease runs out by itself. A log of
        # an earlier boot is forgotten, so that every further challenge asks for the new one.
        changes: dict[str, Any] = {} if judged.event_log_known else {"event_log_sha256": None}
        changes |= hardware.learned(machine, appraisal, judged.seen)
        if signed.directive_sha256 is not None:
            changes["directive_sha256"] = signed.directive_sha256
        if any(getattr(machine, name) != value for name, value in changes.items()):
            machine = tx.machines.update(machine, **changes)
        hardware.keep_identity(tx, machine, judged.seen)
        return
    logs = judged.remembered
    assert logs is not None
    if logs.logs:
        limits.count_logs(tx, machine, at)
        for log in logs.logs:
            tx.logs.put(log, at)
    affirming = result.verdict is Verdict.VERIFIED
    trust: dict[str, Any] = {
        "clock": tpm.found_in(appraisal).clock if affirming and machine.tee is None else machine.clock,
        "last_verdict": result.verdict,
        "last_result_at": at,
        "last_policy": result.policy,
        "last_failed": result.failed_line(),
        "last_result_key": decision.result_key,
        "trust_expires_at": at + timedelta(seconds=judged.policy.max_age_seconds) if affirming else None,
        "event_log_sha256": logs.event_log_sha256,
        "heartbeat_missed_at": None if affirming else machine.heartbeat_missed_at,
        "last_result_from": origin.address,
    }
    learned = key_attestation.learned(machine, appraisal, judged.certified)
    learned |= hardware.learned(machine, appraisal, judged.seen)
    trust |= learned
    if decision.status is machine.status and decision.action == "none" and not learned:
        # The hot path: only columns that an operator's act does not touch.
        tx.machines.renew(machine, revision=judged.revision, **trust)
        after = machine
    else:
        tx.policies.demand_revision(judged.revision)
        # A renewal keeps the version, so that alone does not tell whether another attestation came between.
        if tx.machines.by_id(machine.machine_id) != machine:
            raise MachineChanged(f"machine {machine.machine_id} is not what was judged any more")
        if decision.status is not machine.status:
            # The configuration is owed until it is applied: a lost answer loses nothing (PROTOCOL §8.7).
            trust |= {"status": decision.status, "attested_at": at, "config_owed_since": at}
        if decision.status is not machine.status or decision.action != "none":
            trust |= {"directive_sha256": signed.directive_sha256}
        after = tx.machines.update(machine, **trust)
    if decision.changed or logs.first or learned:
        stored = tpm.stored(tx, machine, judged.policy, judged.challenge, appraisal, logs, judged.certified)
        tx.results.add(machine.machine_id, result, stored)
    if affirming:
        for name, found in appraisal.found.items():
            if found.state is not None:
                tx.identities.renew(machine.machine_id, name, found.state)
    hardware.keep_identity(tx, after, judged.seen)
    if affirming and machine.heartbeat_missed_at is not None:
        leases.resumed(tx, machine, origin, at)
    if decision.changed:
        _tell(tx, judged, after, origin, at)
        if not affirming:
            tx.config_tokens.withdraw(machine.machine_id, at)
    if token is not None:
        config_tokens.store(tx, token, at)


def _tell(tx: Tx, judged: Appraised, after: Machine, origin: Origin, at: datetime) -> None:
    """Write audit entry and events of a result that differs from the one before."""
    machine, appraisal = judged.machine, judged.appraisal
    assert appraisal is not None
    result = appraisal.result
    affirming = result.verdict is Verdict.VERIFIED
    failed = result.failed_line()
    if not limits.may_record(tx, machine, at):
        return
    tx.audit.append(
        AuditEvent(
            operator_cn="machine",
            action="attest" if affirming else "attest_failed",
            machine_id=machine.machine_id,
            prev_state=machine.status,
            new_state=after.status,
            detail=f"{result.verdict} under {result.policy}" + (f"; failed: {failed}" if failed else ""),
            source_ip=origin.address,
        ),
        at,
    )
    if after.status is not machine.status:
        emit(
            tx,
            NodeEvent.ONLINE,
            after,
            at,
            node={"attested_at": rfc3339(at), "config_url": None},
        )
    if not affirming:
        emit(tx, NodeEvent.ATTESTATION_FAILED, after, at, meta={"policy": result.policy, "failed": failed})
    for found in appraisal.found.values():
        for event in found.events:
            emit(tx, event, after, at)


def _without_orders(
    judged: Appraised, request: AttestRequest, settings: Settings
) -> tuple[Appraised, AgentTooOld | None]:
    """Return what is told to this agent, and the refusal where an old one would obey without asking whom it is for.

    What it proved counts, and operators see it.
    """
    if judged.decision is not None and judged.decision.action != "none":
        try:
            statements.demand_nonce(request.node_nonce, settings)
        except AgentTooOld as e:
            return judged._replace(decision=judged.decision._replace(action="none", deliver=False)), e
    return judged, None


async def _sign(
    judged: Appraised,
    request: AttestRequest,
    token: config_tokens.MadeToken | None,
    res: Resources,
    at: datetime,
) -> Signed:
    """Sign what this answer needs, off the loop: a P-384 signature costs more than all the rest together."""
    decision, appraisal = judged.decision, judged.appraisal
    if decision is None or appraisal is None:
        return Signed(directive=None, result=None)
    wants_result = request.want_result or decision.verdict_changed
    machine, nonce = judged.machine, judged.challenge.nonce
    wants_keys = res.signer.unknown_to(machine, request.node_nonce)
    if decision.action == "none" and not wants_result and not wants_keys:
        return Signed(directive=None, result=None)
    assert nonce is not None

    def sign() -> Signed:
        directive = result = None
        if decision.action != "none":
            named = {"token_id": token.stored.token_id} if token is not None else {}
            claims = statements.claims(
                machine, request.node_nonce, at, action=decision.action, nonce=b64encode(nonce), **named
            )
            directive = res.signer.sign_jwt(claims, typ=DIRECTIVE_TYP)
        if wants_result:
            result = res.signer.sign_jwt(_ear(judged, appraisal, res), typ=EAR_TYPE)
        next_keys = res.signer.statement(machine, request.node_nonce, at) if wants_keys else None
        return Signed(directive=directive, result=result, next_keys=next_keys)

    return await asyncio.to_thread(sign)


def _ear(judged: Appraised, appraisal: Appraisal, res: Resources) -> dict[str, Any]:
    machine, result = judged.machine, appraisal.result
    assert judged.challenge.nonce is not None
    return ear_claims(
        result,
        machine_id=machine.machine_id,
        ek_fingerprint=machine.fingerprint,
        assurance=appraisal.assurance,
        nonce=b64encode(judged.challenge.nonce),
        issuer=res.settings.service_url,
        expires_at=result.at + timedelta(seconds=judged.policy.max_age_seconds),
        build=__version__,
        policy_sha256=judged.policy.sha256,
        policy_identifier=identifier(judged.policy),
    )


def _answer(
    judged: Appraised,
    signed: Signed,
    token: config_tokens.MadeToken | None,
    fresh: Offered,
    res: Resources,
) -> AttestResponse:
    machine, decision = judged.machine, judged.decision
    assert decision is not None
    assert judged.appraisal is not None
    decided = judged.appraisal.result.verdict is not Verdict.INDETERMINATE
    return AttestResponse(
        machine_id=machine.machine_id,
        status=decision.status,
        hostname=machine.hostname,
        role=machine.role,
        message=decision.message,
        action=decision.action,
        config_token=token.issued.token if token else None,
        config_url=token.issued.url if token else None,
        directive=signed.directive,
        next_keys=signed.next_keys,
        attestation_result=signed.result,
        reattest_after_seconds=leases.interval_seconds(machine, judged.policy, res.settings)
        if decided
        else AGAIN_SECONDS,
        next_challenge=challenges.show(fresh.challenge, fresh.ek_challenge),
    )
