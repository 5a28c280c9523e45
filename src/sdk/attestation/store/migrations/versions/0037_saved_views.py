"""What is kept under a name is a query, or a view of the list of machines."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"


def upgrade() -> None:
    """Add the column; all that was kept before are queries."""
    op.add_column("saved_queries", sa.Column("kind", sa.Text(), server_default="query", nullable=False))
