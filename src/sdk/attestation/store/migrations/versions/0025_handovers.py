"""Events that are handed over are called so; configurations are what is delivered."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    """Put the table in the place of the one before, which takes its constraints with it; every row stays."""
    op.create_table(
        "handovers",
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
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_handovers")),
        sa.UniqueConstraint("subscriber", "id", name=op.f("uq_handovers_subscriber_id")),
        sqlite_autoincrement=True,
    )
    kept = "subscriber, id, event, machine_id, payload, created_at, attempts, next_attempt_at, error"
    op.execute(f"INSERT INTO handovers ({kept}) SELECT {kept} FROM deliveries ORDER BY sequence")  # noqa: S608 -- the names above
    op.drop_table("deliveries")
    for columns in (
        ["created_at"],
        ["subscriber", "next_attempt_at"],
        ["subscriber", "machine_id", "sequence"],
    ):
        op.create_index(f"ix_handovers_{'_'.join(columns)}", "handovers", columns)
