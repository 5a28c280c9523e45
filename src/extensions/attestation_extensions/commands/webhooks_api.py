"""The routes of webhooks as the command line asks for them (`attestation_cli.plugin`)."""

# These functions are declarations: nothing runs them.
# mypy: disable-error-code="empty-body"
from __future__ import annotations

from attestation_cli.plugin import operation
from attestation_extensions.webhooks import wire
from attestation_extensions.webhooks.records import State

_ONE = "/webhooks/{webhook_id}"


class Webhooks:
    """What an operator asks of them."""

    @operation("webhooks_create", "POST /webhooks/")
    def create(self, request: wire.CreateWebhook) -> wire.WebhookSecret:
        """Add an endpoint."""

    @operation("webhooks_all", "GET /webhooks/")
    def all(self) -> wire.WebhookList:
        """List the endpoints."""

    @operation("webhooks_events", "GET /webhooks/events")
    def events(self) -> wire.WebhookEvents:
        """List what an endpoint can be told of."""

    @operation("webhooks_show", f"GET {_ONE}")
    def show(self, webhook_id: str) -> wire.WebhookResponse:
        """Show an endpoint."""

    @operation("webhooks_update", f"PUT {_ONE}")
    def update(self, webhook_id: str, request: wire.UpdateWebhook) -> wire.WebhookResponse:
        """Change an endpoint."""

    @operation("webhooks_delete", f"DELETE {_ONE}")
    def delete(self, webhook_id: str) -> None:
        """Remove an endpoint."""

    @operation("webhooks_rotate", f"POST {_ONE}/rotate")
    def rotate(self, webhook_id: str) -> wire.WebhookSecret:
        """Exchange the secret."""

    @operation("webhooks_test", f"POST {_ONE}/test")
    def test(self, webhook_id: str) -> wire.DeliveryResponse:
        """Send a test event."""

    @operation("webhooks_deliveries", f"GET {_ONE}/deliveries")
    def deliveries(self, webhook_id: str, status: State | None = None, limit: int = 100) -> wire.DeliveryList:
        """List the newest deliveries."""

    @operation("webhooks_delivery", f"GET {_ONE}/deliveries/{{delivery_id}}")
    def delivery(self, webhook_id: str, delivery_id: str) -> wire.DeliveryDetail:
        """Show a delivery."""

    @operation("webhooks_replay", f"POST {_ONE}/deliveries/{{delivery_id}}/replay")
    def replay(self, webhook_id: str, delivery_id: str) -> wire.Queued:
        """Send a delivery again."""

    @operation("webhooks_replay_dead", f"POST {_ONE}/replay")
    def replay_dead(self, webhook_id: str) -> wire.Queued:
        """Send again what was given up."""
