"""Who machines are to kinds of evidence besides their TPM's."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    """Make the table, empty: so far machines have TPMs alone."""
    op.create_table(
        "machine_identities",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("value", sa.LargeBinary(), nullable=False),
        sa.Column("machine_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["machine_id"], ["machines.machine_id"], name=op.f("fk_machine_identities_machine_id")
        ),
        sa.PrimaryKeyConstraint("kind", "value", name=op.f("pk_machine_identities")),
        sa.UniqueConstraint("machine_id", "kind", name=op.f("uq_machine_identities_machine_id_kind")),
        sqlite_with_rowid=False,
    )
