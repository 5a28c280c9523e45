"""What else is counted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Make the table, empty."""
    op.create_table(
        "extension_metrics_counts",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("words", sa.Text(), primary_key=True),
        sa.Column("total", sa.BigInteger(), nullable=False),
    )
