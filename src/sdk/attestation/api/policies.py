"""Policies as operators look at them before they let them apply: in force, tried, learned (TPM.md §4.6)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from attestation.api.base import ClusterId, MachineId, Wire
from attestation.machines import Role
from attestation.results import Verdict

__all__ = [
    "EffectivePart",
    "EffectivePolicy",
    "LearnGroup",
    "LearnOutlier",
    "LearnedPolicy",
    "PolicyLearnRequest",
    "PolicyTestCounts",
    "PolicyTestMachine",
    "PolicyTestPage",
    "PolicyTestRequest",
]

PolicyRef = Annotated[
    str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}@[1-9][0-9]{0,8}$", examples=["workers@1"])
]
PolicyName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$", examples=["workers"])]
ScopeName = Literal["fleet", "cluster", "role", "machine"]
Document = Annotated[
    dict[str, Any], Field(description="A document of the format itl-policy/2, or itl-tpm-policy/1")
]


class EffectivePart(Wire):
    """One assignment that meets in a machine."""

    scope: ScopeName
    subject: str
    policy: str
    agreed: bool = Field(default=False, description="Several operators agreed to it (dual control)")


class EffectivePolicy(Wire):
    """What a machine is measured against: every assigned policy in one."""

    machine_id: str
    policy: str = Field(description="`name@version` of each that is in force, widest first, joined by `+`")
    sha256: str = Field(description="Of the effective document, canonical JSON")
    identifier: str = Field(default="", description="`ni:///sha-384;…`, equal exactly when the same is asked")
    assigned: list[EffectivePart] = Field(
        description="What is assigned, widest first; empty: the shipped one"
    )
    document: dict[str, Any] = Field(
        description="The members in force; `sources` names the policy and the mode of each"
    )
    looks_away: list[str] = Field(
        default=[], description="What of a boot it does not compare, or only reports; in words"
    )


class PolicyTestRequest(Wire):
    """Judge the evidence that is stored as if a policy applied there: `policy` or `document`."""

    policy: PolicyRef | None = Field(default=None, description="One that is stored")
    document: Document | None = Field(default=None, description="One that is not")
    scope: ScopeName = "fleet"
    subject: str = Field(default="*", min_length=1, max_length=128)
    cursor: Annotated[str | None, Field(max_length=512, pattern=r"^[A-Za-z0-9_-]+$")] = None
    limit: int = Field(default=1000, ge=1, le=1000, strict=True)


class PolicyTestCounts(Wire):
    """How often one check ended how."""

    passed: int = 0
    failed: int = 0
    flagged: int = 0
    reported: int = 0
    undecided: int = 0


class PolicyTestMachine(Wire):
    """A machine that would fail."""

    machine_id: str
    hostname: str | None
    role: Role | None
    failed: str = Field(description="Names of the checks that fail, and of those that could not be decided")
    at: datetime = Field(description="Of the evidence")
    before: Verdict = Field(description="What was thought of the same evidence then")
    newly: bool = Field(description="It was not Failed then")


class PolicyTestPage(Wire):
    """How some machines would be judged; the sum over all pages is the answer."""

    policy: str
    sha256: str
    machines: int = Field(description="In the whole scope; those that are rejected or revoked are left out")
    judged: int = Field(description="On this page")
    passed: int
    failed: int
    undecided: int = Field(description="Their evidence does not hold what the policy asks for")
    without_evidence: int
    reported: int = Field(description="Of those that pass: a rule in mode `report` does not hold")
    recovering: int = Field(description="Of those that pass: they were Failed")
    failing: list[PolicyTestMachine]
    checks: dict[str, PolicyTestCounts]
    next_cursor: str | None = Field(description="Pass as `cursor` to get the next page; null at the end")


class PolicyLearnRequest(Wire):
    """Propose a policy from what machines proved: `machines`, or all of a role, of a cluster, of the fleet."""

    machines: list[MachineId] = Field(default=[], max_length=200)
    role: Role | None = None
    cluster_id: ClusterId | None = None
    fleet: bool = Field(default=False, strict=True)
    name: PolicyName = "learned"
    version: int = Field(default=1, ge=1, le=999_999_999, strict=True)
    include_failed: bool = Field(
        default=False,
        strict=True,
        description="Learn also from the newest evidence of machines that fail now",
    )
    accept_unmeasured: bool = Field(
        default=False,
        strict=True,
        description="List values that hold no measurement, too: any machine that measures nothing has them. Audited",
    )


class LearnGroup(Wire):
    """Machines that have the same of something."""

    subject: str = Field(description="What they have in common, e.g. `pcr7`")
    value: str
    machines: list[str] = Field(description="Hostname, or id where there is none")


class LearnOutlier(Wire):
    """A machine that differs from most, and is left out of the proposal for it."""

    machine: str
    reason: str


class LearnedPolicy(Wire):
    """A proposal; it is stored nowhere."""

    machines: int = Field(description="How many were looked at")
    left_out: int = Field(description="How many more there are, beyond the limit of one proposal")
    base: str | None = Field(
        default=None,
        description="`name@version` of the policy that applies there, from which the proposal starts",
    )
    document: Document
    groups: list[LearnGroup]
    outliers: list[LearnOutlier]
    notes: list[str]
