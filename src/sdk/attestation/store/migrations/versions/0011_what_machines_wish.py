"""Keep the cluster that a machine asks for apart from the one it has; alarms; what a registration token demands.

Admitted machines stay in their cluster: operators saw it. Those that still wait go to `default`, as an introduction
now does. Tokens made before demand `ek-chain`, as if nothing had been chosen; without a cluster they mean `default`.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Add the columns; every machine and every token stays."""
    op.add_column("machines", sa.Column("desired_cluster_id", sa.Text(), nullable=True))
    op.add_column("machines", sa.Column("alarm", sa.Text(), nullable=True))
    op.execute("UPDATE machines SET desired_cluster_id = cluster_id")
    op.execute("UPDATE machines SET cluster_id = 'default' WHERE status = 'pending_approval'")
    op.add_column(
        "registration_tokens",
        sa.Column("minimum_assurance", sa.Text(), server_default="ek-chain", nullable=False),
    )
