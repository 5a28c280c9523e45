"""A nonce of evidence says what was asked with it; what a controller did not finish is counted by an index."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0043"
down_revision = "0042"


def upgrade() -> None:
    """Add columns and indexes. A nonce of before asks for no type of evidence: nothing is proved with it any more."""
    op.add_column("hsm_nonces", sa.Column("evidence_type", sa.Text(), server_default="", nullable=False))
    op.add_column("hsm_nonces", sa.Column("policy_ref", sa.Text(), nullable=True))
    op.add_column("hsm_nonces", sa.Column("ak_name", sa.LargeBinary(), nullable=True))
    op.create_index("ix_hsm_nonces_cluster_id_expires_at", "hsm_nonces", ["cluster_id", "expires_at"])
    op.create_index("ix_hsm_quotes_expires_at", "hsm_quotes", ["expires_at"])
    op.create_index(
        "ix_hsm_certificates_unfinished",
        "hsm_certificates",
        ["issuer_id", "state", "not_after"],
        sqlite_where=sa.text("state IN ('reserved', 'void')"),
        postgresql_where=sa.text("state IN ('reserved', 'void')"),
    )
