"""Kubernetes certificate requests of nodes: challenges before them, and what was decided of each."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    """Add the tables. The purposes of `challenges` are fixed by a constraint that older code relies on."""
    op.create_table(
        "node_csr_challenges",
        sa.Column("challenge_id", sa.Text(), nullable=False),
        sa.Column("machine_id", sa.Text(), nullable=False),
        sa.Column("ek_fingerprint", sa.Text(), nullable=False),
        sa.Column("nonce", sa.LargeBinary(), nullable=False),
        sa.Column("pcr_selection", sa.Text(), nullable=False),
        sa.Column("event_log", sa.Text(), nullable=False),
        sa.Column("quote", sa.Text(), nullable=False),
        sa.Column("policy_ref", sa.Text(), nullable=False),
        sa.Column("issued_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("used_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("challenge_id", name=op.f("pk_node_csr_challenges")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_node_csr_challenges_expires_at", "node_csr_challenges", ["expires_at"])
    op.create_table(
        "node_csrs",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("result_id", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("csr_uid", sa.Text(), nullable=False),
        sa.Column("csr_name", sa.Text(), nullable=False),
        sa.Column("signer_name", sa.Text(), nullable=False),
        sa.Column("content_sha256", sa.Text(), nullable=False),
        sa.Column("decision", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("tier", sa.BigInteger(), nullable=True),
        sa.Column("machine_id", sa.Text(), nullable=True),
        sa.Column("node_name", sa.Text(), nullable=True),
        sa.Column("assurance", sa.Text(), nullable=True),
        sa.Column("ak_name", sa.LargeBinary(), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("serial", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_node_csrs")),
        sa.UniqueConstraint("result_id", name=op.f("uq_node_csrs_result_id")),
        sa.UniqueConstraint("cluster_id", "csr_uid", name=op.f("uq_node_csrs_cluster_id_csr_uid")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_node_csrs_at", "node_csrs", ["at"])
    op.create_index("ix_node_csrs_machine_id_at", "node_csrs", ["machine_id", "at"])
