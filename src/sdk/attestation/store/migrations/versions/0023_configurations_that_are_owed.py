"""Since when a machine is owed a configuration, and why it has none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    """Of a delivery that is due already, the best that is known is that it is so since the machine attested first."""
    op.add_column("machines", sa.Column("config_owed_since", sa.BigInteger(), nullable=True))
    op.add_column("machines", sa.Column("config_failure", sa.Text(), nullable=True))
    op.execute("UPDATE machines SET config_owed_since = COALESCE(attested_at, registered_at) WHERE redeliver")
    op.drop_column("machines", "redeliver")
