"""What was seen of the confidential hardware of machines, and what operators approved of it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"


def upgrade() -> None:
    """Add the columns. No machine has an identity of such a kind yet, so none of the log's digests changes."""
    op.add_column("machines", sa.Column("hardware_kind", sa.Text(), nullable=True))
    op.add_column("machines", sa.Column("hardware_chip", sa.LargeBinary(), nullable=True))
    op.add_column("machines", sa.Column("hardware_guest", sa.LargeBinary(), nullable=True))
    op.add_column("machines", sa.Column("hardware_csp_id", sa.Text(), nullable=True))
    op.add_column(
        "machines", sa.Column("vouched_by_hardware", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    op.add_column("machine_identities", sa.Column("guest", sa.LargeBinary(), nullable=True))
    op.add_column("machine_identities", sa.Column("approved_chip", sa.LargeBinary(), nullable=True))
    op.add_column("machine_identities", sa.Column("approved_csp_id", sa.Text(), nullable=True))
