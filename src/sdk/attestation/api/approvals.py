"""Dual control: what a gated act answers, and the votes that operators see (ITL-REFERENCE §4, D&O §12)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from attestation.api.base import Wire
from attestation.machines import Role

__all__ = [
    "ApprovalDetail",
    "ApprovalPage",
    "Objected",
    "PendingApproval",
    "ProposalDetail",
    "ProposalPage",
]

Digest = Annotated[
    str,
    Field(
        pattern=r"^[0-9a-f]{64}$",
        description="SHA-256 of the canonical proposal: votes add up only where it is the same",
    ),
]
Names = Annotated[list[str], Field(description="Shown names of those whose votes count, oldest vote first")]


class PendingApproval(Wire):
    """202: the vote counts, the act waits for others; asking again as the same human changes nothing."""

    machine_id: str | None = Field(description="Null where the act is not about one machine")
    status: Literal["pending_second_approval"] = "pending_second_approval"
    message: str
    action: str
    proposal_digest: Digest
    approval_id: int = Field(description="The caller's vote; `DELETE /approvals/{id}` withdraws it")
    approvals_received: int = Field(ge=1, description="Different humans whose votes are live")
    approvals_required: int = Field(ge=2)
    expires_at: datetime = Field(description="When the first of the live votes expires")
    voters: Names


class ApprovalDetail(Wire):
    """One vote, live or not."""

    id: int
    machine_id: str | None
    action: str
    subject: str = Field(description="What the vote is about, in words")
    proposal_digest: Digest
    operator_cn: str
    role: Role | None
    hostname: str | None
    assigned_ip: str | None
    created_at: datetime
    expires_at: datetime
    reason: str | None = Field(default=None, description="Why, in the voter's words; no vote binds them")
    consumed: bool = Field(description="The act that it was cast for was done")
    withdrawn: bool = Field(description="Taken back, or void")
    void: str | None = Field(
        default=None, description="Why it became void without its voter; null where it did not"
    )
    live: bool = Field(description="It counts now, unless its proposal was overtaken")


class ApprovalPage(Wire):
    """Votes, newest first."""

    items: list[ApprovalDetail]
    next_cursor: str | None = Field(description="Pass as `cursor` to get the next page; null at the end")


class ProposalDetail(Wire):
    """One proposal that waits for votes."""

    proposal_digest: Digest
    action: str
    subject: str
    machine_id: str | None
    approvals_received: int
    approvals_required: int
    expires_at: datetime
    voters: Names
    proposal: dict[str, Any] = Field(description="Every member that the votes bind")
    overtaken: list[str] = Field(
        default=[],
        description="Members of the proposal that say what is not so any more; with one of them no vote counts",
    )
    approvals: list[ApprovalDetail]
    document: str | None = Field(
        default=None,
        description="What was sent, where the votes bind only its digest: entries of an allow-list (JSON), a "
        "certificate (base64 of DER), a request for one (PEM). Shown with one proposal, not in lists",
    )


class Objected(Wire):
    """A proposal whose votes are void."""

    proposal_digest: Digest
    voided: int = Field(ge=1, description="Votes that counted until now")


class ProposalPage(Wire):
    """Proposals that wait for votes, newest first."""

    items: list[ProposalDetail]
    next_cursor: str | None = Field(description="Pass as `cursor` to get the next page; null at the end")
