"""Deliveries are forgotten by their age, a few at a time."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the index by which the oldest are found."""
    op.create_index("extension_webhook_deliveries_age", "extension_webhook_deliveries", ["created_at"])
