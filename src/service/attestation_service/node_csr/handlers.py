"""Certificate requests of nodes, for the approver of their cluster (HSM-AND-KUBERNETES §§19, 22).

The order: was it decided before? → parse → one read → judged, pure → one unit: the challenge is spent whatever was
found, the decision written down and audited. A request is decided once: of two approvers the second gets the first
one's answer. What could not be decided is no answer, and the approver leaves the request as it is.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

import structlog

from attestation.api import NodeCSRDecision, NodeCSRRequest
from attestation.api.node_csr import KUBELET_SERVING
from attestation.appraisal.node_csr import Decision, KeyTier, NodeCSRResult, Reason, stale
from attestation.appraisal.node_csr.result import SIGNATURE
from attestation.errors import (
    ChallengeExpired,
    ChallengeUnknown,
    ChallengeUsed,
    MachineChanged,
    NodeRequestDiffers,
    Unavailable,
)
from attestation.machines import Status
from attestation.store import NodeCSR, RateLimit, Tx
from attestation_service.auth import Controller, ControllerDep
from attestation_service.entitlements.attempts import until_unchanged
from attestation_service.node_csr import judging
from attestation_service.node_csr.judging import Judged
from attestation_service.resources import Res, Resources
from attestation_service.verifier import policy

log = structlog.get_logger("attestation_service.node_csr")

REFUSALS: Final = RateLimit(requests=1_000, per_seconds=3_600)
"""So many refusals of one cluster are written down. Anybody with a bootstrap token can cause one; what is left out
here is denied all the same, and stands in the structured log."""

NOT_RECOGNISED: Final = "NotRecognised"


async def appraise(request: NodeCSRRequest, *, res: Res, who: ControllerDep) -> NodeCSRDecision:
    """Decide about a certificate request of a node.

    The same request gets the same answer again, and stands in the audit once; an approval only while its machine is
    what was approved. A request for another signer, or without evidence, is `not-recognised`: nothing is kept of it.

    Raises:
        NodeRequestDiffers: Another request was decided under this UID.
        Unavailable: It could not be decided now; nothing was decided.
    """
    return shown(await decide(request, who, res))


async def decide(request: NodeCSRRequest, who: Controller, res: Resources) -> NodeCSR:
    """Return what is decided of a request, now or before; not kept where it is not recognised.

    Raises:
        NodeRequestDiffers, Unavailable: See `appraise`.
    """
    try:
        return await until_unchanged(lambda: _decide(request, who, res))
    except MachineChanged as e:
        # To an approver that is neither yes nor no.
        raise Unavailable(f"{e}; ask again") from e


async def _decide(request: NodeCSRRequest, who: Controller, res: Resources) -> NodeCSR:
    at = res.clock.now()
    content = judging.content_of(request)
    cluster_id, uid = who.cluster.cluster_id, request.csr.uid
    before = await res.store.read(lambda tx: _before(tx, cluster_id, uid))
    if before is not None:
        return _same(before, content)
    signer = request.csr.signer_name
    judged = None
    if signer == KUBELET_SERVING or signer in who.cluster.signers:
        judged = await judging.judge(request, who.cluster, res, at)
    if judged is None:
        return _row(request, who, content, None, None, at)
    if judged.result.decision is Decision.UNDECIDED:
        raise Unavailable(judged.result.message)

    def conclude(tx: Tx) -> NodeCSR:
        # Two approvers, or one that was restarted: the first decided.
        found = tx.node_csrs.get(cluster_id, uid)
        if found is not None:
            return _same(found, content)
        _demand_unchanged(tx, judged, res)
        result = _spent(tx, judged, at)
        row = _row(request, who, content, judged, result, at)
        _write(tx, row, who, at)
        return row

    row = await res.store.write(conclude)
    log.info(
        "node_csr.decided",
        cluster_id=cluster_id,
        csr=request.csr.name,
        signer=signer,
        decision=row.decision,
        reason=row.reason,
        result_id=row.result_id,
        machine_id=row.machine_id,
        check=judged.result.check,
        outcomes=[str(outcome) for outcome in judged.result.outcomes[-1:]],
        service_account=who.service_account,
    )
    return row


def _before(tx: Tx, cluster_id: str, csr_uid: str) -> NodeCSR | None:
    """Return what was decided of a request; an approval only while its machine is what was approved.

    Whoever asks again has not written the approval into the cluster yet. Without this, an approver that was away in
    between would let a machine in that was locked meanwhile.
    """
    row = tx.node_csrs.get(cluster_id, csr_uid)
    if row is None or row.decision != "approve" or row.machine_id is None:
        return row
    machine = tx.machines.by_id(row.machine_id)
    if (
        machine is not None
        and machine.status in (Status.REGISTERED, Status.ATTESTED)
        and (machine.hostname, machine.cluster_id, machine.key_name)
        == (row.node_name, row.cluster_id, row.ak_name)
    ):
        return row
    log.warning(
        "node_csr.approval_ended", csr=row.csr_name, result_id=row.result_id, machine_id=row.machine_id
    )
    # The row stays as it is: the audit tells of it, and what ended it stands there too.
    return replace(
        row,
        decision="deny",
        reason=str(Reason.MACHINE_NOT_ADMITTED),
        message=f"the machine was locked, revoked or changed since it was approved; result {row.result_id}",
        tier=None,
        node_name=None,
    )


def _same(before: NodeCSR, content: str) -> NodeCSR:
    if before.content_sha256 != content:
        raise NodeRequestDiffers("another request was decided under this UID")
    return before


def _demand_unchanged(tx: Tx, judged: Judged, res: Resources) -> None:
    """Check that what was judged is still so, in the unit that writes what follows from it.

    Raises:
        MachineChanged: Operators, or the machine itself, changed something in between.
    """
    if judged.machine is None:
        return
    now = tx.machines.by_id(judged.machine.machine_id)
    then = judged.machine
    if (
        now is None
        or (now.version, now.status, now.anchor, now.hostname, now.cluster_id, now.last_verdict)
        != (then.version, then.status, then.anchor, then.hostname, then.cluster_id, then.last_verdict)
        or judged.policy_sha256 not in (None, policy.in_force(tx, now, res.settings).sha256)
    ):
        raise MachineChanged("the machine, or what it is judged by, was changed while its request was judged")


def _spent(tx: Tx, judged: Judged, at: datetime) -> NodeCSRResult:
    """Spend the challenge, whatever was found; where another request did, this one answers none."""
    if judged.challenge_id is None or judged.machine is None:
        return judged.result
    try:
        tx.node_csrs.redeem(judged.challenge_id, judged.machine.machine_id, at)
    except (ChallengeUsed, ChallengeUnknown, ChallengeExpired):
        return stale(judged.result.result_id, at)
    return judged.result


def _row(
    request: NodeCSRRequest,
    who: Controller,
    content: str,
    judged: Judged | None,
    result: NodeCSRResult | None,
    at: datetime,
) -> NodeCSR:
    csr = request.csr
    approved = result is not None and result.decision is Decision.APPROVE
    # A container names any machine: until its attestation key has spoken, what is found is no machine's.
    machine = judged.machine if judged is not None and result is not None else None
    if machine is not None and not approved and SIGNATURE.name not in (result.passed if result else ()):
        machine = None
    result_id = result.result_id if result is not None else judging.new_result_id()
    return NodeCSR(
        result_id=result_id,
        cluster_id=who.cluster.cluster_id,
        csr_uid=csr.uid,
        csr_name=csr.name,
        signer_name=csr.signer_name,
        content_sha256=content,
        decision="approve" if approved else "deny" if result is not None else "not-recognised",
        reason=str(result.reason) if result is not None else NOT_RECOGNISED,
        message=result.message
        if result is not None
        else f"no evidence of a TPM in the request, or a signer that is not judged here; result {result_id}",
        tier=int(result.tier) if approved and result is not None and result.tier is not None else None,
        machine_id=machine.machine_id if machine is not None else None,
        node_name=machine.hostname if approved and machine is not None else None,
        assurance=machine.assurance.value if machine is not None else None,
        ak_name=machine.key_name if approved and machine is not None else None,
        at=at,
    )


def _write(tx: Tx, row: NodeCSR, who: Controller, at: datetime) -> None:
    """Write down what was decided, with its audit entry; refusals within bounds."""
    if row.decision != "approve":
        key = f"node-csr-refused:{row.cluster_id}"
        if tx.rate_limits.check(key, at, REFUSALS) is not None:
            return
        tx.rate_limits.take(key, at, REFUSALS)
    tx.node_csrs.add(row)
    told = f"{row.csr_name} ({row.csr_uid}) for {row.signer_name}: {row.reason}; {row.message}"
    event = (
        who.event("node_csr_approved", machine_id=row.machine_id, detail=told)
        if row.decision == "approve"
        else who.event("node_csr_denied", machine_id=row.machine_id, detail=told)
    )
    tx.audit.append(event, at)


def shown(row: NodeCSR) -> NodeCSRDecision:
    """Return what was decided, as its approver gets it."""
    return NodeCSRDecision(
        result_id=row.result_id,
        decision=row.decision,
        reason=row.reason,
        message=row.message,
        tier=row.tier,
        tier_name=KeyTier(row.tier).word if row.tier is not None else None,
        machine_id=row.machine_id,
        node_name=row.node_name,
        assurance=row.assurance,
    )
