"""Keys, holds, and who waits."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables, empty."""
    op.create_table(
        "extension_disk_kms_keys",
        sa.Column("key_id", sa.LargeBinary(), primary_key=True),
        sa.Column("machine_id", sa.Text(), nullable=False),
        sa.Column("kek_id", sa.Text(), nullable=False),
        sa.Column("wrapped", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("retired_at", sa.BigInteger(), nullable=True),
    )
    op.create_index(
        "ix_extension_disk_kms_keys_machine_id", "extension_disk_kms_keys", ["machine_id", "created_at"]
    )
    op.create_index("ix_extension_disk_kms_keys_kek_id", "extension_disk_kms_keys", ["kek_id"])
    op.create_table(
        "extension_disk_kms_holds",
        sa.Column("scope", sa.Text(), primary_key=True),
        sa.Column("subject", sa.Text(), primary_key=True),
        sa.Column("placed_at", sa.BigInteger(), nullable=False),
        sa.Column("placed_by", sa.Text(), nullable=False),
        sa.CheckConstraint("scope IN ('machine', 'cluster')", name="scope"),
    )
    op.create_table(
        "extension_disk_kms_waiting",
        sa.Column("machine_id", sa.Text(), primary_key=True),
        sa.Column("source_ip", sa.Text(), nullable=False),
        sa.Column("first_at", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.BigInteger(), nullable=False),
        sa.Column("uses", sa.BigInteger(), nullable=False),
        sa.Column("released_until", sa.BigInteger(), nullable=True),
        sa.Column("released_by", sa.Text(), nullable=True),
    )
