"""What became of acts of operators, for whoever asks again with the same key."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    """Add the table. Of no earlier act is anything remembered."""
    op.create_table(
        "acts",
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.Column("operator", sa.LargeBinary(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("request", sa.LargeBinary(), nullable=False),
        sa.Column("entry_id", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.BigInteger(), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("done_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("status IS NOT NULL OR answer IS NULL", name=op.f("ck_acts_answer")),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_acts")),
        sa.UniqueConstraint("operator", "number", name=op.f("uq_acts_operator_number")),
    )
    op.create_index(op.f("ix_acts_done_at"), "acts", ["done_at"])
