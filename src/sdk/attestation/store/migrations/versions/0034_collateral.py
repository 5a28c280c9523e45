"""What vouches for confidential hardware, shared by all workers and replicas."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "collateral",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=True),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("stored_at", sa.BigInteger(), nullable=True),
        sa.Column("begins_at", sa.BigInteger(), nullable=True),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("ask_at", sa.BigInteger(), nullable=False),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_collateral")),
    )
    op.create_index("ix_collateral_ask_at", "collateral", ["ask_at"])
