"""What waits for votes, which votes there were, and taking one back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from fastapi import Path

from attestation.api import ApprovalPage, Objected, ProposalDetail, ProposalPage, ReasonRequest
from attestation.errors import ApprovalUnknown, Forbidden
from attestation.machines.dual_control import Rule, tally
from attestation.store import Approval, Tx
from attestation_service.auth import OperatorDep
from attestation_service.context.reach import demand_proposal, is_within
from attestation_service.operators import dual_control
from attestation_service.resources import Res
from attestation_service.routing.parameters import Cursor, Id, Limit
from attestation_service.settings import Settings

Digest = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]


async def of_machine(
    machine_id: Id, cursor: Cursor = None, limit: Limit = 50, *, res: Res, operator: OperatorDep
) -> ApprovalPage:
    """List the votes about a machine, newest first.

    Live, expired, withdrawn and used ones.

    Raises:
        MachineUnknown: No such machine.
    """
    at = res.clock.now()

    def work(tx: Tx) -> ApprovalPage:
        tx.machines.require(machine_id)
        page = tx.approvals.page(machine_id, cursor, limit)
        return ApprovalPage(
            items=dual_control.shown(tx, page.items, res.settings, at, clusters=operator.clusters),
            next_cursor=page.next_cursor,
        )

    return await res.store.read(work)


async def object_to(
    proposal_digest: Digest, request: ReasonRequest, *, res: Res, operator: OperatorDep
) -> Objected:
    """Object to a proposal: its votes are void.

    Any operator may, break-glass too, and one is enough; whoever still wants it begins anew.

    Raises:
        ApprovalUnknown: No vote for it lives.
    """
    at = res.clock.now()

    # A doubt must be able to stop what two agree on, also where one of their accounts is not theirs any more.
    def work(tx: Tx) -> Objected:
        votes = tx.approvals.live(proposal_digest, at)
        if votes:
            demand_proposal(operator, json.loads(votes[0].proposal))
        void = tx.approvals.void_for(proposal_digest, at, f"{operator.cn} objects: {request.reason}")
        if not void:
            raise ApprovalUnknown("no vote for this proposal lives")
        voters = ", ".join(dual_control.quoted(approval.vote.operator_cn) for approval in void)
        first = void[0]
        tx.audit.append(
            operator.event(
                "approval_objected",
                machine_id=first.machine_id,
                detail=f"{first.action}: {first.subject}: {request.reason}; void: {voters}; proposal {proposal_digest}",
            ),
            at,
        )
        return Objected(proposal_digest=proposal_digest, voided=len(void))

    return await dual_control.write(work, res=res, operator=operator, at=at)


async def proposals(
    cursor: Cursor = None, limit: Limit = 50, *, res: Res, operator: OperatorDep
) -> ProposalPage:
    """List what waits for votes, newest first.

    Proposals about machines, registration tokens and the allow-list, with everything that votes bind.
    """
    at = res.clock.now()
    rule = dual_control.rule_of(res.settings)

    def work(tx: Tx) -> ProposalPage:
        page = tx.approvals.proposals(cursor, limit, at)
        return ProposalPage(
            items=[
                _proposal(tx, votes, rule, res.settings, at)
                for votes in page.items
                if is_within(json.loads(votes[0].proposal), operator.clusters)
            ],
            next_cursor=page.next_cursor,
        )

    return await res.store.scan(work)


async def proposal(proposal_digest: Digest, *, res: Res, operator: OperatorDep) -> ProposalDetail:
    """Show one proposal that waits for votes, with everything they bind.

    What the votes bind only by its digest, a list, a certificate, a request for one, stands in `document`.

    To agree, ask for the act itself with `?proposal=` and this digest.

    Raises:
        ApprovalUnknown: No vote for it lives.
    """
    at = res.clock.now()
    rule = dual_control.rule_of(res.settings)

    def work(tx: Tx) -> ProposalDetail:
        votes = tx.approvals.live(proposal_digest, at)
        if not votes:
            raise ApprovalUnknown("no vote for this proposal lives")
        demand_proposal(operator, json.loads(votes[0].proposal))
        detail = _proposal(tx, votes, rule, res.settings, at)
        return detail.model_copy(update={"document": tx.approvals.document(proposal_digest, at)})

    return await res.store.read(work)


async def withdraw(
    approval_id: Annotated[int, Path(ge=1, le=9_007_199_254_740_991)], *, res: Res, operator: OperatorDep
) -> None:
    """Take back one's own vote.

    While it lives; what was done with it stays done.

    Raises:
        ApprovalUnknown: No such vote, or it does not live any more.
        Forbidden: Somebody else's.
    """
    at = res.clock.now()

    def work(tx: Tx) -> None:
        approval = tx.approvals.get(approval_id)
        # By the stable subject: a name may be somebody else's tomorrow.
        own = approval is not None and operator.sub == approval.vote.operator_sub
        if approval is None or not (own or is_within(json.loads(approval.proposal), operator.clusters)):
            raise ApprovalUnknown("no such vote")
        if not own:
            raise Forbidden(
                f"vote {approval_id} is that of {approval.vote.operator_cn}; only they withdraw it"
            )
        if not tx.approvals.withdraw(approval_id, at):
            raise ApprovalUnknown("the vote is expired, withdrawn or used")
        tx.audit.append(
            operator.event(
                "approval_withdrawn",
                machine_id=approval.machine_id,
                detail=f"{approval.action}: {approval.subject}; proposal {approval.proposal_digest}",
            ),
            at,
        )

    await dual_control.write(work, res=res, operator=operator, at=at)


def _proposal(
    tx: Tx, votes: Sequence[Approval], rule: Rule, settings: Settings, at: datetime
) -> ProposalDetail:
    first = votes[0]
    counted = tally((approval.vote for approval in votes), at)
    assert counted.expires_at is not None
    overtaken = dual_control.overtaken_by(tx, first, settings)
    return ProposalDetail(
        proposal_digest=first.proposal_digest,
        action=first.action,
        subject=first.subject,
        machine_id=first.machine_id,
        approvals_received=0 if overtaken else counted.received,
        approvals_required=rule.quorum,
        expires_at=counted.expires_at,
        voters=[] if overtaken else list(counted.voters),
        proposal=json.loads(first.proposal),
        overtaken=list(overtaken),
        approvals=dual_control.shown(tx, votes, settings, at),
    )
