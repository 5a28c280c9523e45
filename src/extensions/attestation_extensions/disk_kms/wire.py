"""What operators say and read of disk keys."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from attestation.extension import Wire

MOST_USES = 8


class KMSHold(Wire):
    """A machine, or all machines of a cluster, that get no disk key without an operator."""

    scope: Literal["machine", "cluster"]
    subject: str = Field(description="Machine id, or name of the cluster")
    placed_at: datetime
    placed_by: str


class KMSWaiting(Wire):
    """A machine that is held and asked for its disk key."""

    machine_id: str
    source_ip: str = Field(description="Where it asked from last")
    first_at: datetime
    last_at: datetime
    uses: int = Field(description="How many disk keys it may still get")
    released_until: datetime | None
    released_by: str | None


class KMSHolds(Wire):
    """What is held, and who waits."""

    holds: list[KMSHold]
    waiting: list[KMSWaiting]


class KMSHoldRequest(Wire):
    """Hold a machine or a cluster."""

    scope: Literal["machine", "cluster"]
    subject: str = Field(min_length=1, max_length=64)


class KMSReleaseRequest(Wire):
    """Let a machine that waits have disk keys."""

    uses: Annotated[int, Field(ge=1, le=MOST_USES)] = 1
    """One for each encrypted volume: STATE asks first, EPHEMERAL after it."""


class KMSKey(Wire):
    """A key of a machine; the newest that is not retired seals."""

    key_id: str = Field(description="16 hex")
    created_at: datetime
    retired_at: datetime | None


class KMSKeys(Wire):
    """The keys of a machine, the newest first."""

    machine_id: str
    keys: list[KMSKey]


class KMSRewrapped(Wire):
    """What a change of the key-encryption key brought over."""

    rewrapped: int
    unreachable: int = Field(description="Keys under a KEK that is not set, or that does not answer")
