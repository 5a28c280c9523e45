"""Requests and answers of the routes of webhooks (ITL-REFERENCE §10)."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

from pydantic import Field, SecretStr, field_serializer

from attestation.extension import Wire
from attestation_extensions.webhooks.addresses import MAX_URL
from attestation_extensions.webhooks.messages import NAMES
from attestation_extensions.webhooks.records import State

MOST_EVENTS: Final = len(NAMES)


class _Keyed(Wire):
    secret: SecretStr | None = Field(
        default=None, description="The receiver's own: `whsec_` and base64 of 24 to 64 bytes"
    )

    @field_serializer("secret", when_used="unless-none")
    def _sent(self, secret: SecretStr) -> str:
        return secret.get_secret_value()


class CreateWebhook(_Keyed):
    """An endpoint, and what it is told of; without a secret the service makes one."""

    url: str = Field(min_length=1, max_length=MAX_URL, description="https")
    events: Annotated[list[str], Field(min_length=1, max_length=MOST_EVENTS, description="Names, or `*`")]


class UpdateWebhook(_Keyed):
    """What changes; what is left out stays. A secret takes the place of the one before, which signs for a day yet."""

    url: str | None = Field(default=None, min_length=1, max_length=MAX_URL)
    events: Annotated[list[str], Field(min_length=1, max_length=MOST_EVENTS)] | None = None
    enabled: bool | None = None


class WebhookResponse(Wire):
    """An endpoint, without its secret."""

    webhook_id: str
    url: str
    events: list[str]
    enabled: bool
    disabled_why: str | None
    secret_rotates_until: datetime | None = Field(description="Until when two secrets sign")
    created_at: datetime
    created_by: str
    last_triggered_at: datetime | None
    trigger_count: int = Field(description="Attempts")
    failure_count: int = Field(description="Of them, those that failed")


class WebhookSecret(Wire):
    """An endpoint with its secret, which is shown this once."""

    SHOWN_ONCE = True

    webhook: WebhookResponse
    secret: str = Field(description="`whsec_` and base64, as libraries of Standard Webhooks take it")


class WebhookList(Wire):
    """All endpoints, the oldest first."""

    webhooks: list[WebhookResponse]
    total: int


class WebhookEvents(Wire):
    """What an endpoint can be told of."""

    events: list[str]


class DeliveryResponse(Wire):
    """An event on its way to an endpoint, or there, or given up."""

    delivery_id: str = Field(description="`webhook-id` of each attempt")
    webhook_id: str
    event_type: str
    status: State
    attempts: int
    next_attempt_at: datetime | None
    response_status: int | None
    error: str | None
    created_at: datetime
    delivered_at: datetime | None
    duration_ms: int | None


class DeliveryList(Wire):
    """Deliveries to one endpoint, the newest first."""

    deliveries: list[DeliveryResponse]
    total: int


class DeliveryDetail(Wire):
    """A delivery with what was sent, and the beginning of what came back."""

    delivery: DeliveryResponse
    payload: str
    response_body: str | None


class Queued(Wire):
    """How many deliveries are on the way again."""

    deliveries: int
