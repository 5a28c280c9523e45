"""The schema says which code may run on it: so an older version can tell whether a newer schema serves it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
works_with = "0028"  # code from before knows of no such table, and starts with its own revision alone


def upgrade() -> None:
    """Make the table; whoever migrates fills it (`attestation.store.migrate`)."""
    op.create_table(
        "schema_support",
        sa.Column("branch", sa.Text(), nullable=False),
        sa.Column("revision", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("branch", "revision", name=op.f("pk_schema_support")),
        sqlite_with_rowid=False,
    )
