"""What waits for votes, which votes there were, and taking one back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from attestation.api import ApprovalPage, Objected, ProposalDetail, ProposalPage, ReasonRequest
from attestation.errors import ApprovalUnknown, Forbidden, MachineUnknown
from attestation.machines.dual_control import Rule, tally
from attestation.store import Approval, Tx
from attestation_service import dual_control
from attestation_service.auth import Operator
from attestation_service.context import Resources
from attestation_service.settings import Settings


async def of_machine(machine_id: str, cursor: str | None, limit: int, *, res: Resources) -> ApprovalPage:
    """Return the votes about a machine, live or not, newest first.

    Raises:
        MachineUnknown: No such machine.
    """
    at = res.clock.now()

    def work(tx: Tx) -> ApprovalPage:
        if tx.machines.by_id(machine_id) is None:
            raise MachineUnknown("no such machine")
        page = tx.approvals.page(machine_id, cursor, limit)
        return ApprovalPage(
            items=dual_control.shown(tx, page.items, res.settings, at),
            next_cursor=page.next_cursor,
        )

    return await res.store.read(work)


async def object_to(
    proposal_digest: str, request: ReasonRequest, *, res: Resources, operator: Operator
) -> Objected:
    """End every vote for a proposal; whoever still wants it begins anew.

    One is enough, break-glass too: a doubt must be able to stop what two agree on, also where one of their accounts is
    not theirs any more.

    Raises:
        ApprovalUnknown: No vote for it lives.
    """
    at = res.clock.now()

    def work(tx: Tx) -> Objected:
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


async def proposals(cursor: str | None, limit: int, *, res: Resources) -> ProposalPage:
    """Return what waits for votes, newest first."""
    at = res.clock.now()
    rule = dual_control.rule_of(res.settings)

    def work(tx: Tx) -> ProposalPage:
        page = tx.approvals.proposals(cursor, limit, at)
        return ProposalPage(
            items=[_proposal(tx, votes, rule, res.settings, at) for votes in page.items],
            next_cursor=page.next_cursor,
        )

    return await res.store.scan(work)


async def withdraw(approval_id: int, *, res: Resources, operator: Operator) -> None:
    """Take one's own vote back.

    Raises:
        ApprovalUnknown: No such vote, or it does not live any more.
        Forbidden: Somebody else's.
    """
    at = res.clock.now()

    def work(tx: Tx) -> None:
        approval = tx.approvals.get(approval_id)
        if approval is None:
            raise ApprovalUnknown("no such vote")
        # By the stable subject: a name may be somebody else's tomorrow.
        if operator.sub != approval.vote.operator_sub:
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
