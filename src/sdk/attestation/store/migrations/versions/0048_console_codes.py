"""Codes on consoles, and what operators said of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0048"
down_revision = "0047"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "console_codes",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("user_code", sa.Text(), nullable=False),
        sa.Column("device_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("client_id", sa.Text(), nullable=False),
        sa.Column("hw_uuid", sa.Text(), nullable=True),
        sa.Column("hw_mac", sa.Text(), nullable=True),
        sa.Column("hw_serial", sa.Text(), nullable=True),
        sa.Column("hostname", sa.Text(), nullable=True),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("asked_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("decided_at", sa.BigInteger(), nullable=True),
        sa.Column("decided_by", sa.Text(), nullable=True),
        sa.Column("token_sha256", sa.LargeBinary(), nullable=True),
        sa.Column("token_until", sa.BigInteger(), nullable=True),
        sa.Column("token_source", sa.Text(), nullable=True),
        sa.Column("kept_until", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("state IN ('pending', 'approved', 'denied')", name=op.f("ck_console_codes_state")),
        sa.CheckConstraint(
            "token_sha256 IS NULL OR state = 'approved'", name=op.f("ck_console_codes_token_sha256")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_console_codes")),
        sa.UniqueConstraint("user_code", name=op.f("uq_console_codes_user_code")),
        sa.UniqueConstraint("device_sha256", name=op.f("uq_console_codes_device_sha256")),
        sa.UniqueConstraint("token_sha256", name=op.f("uq_console_codes_token_sha256")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_console_codes_state_expires_at", "console_codes", ["state", "expires_at"])
    op.create_index("ix_console_codes_kept_until", "console_codes", ["kept_until"])
