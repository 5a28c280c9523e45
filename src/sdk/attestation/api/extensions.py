"""The extensions of a service (DELIVERY-AND-OPERATORS §14)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from attestation.api.base import Wire

__all__ = [
    "DeadLetter",
    "DeadLetterDetail",
    "DeadLetterList",
    "ExtensionDetail",
    "ExtensionList",
    "Retried",
    "RetryRequest",
]

MAX_IDS = 100


class ExtensionDetail(Wire):
    """One extension that is enabled.

    `skipped`: why it cannot be used; then nothing is known of it, or it was left out when it began.
    `pending`: events on their way to it. `dead_letters`: those it could not handle, up to thirty days old.
    """

    name: str
    version: str | None
    description: str | None
    skipped: str | None = None
    pending: int
    dead_letters: int


class ExtensionList(Wire):
    """`GET /api/v1/extensions`."""

    extensions: list[ExtensionDetail]
    total: int


class DeadLetterDetail(Wire):
    """An event that an extension could not handle. `error`: the kind of its last failure."""

    event_id: str
    event: str
    machine_id: str | None
    created_at: datetime
    attempts: int
    error: str


class DeadLetter(DeadLetterDetail):
    """`GET /api/v1/extensions/{name}/dead-letters/{event_id}`: one of them. `payload`: what the event says."""

    payload: dict[str, Any]


class DeadLetterList(Wire):
    """`GET /api/v1/extensions/{name}/dead-letters`: the newest hundred."""

    items: list[DeadLetterDetail]


class RetryRequest(Wire):
    """`POST /api/v1/extensions/{name}/retry`: which ones; without `event_ids` all."""

    event_ids: list[Annotated[str, Field(max_length=64)]] | None = Field(
        default=None, min_length=1, max_length=MAX_IDS
    )


class Retried(Wire):
    """`POST /api/v1/extensions/{name}/retry`: how many events are on their way again."""

    events: int
