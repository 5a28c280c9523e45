"""Who does what is to be done once for all replicas, and the keys by which replicas of one service know each other."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    """Add the tables. The first process that starts takes the chores, and writes down its keys."""
    op.create_table(
        "chores",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_chores")),
    )
    op.create_table(
        "known_keys",
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("known_since", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("purpose", "fingerprint", name=op.f("pk_known_keys")),
    )
