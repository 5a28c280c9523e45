"""`security.ugallu.io/v1alpha1`: AttestationSchedule, as a model (ours: runs that nobody scripts)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from attestation.runs import Backend
from attestation_operator.crds.parts import (
    Condition,
    Duration,
    Instant,
    NamedRef,
    Part,
    between,
    listed,
    ruled,
    within,
)
from attestation_operator.crds.runs import Timeout

SHORTEST_EVERY = "1m"
LONGEST = "8784h"
"""A year."""
LONGEST_JITTER = "24h"
Count = Annotated[int, Field(ge=0, le=1000)]


class ScheduleHistory(Part):
    """How many finished runs are kept of each node and backend; older ones are deleted."""

    succeeded: Count = Field(default=3, description="Of those that succeeded")
    failed: Count = Field(default=3, description="Of those that failed")


class ScheduleSpec(Part):
    """Which nodes are asked, when, and for what."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            ("has(self.schedule) != has(self.every)", "a schedule has either schedule or every")
        )
    )

    schedule: Annotated[str, Field(min_length=1, max_length=256)] | None = Field(
        default=None, description="When, as cron has it, in UTC: minute, hour, day, month, weekday"
    )
    every: Annotated[Duration, within(SHORTEST_EVERY, LONGEST)] | None = Field(
        default=None,
        description=f"How often, from {SHORTEST_EVERY} to {LONGEST}, as Go writes durations",
        json_schema_extra=between(SHORTEST_EVERY, LONGEST),
    )
    jitter: Annotated[Duration, within("0s", LONGEST_JITTER)] | None = Field(
        default=None,
        description=f"Over how long runs of the nodes are spread, at most {LONGEST_JITTER}",
        json_schema_extra=between("0s", LONGEST_JITTER),
    )
    node_selector: Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=64)] = Field(
        default_factory=dict, description="Labels that a Node has; none: every Node"
    )
    backend: Literal["auto", Backend] = Field(
        default="auto", description="Which hardware is asked; auto: what the node has"
    )
    policy_ref: NamedRef | None = Field(
        default=None, description="An AttestationPolicy of the same namespace; none: runs only record"
    )
    timeout: Timeout
    history: ScheduleHistory = Field(
        default=ScheduleHistory(), description="How many finished runs are kept of each node and backend"
    )
    suspend: bool = Field(default=False, description="Create nothing and take nothing away")

    @model_validator(mode="after")
    def _when(self) -> ScheduleSpec:
        if (self.schedule is None) == (self.every is None):
            raise ValueError("a schedule has either schedule or every")
        return self


class ScheduleStatus(Part):
    """What the controller did."""

    last_schedule_time: Instant | None = Field(
        default=None, description="Up to it all that was due is dealt with"
    )
    next_schedule_time: Instant | None = Field(
        default=None, description="When runs are due next; jitter comes on top"
    )
    active: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Runs that have not finished"
    )
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = Field(
        default=(), description="Ready: runs are made when they are due", json_schema_extra=listed("type")
    )


class Schedule(Part):
    """Makes attestation runs for nodes at fixed times, one at a time for each node, and deletes old ones."""

    spec: ScheduleSpec
    status: ScheduleStatus | None = None
