"""Whether several agreed to a policy; allow-list entries that were removed; how often policies changed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    """Add what nobody wrote down before: of no older assignment is it known that several agreed."""
    op.add_column(
        "policy_assignments", sa.Column("agreed", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.add_column("allow_list", sa.Column("removed_at", sa.BigInteger(), nullable=True))
    table = op.create_table(
        "revisions",
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("what", name=op.f("pk_revisions")),
    )
    op.bulk_insert(table, [{"what": "policies", "revision": 0}])
