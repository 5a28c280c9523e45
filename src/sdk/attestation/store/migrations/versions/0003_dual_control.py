"""The votes of dual control."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
OPEN = sa.text("consumed_at IS NULL AND withdrawn_at IS NULL AND lapsed_at IS NULL")


def upgrade() -> None:
    """Create the table; there were no votes before."""
    op.create_table(
        "approvals",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("proposal_digest", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("machine_id", sa.Text(), nullable=True),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("operator_cn", sa.Text(), nullable=False),
        sa.Column("operator_sub", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=True),
        sa.Column("hostname", sa.Text(), nullable=True),
        sa.Column("assigned_ip", sa.Text(), nullable=True),
        sa.Column("proposal", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("consumed_at", sa.BigInteger(), nullable=True),
        sa.Column("withdrawn_at", sa.BigInteger(), nullable=True),
        sa.Column("lapsed_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "role IN ('controlplane', 'worker-infra', 'worker-app', 'generic', 'windows', 'linux')",
            name=op.f("ck_approvals_role"),
        ),
        sa.CheckConstraint("length(proposal_digest) = 64", name=op.f("ck_approvals_proposal_digest")),
        sa.CheckConstraint("operator_sub <> ''", name=op.f("ck_approvals_operator_sub")),
        sa.CheckConstraint(
            "consumed_at IS NULL OR withdrawn_at IS NULL", name=op.f("ck_approvals_ended_once")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_approvals")),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "ix_approvals_proposal_digest_operator_sub",
        "approvals",
        ["proposal_digest", "operator_sub"],
        unique=True,
        sqlite_where=OPEN,
        postgresql_where=OPEN,
    )
    op.create_index("ix_approvals_machine_id_id", "approvals", ["machine_id", "id"])
    op.create_index("ix_approvals_expires_at", "approvals", ["expires_at"])
