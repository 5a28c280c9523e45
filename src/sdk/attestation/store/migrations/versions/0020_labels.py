"""Labels that operators write on machines."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    """Add their table; nobody has any yet."""
    op.create_table(
        "machine_labels",
        sa.Column("machine_id", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["machine_id"],
            ["machines.machine_id"],
            name=op.f("fk_machine_labels_machine_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("machine_id", "key", name=op.f("pk_machine_labels")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_machine_labels_key_value"), "machine_labels", ["key", "value"])
