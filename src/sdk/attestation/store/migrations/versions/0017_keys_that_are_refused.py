"""Keys that never get a certificate again; those of certificates that were revoked as compromised are the first."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    """Add the table, and what earlier revocations said of keys."""
    op.create_table(
        "refused_keys",
        sa.Column("spki_sha256", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("added_at", sa.BigInteger(), nullable=False),
        sa.Column("added_by", sa.Text(), nullable=False),
        sa.CheckConstraint("length(spki_sha256) = 64", name=op.f("ck_refused_keys_spki_sha256")),
        sa.PrimaryKeyConstraint("spki_sha256", name=op.f("pk_refused_keys")),
    )
    op.execute(
        "INSERT INTO refused_keys (spki_sha256, why, added_at, added_by) "
        "SELECT spki_sha256, 'keyCompromise of certificate ' || MIN(serial), MIN(ended_at), 'service' "
        "FROM certificates WHERE reason = 'keyCompromise' AND ended_at IS NOT NULL GROUP BY spki_sha256"
    )
