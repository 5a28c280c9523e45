"""Votes that end without their voter: whoever may not vote any more has agreed to nothing."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from attestation.audit import AuditEvent
from attestation.store import Approval, Tx


def end(tx: Tx, sub: str, why: str, at: datetime) -> None:
    """End every live vote of the subject *sub*, as soon as we learn that it may not vote any more."""
    told(tx, tx.approvals.void_by(sub, at, why), at)


def told(tx: Tx, ended: Iterable[Approval], at: datetime) -> None:
    """Write the audit entry of each vote that became void."""
    for approval in ended:
        vote = approval.vote
        detail = f"vote of {vote.operator_cn} for {approval.action}: {approval.subject}: {vote.void}; "
        tx.audit.append(
            AuditEvent(
                operator_cn="service",
                action="approval_void",
                machine_id=approval.machine_id,
                detail=f"{detail}proposal {approval.proposal_digest}",
            ),
            at,
        )
