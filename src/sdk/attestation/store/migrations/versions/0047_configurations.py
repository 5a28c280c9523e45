"""Base configurations and machines' patches: encrypted versions, and which of them are delivered."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0047"
down_revision = "0046"


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "configurations",
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("machine_id", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("talos_version", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("kek_id", sa.Text(), nullable=False),
        sa.Column("wrapped", sa.LargeBinary(), nullable=False),
        sa.Column("blob", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("version >= 1", name=op.f("ck_configurations_version")),
        sa.CheckConstraint(
            "(machine_id = '') = (cluster_id != '' AND role != '')", name=op.f("ck_configurations_place")
        ),
        sa.CheckConstraint("(cluster_id = '') = (role = '')", name=op.f("ck_configurations_base")),
        sa.PrimaryKeyConstraint(
            "cluster_id", "role", "machine_id", "version", name=op.f("pk_configurations")
        ),
    )
    op.create_table(
        "active_configurations",
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("machine_id", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("previous", sa.BigInteger(), nullable=True),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("activated_at", sa.BigInteger(), nullable=False),
        sa.Column("activated_by", sa.Text(), nullable=False),
        sa.Column("agreed", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("mark", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["cluster_id", "role", "machine_id", "version"],
            [
                "configurations.cluster_id",
                "configurations.role",
                "configurations.machine_id",
                "configurations.version",
            ],
            name=op.f("fk_active_configurations_cluster_id_role_machine_id_version"),
        ),
        sa.PrimaryKeyConstraint("cluster_id", "role", "machine_id", name=op.f("pk_active_configurations")),
    )
