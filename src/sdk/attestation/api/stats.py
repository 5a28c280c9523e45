"""How the fleet stands, in numbers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field

from attestation.api.base import Wire
from attestation.machines import Role, Status, Trust

__all__ = ["Stats"]

Count = Annotated[int, Field(ge=0)]


class Stats(Wire):
    """`GET /api/v1/stats`: every machine is counted once in each of the three tables."""

    at: datetime
    machines: Count
    by_status: dict[Status, Count] = Field(description="Every status, also where nobody is in it")
    by_role: dict[Role, Count] = Field(description="Every role; those without one are in `without_role`")
    without_role: Count
    by_trust: dict[Trust, Count] = Field(description="What the last result is worth at `at`")
    service_keys_pinned: Count = Field(
        default=0, description="Machines that acknowledged the key set which `/service-keys` shows now"
    )
