"""Rules by which machines are approved without a person; none is there, and none is enabled by itself."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0049"
down_revision = "0048"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "approval_rules",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("expression", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("hostname", sa.Text(), nullable=True),
        sa.Column("minimum_assurance", sa.Text(), nullable=False),
        sa.Column("max_count", sa.BigInteger(), nullable=False),
        sa.Column("used", sa.BigInteger(), nullable=False),
        sa.Column("priority", sa.BigInteger(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        sa.Column("changed_by", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "role IN ('controlplane', 'worker-infra', 'worker-app', 'generic', 'windows', 'linux')",
            name=op.f("ck_approval_rules_role"),
        ),
        sa.CheckConstraint("used BETWEEN 0 AND max_count", name=op.f("ck_approval_rules_used")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_approval_rules")),
    )
