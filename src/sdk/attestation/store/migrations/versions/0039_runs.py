"""Attestation runs of Kubernetes nodes, their attempts, and the evidence that they were judged from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "runs",
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("run_uid", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("node_name", sa.Text(), nullable=False),
        sa.Column("node_uid", sa.Text(), nullable=False),
        sa.Column("backend", sa.Text(), nullable=False),
        sa.Column("nonce", sa.Text(), nullable=True),
        sa.Column("policy", sa.Text(), nullable=True),
        sa.Column("policy_source", sa.Text(), nullable=False),
        sa.Column("policy_name", sa.Text(), nullable=True),
        sa.Column("policy_id", sa.Text(), nullable=False),
        sa.Column("content_sha256", sa.Text(), nullable=False),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("deadline", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_runs")),
        sa.UniqueConstraint("cluster_id", "run_uid", name=op.f("uq_runs_cluster_id_run_uid")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_runs_deadline", "runs", ["deadline"])
    op.create_table(
        "run_attempts",
        sa.Column("challenge_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("random", sa.LargeBinary(), nullable=False),
        sa.Column("issued_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("used_at", sa.BigInteger(), nullable=True),
        sa.Column("verdict", sa.Text(), nullable=True),
        sa.Column("machine_id", sa.Text(), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("challenge_id", name=op.f("pk_run_attempts")),
        sa.UniqueConstraint("run_id", "attempt", name=op.f("uq_run_attempts_run_id_attempt")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "run_blobs",
        sa.Column("challenge_id", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("media_type", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("challenge_id", "position", name=op.f("pk_run_blobs")),
    )
    op.create_index("ix_run_blobs_run_id", "run_blobs", ["run_id"])
