"""Why a vote became void, and with which certificate it was cast."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add what no older vote has."""
    op.add_column("approvals", sa.Column("void", sa.Text(), nullable=True))
    op.add_column("approvals", sa.Column("certificate", sa.LargeBinary(), nullable=True))
