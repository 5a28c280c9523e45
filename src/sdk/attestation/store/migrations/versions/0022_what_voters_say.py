"""What a voter said, and what was sent where a proposal binds only a digest of it: for whoever is to agree."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    """Add two columns; of older votes neither is known."""
    op.add_column("approvals", sa.Column("reason", sa.Text(), nullable=True))
    op.add_column("approvals", sa.Column("document", sa.Text(), nullable=True))
