"""`security.ugallu.io/v1alpha1`: AttestationPolicy, as a model (CONFIDENTIAL.md §2.3)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from attestation.api.attestation_policy import AttestationPolicySpec
from attestation_operator.crds.parts import Condition, Part, PolicyID, listed


class PolicyStatus(Part):
    """What the controller makes of it."""

    observed_generation: Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})] | None = Field(
        default=None, description="Which edition of `spec` this is about"
    )
    policy_id: PolicyID | None = Field(
        default=None,
        description="`ni:///sha-384;…` of all that it asks; that of its runs where it has the block of one backend",
    )
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = Field(
        default=(), description="Ready: runs can ask it", json_schema_extra=listed("type")
    )


class Policy(Part):
    """What is expected of nodes; runs refer to it by name."""

    spec: AttestationPolicySpec
    status: PolicyStatus | None = None
