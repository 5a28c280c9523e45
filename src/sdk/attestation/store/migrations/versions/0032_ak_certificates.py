"""Certificates that vouch for the attestation keys of machines."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"


def upgrade() -> None:
    """Add the table. One certified key vouches for one machine."""
    op.create_table(
        "ak_certificates",
        sa.Column("machine_id", sa.Text(), nullable=False),
        sa.Column("ak_name", sa.LargeBinary(), nullable=False),
        sa.Column("spki_sha256", sa.Text(), nullable=False),
        sa.Column("certificate", sa.LargeBinary(), nullable=False),
        sa.Column("chain", sa.Text(), nullable=False),
        sa.Column("ok", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("vendor", sa.Text(), nullable=True),
        sa.Column("anchor_sha256", sa.Text(), nullable=True),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("revocation", sa.Text(), nullable=False),
        sa.Column("bundle_sha256", sa.Text(), nullable=True),
        sa.Column("judged_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["machine_id"],
            ["machines.machine_id"],
            name=op.f("fk_ak_certificates_machine_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("machine_id", name=op.f("pk_ak_certificates")),
        sa.UniqueConstraint("spki_sha256", name=op.f("uq_ak_certificates_spki_sha256")),
    )
    op.create_index("ix_ak_certificates_bundle_sha256", "ak_certificates", ["bundle_sha256"])
