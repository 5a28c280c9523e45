"""Secrets, the versions of their values, who may have them, and the keys of the vault."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables, empty."""
    op.create_table(
        "extension_secrets",
        sa.Column("secret_id", sa.Text(), primary_key=True),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("live", sa.BigInteger(), nullable=True),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("rule", sa.Text(), nullable=True),
        sa.Column("newest", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("rotated_at", sa.BigInteger(), nullable=True),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("deleted_at", sa.BigInteger(), nullable=True),
        sa.Column("accessed_at", sa.BigInteger(), nullable=True),
        sa.Column("access_count", sa.BigInteger(), nullable=False),
        sa.Column("mark", sa.LargeBinary(), nullable=False),
        sa.UniqueConstraint("owner", "name", "live", name="extension_secrets_name"),
    )
    op.create_table(
        "extension_secret_versions",
        sa.Column("secret_id", sa.Text(), primary_key=True),
        sa.Column("version", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("key_id", sa.LargeBinary(), nullable=False),
        sa.Column("kek_id", sa.Text(), nullable=False),
        sa.Column("wrapped", sa.LargeBinary(), nullable=False),
        sa.Column("blob", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
    )
    op.create_index("extension_secret_versions_kek", "extension_secret_versions", ["kek_id"])
    op.create_table(
        "extension_shared_secret_access",
        sa.Column("secret_id", sa.Text(), primary_key=True),
        sa.Column("machine_id", sa.Text(), primary_key=True),
        sa.Column("granted_at", sa.BigInteger(), nullable=False),
        sa.Column("granted_by", sa.Text(), nullable=False),
        sa.Column("accessed_at", sa.BigInteger(), nullable=True),
        sa.Column("access_count", sa.BigInteger(), nullable=False),
        sa.Column("mark", sa.LargeBinary(), nullable=False),
    )
    op.create_table(
        "extension_secret_keys",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("kek_id", sa.Text(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
    )
