"""Where the last result of a machine came from: what is released to it at once goes to the same address."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"


def upgrade() -> None:
    """Add the column; unknown until a machine attests again."""
    op.add_column("machines", sa.Column("last_result_from", sa.Text(), nullable=True))
