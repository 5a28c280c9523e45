"""Find who refers to a measurement log, so that it can go when nobody does."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0004"


def upgrade() -> None:
    """Index the references, of those who have one."""
    for table, column in (("machines", "event_log_sha256"), ("attestation_results", "ima_log_sha256")):
        present = sa.text(f"{column} IS NOT NULL")
        op.create_index(
            f"ix_{table}_{column}", table, [column], sqlite_where=present, postgresql_where=present
        )
