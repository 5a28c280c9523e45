"""The counters."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the table, empty."""
    op.create_table(
        "extension_metrics_events",
        sa.Column("event", sa.Text(), primary_key=True),
        sa.Column("total", sa.BigInteger(), nullable=False),
    )
