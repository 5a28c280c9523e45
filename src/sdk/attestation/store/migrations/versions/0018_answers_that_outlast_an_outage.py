"""Keep the keys that answer OCSP, sealed; tell what a list must know from what it should.

A serial number that nobody got asks for a new list, but does not make the one before wrong.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """Add the revision that lists must know, all of it so far; make the table."""
    op.add_column("ca_issuers", sa.Column("demanded", sa.BigInteger(), server_default="0", nullable=False))
    op.execute("UPDATE ca_issuers SET demanded = revision")
    op.create_table(
        "ocsp_delegates",
        sa.Column("issuer_id", sa.Text(), nullable=False),
        sa.Column("certificate", sa.LargeBinary(), nullable=False),
        sa.Column("sealed_key", sa.LargeBinary(), nullable=False),
        sa.Column("made_at", sa.BigInteger(), nullable=False),
        sa.Column("not_after", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["issuer_id"], ["ca_issuers.issuer_id"], name=op.f("fk_ocsp_delegates_issuer_id")
        ),
        sa.PrimaryKeyConstraint("issuer_id", name=op.f("pk_ocsp_delegates")),
        sqlite_with_rowid=False,
    )
