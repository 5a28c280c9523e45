"""Who vouches for a CA key of ours, where it does not for itself: a parent's chain."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0041"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "ca_chains",
        sa.Column("issuer_id", sa.Text(), nullable=False),
        sa.Column("chain", sa.Text(), nullable=False),
        sa.Column("imported_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["issuer_id"], ["ca_issuers.issuer_id"], name=op.f("fk_ca_chains_issuer_id")),
        sa.PrimaryKeyConstraint("issuer_id", name=op.f("pk_ca_chains")),
        sqlite_with_rowid=False,
    )
