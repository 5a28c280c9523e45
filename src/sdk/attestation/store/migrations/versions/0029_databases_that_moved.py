"""A database says that it was copied and that the copy went on, so that nobody starts it again by mistake."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    """Add where it went, and when."""
    op.add_column("database_identity", sa.Column("moved_to", sa.Text(), nullable=True))
    op.add_column("database_identity", sa.Column("moved_at", sa.BigInteger(), nullable=True))
