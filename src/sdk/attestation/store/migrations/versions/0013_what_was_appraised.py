"""Keep of each result what was appraised, not only whether anything was.

What a row of before proves stands in its checks and values: it is told from them when it is read.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Put a list (JSON) in the place of the flag; null in rows of before that said yes."""
    op.add_column("attestation_results", sa.Column("appraised", sa.Text(), nullable=True))
    results = sa.table(
        "attestation_results",
        sa.column("appraised", sa.Text()),
        sa.column("boot_state_appraised", sa.Boolean()),
    )
    op.execute(results.update().where(results.c.boot_state_appraised == sa.false()).values(appraised="[]"))
    op.drop_column("attestation_results", "boot_state_appraised")
