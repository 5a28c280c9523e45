"""What the agent on a node asks of attestation runs: its challenge, and that its evidence is judged (CONFIDENTIAL §3).

The order: whose node → which attempt → one read, judged, pure → signed → one unit: the challenge is spent whatever was
found, and the result written down with its evidence and audited. Of two who answer one challenge the second is refused.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime
from typing import Final

import structlog

from attestation.api import RunChallenge, RunEvidence
from attestation.audit import AuditEvent
from attestation.errors import (
    ChallengeExpired,
    ChallengeUnknown,
    ChallengeUsed,
    MachineChanged,
    NodeMismatch,
    RunUnknown,
)
from attestation.results.ear import TYP
from attestation.store import RateLimit, Run, RunAttempt, Tx
from attestation_service.auth import Controller, ControllerDep
from attestation_service.border import limits
from attestation_service.border.limits import Counted, Limits
from attestation_service.entitlements.attempts import until_unchanged
from attestation_service.resources import Res, Resources
from attestation_service.runs import attempts, judging
from attestation_service.runs.handlers import RunUID, demand
from attestation_service.runs.judging import Judged

log = structlog.get_logger("attestation_service.runs")

CHALLENGES: Final = RateLimit(requests=120, per_seconds=60)
ANSWERS: Final = RateLimit(requests=60, per_seconds=60)
"""Of the runs of one namespace on one node; each answer may cost as much as an attestation."""


async def challenge(uid: RunUID, *, res: Res, who: ControllerDep) -> RunChallenge:
    """Fetch the open challenge of a run of the caller's node.

    Raises:
        RunUnknown: No such run of the caller's cluster is open here.
        NodeMismatch: It is of another node.
        ChallengeUsed: It was answered.
        ChallengeExpired: Its time is over; its controller may ask again.
        RateLimited: This node asks too often.
    """
    at = res.clock.now()
    counted = await _counted(uid, "challenge", CHALLENGES, res, who, at)
    async with limits.CountRefusals(res.store, counted, at):

        def load(tx: Tx) -> tuple[Run, RunAttempt]:
            limits.check(tx, counted, at)
            run = _mine(tx, uid, who)
            return run, _still_open(tx.runs.attempts(run.run_id)[-1], at)

        run, attempt = await res.store.read(load)
    if counted:
        await res.store.write(lambda tx: limits.take(tx, counted, at))
    what = attempts.context_of(run, attempt)
    shown = attempts.shown(run, attempt).model_dump()
    if run.backend != "tpm":
        return RunChallenge(**shown, attempt=attempt.attempt, backend=run.backend)
    ((bank, pcrs),) = what.policy.tpm.selection.to_names().items()
    return RunChallenge(
        **shown,
        attempt=attempt.attempt,
        backend=run.backend,
        pcr_bank=bank,
        pcrs=tuple(pcrs),
        event_log=what.policy.tpm.event_log_required,
    )


async def take(uid: RunUID, request: RunEvidence, *, res: Res, who: ControllerDep) -> None:
    """Have evidence of the caller's node judged for a run, or say why there is none.

    The answer says that it was judged, not how: the controller of the cluster learns that. Whatever was found, the
    challenge is spent.

    Raises:
        RunUnknown: No such run of the caller's cluster is open here.
        NodeMismatch: It is of another node.
        ChallengeUnknown: It is no challenge of this run.
        ChallengeUsed: It was answered.
        ChallengeExpired: Its time is over.
        MalformedEvidence: It cannot be parsed; that is the result of this attempt.
        MachineChanged: Operators changed the machine faster than it could be judged; the challenge is unspent.
        RateLimited: This node answers too often.
    """
    await until_unchanged(lambda: _take(uid, request, res, who))


async def _take(uid: str, request: RunEvidence, res: Resources, who: Controller) -> None:
    at = res.clock.now()
    counted = await _counted(uid, "evidence", ANSWERS, res, who, at)
    async with limits.CountRefusals(res.store, counted, at):

        def load(tx: Tx) -> tuple[Run, RunAttempt]:
            limits.check(tx, counted, at)
            run = _mine(tx, uid, who)
            named = [a for a in tx.runs.attempts(run.run_id) if a.challenge_id == request.challenge_id]
            if not named:
                raise ChallengeUnknown("no such challenge of this run")
            return run, _still_open(named[0], at)

        run, attempt = await res.store.read(load)
        what = attempts.context_of(run, attempt)
        judged = await res.store.read(lambda tx: judging.judge(tx, request, what, res, at))
        if judged.wanted and await res.collateral.fetch(judged.wanted):
            judged = await res.store.read(lambda tx: judging.judge(tx, request, what, res, at))
        if judged.claims is not None:
            # Off the loop: a P-384 signature costs more than all the rest together.
            signed = await asyncio.to_thread(res.signer.sign_jwt, judged.claims, typ=TYP)
            judged = replace(judged, result=judged.result.model_copy(update={"attestation_result": signed}))

        def conclude(tx: Tx) -> None:
            limits.take(tx, counted, at)
            _demand_unchanged(tx, judged)
            tx.runs.conclude(
                attempt.challenge_id,
                at,
                verdict=judged.result.verdict,
                machine_id=judged.result.machine_id,
                result=judged.result.model_dump_json(),
                blobs=judged.blobs,
            )
            tx.audit.append(_event(run, attempt, judged, who), at)

        await res.store.write(conclude)
    if judged.result.verdict == "verified":
        # Long bodies from here are read also while strangers fill the room of all others.
        res.room.prove(who.source)
    res.observe("runs_judged", {"backend": run.backend, "verdict": judged.result.verdict})
    log.info(
        "run.judged",
        cluster_id=run.cluster_id,
        run=f"{run.namespace}/{run.name}",
        uid=run.run_uid,
        node=run.node_name,
        attempt=attempt.attempt,
        verdict=judged.result.verdict,
        rejected=judged.result.rejected,
        machine_id=judged.result.machine_id,
        service_account=who.service_account,
        pod=who.pod,
    )
    if judged.refusal is not None:
        raise judged.refusal


def _mine(tx: Tx, uid: str, who: Controller) -> Run:
    """Return a run of the node of whoever asks.

    Raises:
        RunUnknown: There is none in their cluster.
        NodeMismatch: It is of another node, or of an earlier one of that name.
    """
    run = demand(tx, who.cluster.cluster_id, uid)
    if who.node is None or (who.node.name, who.node.uid) != (run.node_name, run.node_uid):
        raise NodeMismatch(f"the run is of another node than {who.node.name if who.node else 'none'}")
    return run


def _still_open(attempt: RunAttempt, at: datetime) -> RunAttempt:
    """Return an attempt that may be answered; who answers first is decided when it is spent.

    Raises:
        ChallengeUsed, ChallengeExpired: It may not.
    """
    if attempt.used_at is not None:
        raise ChallengeUsed("the challenge was answered before")
    if at >= attempt.expires_at:
        raise ChallengeExpired("the challenge was not answered in time")
    return attempt


async def _counted(
    uid: str, what: str, limit: RateLimit, res: Resources, who: Controller, at: datetime
) -> Limits:
    """Return what counts requests about a run of the caller's node: those of one namespace on that node.

    All agents have one ServiceAccount, and no node may slow the others down. Nor may a namespace whose runs ask a node
    without end take its turns from the runs of another one. What is about no run of the node counts by itself.

    Raises:
        RunUnknown, NodeMismatch: It is none; that a node asks for another one's is audited, within bounds.
        RateLimited: The node asks too often for what is none.
    """
    strays = _of_node(who, what, limit, res)

    def load(tx: Tx) -> Run:
        try:
            return _mine(tx, uid, who)
        except (RunUnknown, NodeMismatch):
            limits.check(tx, strays, at)
            raise

    async with limits.CountRefusals(res.store, strays, at):
        try:
            run = await res.store.read(load)
        except NodeMismatch as error:
            event = who.event("denied", detail=f"attestation run: {error.code}: {error}")
            await res.store.write(lambda tx: limits.audit_denied(tx, event, at))
            log.warning("run.denied", code=error.code, service_account=who.service_account, pod=who.pod)
            raise
    return _of_node(who, what, limit, res, run.namespace)


def _of_node(who: Controller, what: str, limit: RateLimit, res: Resources, namespace: str = "") -> Limits:
    """Return the limit of the runs of *namespace* on a node; without one, of what is no run of that node."""
    if who.node is None or not res.settings.rate_limits:
        return ()
    key = f"run-{what}:{who.cluster.cluster_id}:{who.node.uid}/{namespace}"
    return (Counted(key, limit, f"requests of this node{namespace and f' for runs of {namespace}'}"),)


def _demand_unchanged(tx: Tx, judged: Judged) -> None:
    """Check that the machine that was judged is still so, in the unit that writes what follows from it.

    Raises:
        MachineChanged: Operators, or the machine itself, changed something in between.
    """
    then = judged.machine
    if then is None:
        return
    now = tx.machines.by_id(then.machine_id)
    if now is None or (now.version, now.status, now.anchor, now.hostname, now.cluster_id) != (
        then.version, then.status, then.anchor, then.hostname, then.cluster_id,
    ):  # fmt: skip
        raise MachineChanged("the machine was changed while evidence of its node was judged")


def _event(run: Run, attempt: RunAttempt, judged: Judged, who: Controller) -> AuditEvent:
    result = judged.result
    why = result.rejected or (result.unavailable.code if result.unavailable is not None else None)
    open_ = [check.id for check in result.checks if check.outcome in ("fail", "unavailable")]
    told = (
        f"{run.namespace}/{run.name} ({run.run_uid}) attempt {attempt.attempt}: {run.backend} of node {run.node_name}: "
        f"{result.verdict}{f', {why}' if why else ''} under {run.policy_id} ({result.mode})"
    )
    return who.event(
        "run_judged",
        machine_id=result.machine_id,
        detail=told + (f"; {', '.join(open_)}"[:600] if open_ else ""),
    )
