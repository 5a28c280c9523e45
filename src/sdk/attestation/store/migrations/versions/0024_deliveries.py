"""Events on their way to subscribers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    """Make the table, empty: nobody has subscribed."""
    op.create_table(
        "deliveries",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("subscriber", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("machine_id", sa.Text(), nullable=True),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("next_attempt_at", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_deliveries")),
        sa.UniqueConstraint("subscriber", "id", name=op.f("uq_deliveries_subscriber_id")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_deliveries_created_at", "deliveries", ["created_at"])
    op.create_index(
        "ix_deliveries_subscriber_next_attempt_at", "deliveries", ["subscriber", "next_attempt_at"]
    )
    op.create_index(
        "ix_deliveries_subscriber_machine_id_sequence", "deliveries", ["subscriber", "machine_id", "sequence"]
    )
