"""Rules by which machines are approved without a person."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from attestation.api.base import ClusterId, Wire, spelled
from attestation.api.operator import Cursor
from attestation.machines import DEFAULT_CLUSTER, Role
from attestation.machines.approval_rules import checked_pattern
from attestation.results import Assurance

__all__ = [
    "ApprovalRuleCreate",
    "ApprovalRuleDetail",
    "ApprovalRulePage",
    "ApprovalRuleTrial",
    "ApprovalRuleTried",
]

RULE_NAME_PATTERN: Final = r"^[a-z0-9][a-z0-9-]{0,62}$"
Expression = Annotated[
    str,
    Field(
        min_length=1,
        max_length=512,
        description="CEL over `machine`; true approves it",
        examples=['machine.ek_manufacturer == "IFX" && machine.product == "Example 9000"'],
    ),
]
HostnamePattern = Annotated[
    str,
    Field(
        max_length=253,
        description="With `{serial}`, `{uuid}` or `{mac}` in it, not at its beginning",
        examples=["w-{serial}"],
    ),
    AfterValidator(lambda text: spelled(checked_pattern, text)),
]


class ApprovalRuleCreate(Wire):
    """A rule; it approves nobody before it is enabled."""

    name: str = Field(pattern=RULE_NAME_PATTERN)
    expression: Expression
    minimum_assurance: Assurance = Field(
        default=Assurance.EK_CHAIN, description="A machine that is vouched for less waits for an operator"
    )
    hostname: HostnamePattern | None = None
    role: Role
    cluster_id: ClusterId = DEFAULT_CLUSTER
    max_count: int = Field(ge=1, le=10_000, description="Machines that it may approve, ever")
    priority: int = Field(default=100, ge=0, le=1000, description="The higher one is asked first")


class ApprovalRuleDetail(Wire):
    """A rule, and what came of it."""

    name: str
    expression: str
    role: Role
    cluster_id: str
    hostname: str | None
    minimum_assurance: Assurance
    max_count: int
    used: int = Field(description="Machines that it has approved")
    priority: int
    enabled: bool
    created_at: datetime
    created_by: str
    changed_at: datetime
    changed_by: str


class ApprovalRulePage(Wire):
    """Rules in the order of their names."""

    items: list[ApprovalRuleDetail]
    next_cursor: Cursor


class ApprovalRuleTrial(Wire):
    """A machine that waits, and whether the rule would have approved it."""

    machine_id: str
    approves: bool
    hostname: str | None
    why: str = Field(description="Why not; empty where it would")


class ApprovalRuleTried(Wire):
    """What a rule would have done; nothing was."""

    items: list[ApprovalRuleTrial] = Field(description="The machines that wait, at most 500")
