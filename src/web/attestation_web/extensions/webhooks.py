"""Routes of the extension `webhooks`: endpoints, and what became of each message."""

# These functions are declarations: nothing runs them.
# mypy: disable-error-code="empty-body"
from __future__ import annotations

from datetime import datetime
from typing import Literal

from attestation.api.base import Wire
from attestation.api.operation import operation

NAME = "webhooks"
State = Literal["waiting", "delivered", "dead"]
_ONE = "/webhooks/{webhook_id}"


class CreateWebhook(Wire):
    """An endpoint, and what it is told of; the service makes its secret."""

    url: str
    events: list[str]


class UpdateWebhook(Wire):
    """What changes; what is left out stays."""

    url: str | None = None
    events: list[str] | None = None
    enabled: bool | None = None


class WebhookResponse(Wire):
    """An endpoint, without its secret."""

    webhook_id: str
    url: str
    events: list[str]
    enabled: bool
    disabled_why: str | None
    secret_rotates_until: datetime | None
    created_at: datetime
    created_by: str
    last_triggered_at: datetime | None
    trigger_count: int
    failure_count: int


class WebhookSecret(Wire):
    """An endpoint with its secret, which is shown this once."""

    SHOWN_ONCE = True

    webhook: WebhookResponse
    secret: str


class WebhookList(Wire):
    """All endpoints, the oldest first."""

    webhooks: list[WebhookResponse]
    total: int


class WebhookEvents(Wire):
    """What an endpoint can be told of."""

    events: list[str]


class DeliveryResponse(Wire):
    """An event on its way to an endpoint, or there, or given up."""

    delivery_id: str
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


class Webhooks:
    """What is asked of them."""

    @operation("webhooks_create", "POST /webhooks/")
    def create(self, request: CreateWebhook) -> WebhookSecret:
        """Add an endpoint."""

    @operation("webhooks_all", "GET /webhooks/")
    def all(self) -> WebhookList:
        """List the endpoints."""

    @operation("webhooks_events", "GET /webhooks/events")
    def events(self) -> WebhookEvents:
        """List what an endpoint can be told of."""

    @operation("webhooks_show", f"GET {_ONE}")
    def show(self, webhook_id: str) -> WebhookResponse:
        """Show an endpoint."""

    @operation("webhooks_update", f"PUT {_ONE}")
    def update(self, webhook_id: str, request: UpdateWebhook) -> WebhookResponse:
        """Change an endpoint."""

    @operation("webhooks_delete", f"DELETE {_ONE}")
    def delete(self, webhook_id: str) -> None:
        """Remove an endpoint."""

    @operation("webhooks_rotate", f"POST {_ONE}/rotate")
    def rotate(self, webhook_id: str) -> WebhookSecret:
        """Exchange the secret."""

    @operation("webhooks_test", f"POST {_ONE}/test")
    def test(self, webhook_id: str) -> DeliveryResponse:
        """Send a test event."""

    @operation("webhooks_deliveries", f"GET {_ONE}/deliveries")
    def deliveries(self, webhook_id: str, status: State | None = None, limit: int = 100) -> DeliveryList:
        """List the newest deliveries."""

    @operation("webhooks_delivery", f"GET {_ONE}/deliveries/{{delivery_id}}")
    def delivery(self, webhook_id: str, delivery_id: str) -> DeliveryDetail:
        """Show a delivery."""

    @operation("webhooks_replay", f"POST {_ONE}/deliveries/{{delivery_id}}/replay")
    def replay(self, webhook_id: str, delivery_id: str) -> Queued:
        """Send a delivery again."""

    @operation("webhooks_replay_dead", f"POST {_ONE}/replay")
    def replay_dead(self, webhook_id: str) -> Queued:
        """Send again what was given up."""
