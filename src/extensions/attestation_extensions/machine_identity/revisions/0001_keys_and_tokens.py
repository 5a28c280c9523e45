"""Which keys there are, and which tokens were issued."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables, empty."""
    op.create_table(
        "extension_machine_identity_keys",
        sa.Column("number", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("kid", sa.Text(), nullable=False),
        sa.Column("published_at", sa.BigInteger(), nullable=False),
        sa.Column("signs_at", sa.BigInteger(), nullable=False),
        sa.Column("withdrawn_at", sa.BigInteger(), nullable=True),
    )
    op.create_table(
        "extension_machine_identity_tokens",
        sa.Column("jti", sa.Text(), primary_key=True),
        sa.Column("machine_id", sa.Text(), nullable=False),
        sa.Column("audience", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("kid", sa.Text(), nullable=False),
        sa.Column("issued_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
    )
    op.create_index(
        "extension_machine_identity_tokens_machine",
        "extension_machine_identity_tokens",
        ["machine_id", "issued_at"],
    )
