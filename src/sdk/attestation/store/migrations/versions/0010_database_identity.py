"""Give the database an identity, so that keys can tell it from another one."""

from __future__ import annotations

import secrets
import time

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Make the identity: of a new database now, of an existing one once; a start binds it to the keys."""
    table = op.create_table(
        "database_identity",
        sa.Column("id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("database_id", sa.Text(), nullable=False),
        sa.Column("made_at", sa.BigInteger(), nullable=False),
        sa.Column("bound_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("id = 1", name=op.f("ck_database_identity_id")),
        sa.CheckConstraint("length(database_id) = 32", name=op.f("ck_database_identity_database_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_database_identity")),
    )
    made = {"id": 1, "database_id": secrets.token_hex(16), "made_at": time.time_ns() // 1000}
    op.bulk_insert(table, [made])
