"""The index of a machine's handovers holds those that wait: dead letters cost the others nothing."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"

NAME = "ix_handovers_subscriber_machine_id_sequence"


def upgrade() -> None:
    """Make the index again, over fewer rows."""
    op.drop_index(NAME, "handovers")
    waits = sa.text("next_attempt_at IS NOT NULL")
    op.create_index(
        NAME,
        "handovers",
        ["subscriber", "machine_id", "sequence"],
        sqlite_where=waits,
        postgresql_where=waits,
    )
