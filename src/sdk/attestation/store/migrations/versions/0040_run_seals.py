"""Seals of attestation runs: what was signed, where it stands in the log, and where it is archived."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0040"
down_revision = "0039"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "run_seals",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("run_uid", sa.Text(), nullable=False),
        sa.Column("bundle_uid", sa.Text(), nullable=False),
        sa.Column("challenge_id", sa.Text(), nullable=False),
        sa.Column("content_sha256", sa.Text(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("asked_by", sa.Text(), nullable=False),
        sa.Column("asked_sub", sa.Text(), nullable=True),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("statement", sa.LargeBinary(), nullable=True),
        sa.Column("signature", sa.LargeBinary(), nullable=True),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("signed_at", sa.BigInteger(), nullable=True),
        sa.Column("entry", sa.LargeBinary(), nullable=True),
        sa.Column("entry_index", sa.BigInteger(), nullable=True),
        sa.Column("log", sa.Text(), nullable=True),
        sa.Column("archive", sa.Text(), nullable=True),
        sa.Column("sealed_at", sa.BigInteger(), nullable=True),
        sa.Column("failures", sa.Text(), nullable=False),
        sa.Column("tries", sa.BigInteger(), nullable=False),
        sa.Column("next_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_run_seals")),
        sa.UniqueConstraint("cluster_id", "bundle_uid", name=op.f("uq_run_seals_cluster_id_bundle_uid")),
    )
    op.create_index("ix_run_seals_run_uid", "run_seals", ["run_uid"])
    op.create_index("ix_run_seals_next_at", "run_seals", ["next_at"])
