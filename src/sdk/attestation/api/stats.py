"""How the fleet stands, in numbers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from attestation.api.base import Wire
from attestation.machines import Role, Status, Trust

__all__ = ["Attention", "OldestResult", "PendingByAge", "Stats"]

Count = Annotated[int, Field(ge=0)]


class Stats(Wire):
    """`GET /api/v1/stats`: every machine is counted once in each of the three tables."""

    at: datetime
    machines: Count
    by_status: dict[Status, Count] = Field(description="Every status, also where nobody is in it")
    by_role: dict[Role, Count] = Field(description="Every role; those without one are in `without_role`")
    without_role: Count
    by_trust: dict[Trust, Count] = Field(description="What the last result is worth at `at`")
    by_cluster: dict[str, Count] = Field(
        default={},
        description="Every cluster that a machine is in; a thousand at most, those with most machines first",
    )
    service_keys_pinned: Count = Field(
        default=0, description="Machines that acknowledged the key set which `/service-keys` shows now"
    )


class PendingByAge(Wire):
    """Machines that wait for approval, each once, by how long."""

    hour: Count = Field(description="Not longer than an hour")
    day: Count = Field(description="Longer, not longer than a day")
    week: Count = Field(description="Longer, not longer than seven days")
    longer: Count


class OldestResult(Wire):
    """The attested machine whose newest result is oldest."""

    machine_id: str
    hostname: str | None
    at: datetime


class Attention(Wire):
    """`GET /api/v1/stats/attention`: what operators should look at, all of one moment."""

    at: datetime
    pending: PendingByAge
    pending_since: datetime | None = Field(description="Since when the first of them waits")
    alarms: Count = Field(
        description="Machines with an alarm that no operator has answered by admitting them"
    )
    failed_recently: Count = Field(
        description="Machines whose newest result, of the last 24 hours, is not as expected"
    )
    undelivered: Count = Field(description="Machines that have not got the configuration they are to have")
    stale: Count = Field(
        description="Machines that have not attested in time: all that are listed by that trust"
    )
    oldest_result: OldestResult | None
    expiring: Count = Field(
        description="Good certificates of machines of whose life less than a fifth is left, and that none followed"
    )
    next_expiry: datetime | None = Field(description="When the first of these ends")
    ca_ends_at: datetime | None = Field(description="When the first certificate of a CA that signs ends")
    audit_entries: Count
    checkpoint_entries: Count = Field(description="Entries that the newest signed checkpoint covers; 0: none")
    checkpoint_at: datetime | None
    unsigned_since: datetime | None = Field(
        description="When the first entry was made that it does not cover"
    )
    tpm_vendors: dict[str, Count] = Field(
        description="What EK certificates say of their makers, the most frequent first, twelve at most; machines "
        "that were rejected or revoked do not count"
    )
    tpm_vendors_more: Count = Field(description="Machines of further makers")
    tpm_without_certificate: Count
