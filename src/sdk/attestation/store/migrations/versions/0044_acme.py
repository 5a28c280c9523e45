"""ACME: keys for external accounts, accounts, orders, and nonces that were used."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "acme_keys",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("machine_id", sa.Text(), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("account_id", sa.Text(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_acme_keys")),
        sa.UniqueConstraint("key_id", name=op.f("uq_acme_keys_key_id")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_acme_keys_expires_at", "acme_keys", ["expires_at"])
    op.create_table(
        "acme_accounts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("thumbprint", sa.Text(), nullable=False),
        sa.Column("jwk", sa.Text(), nullable=False),
        sa.Column("contact", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=True),
        sa.Column("machine_id", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "status IN ('valid', 'deactivated', 'revoked')", name=op.f("ck_acme_accounts_status")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_acme_accounts")),
        sa.UniqueConstraint("account_id", name=op.f("uq_acme_accounts_account_id")),
        sa.UniqueConstraint("thumbprint", name=op.f("uq_acme_accounts_thumbprint")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_acme_accounts_ended_at", "acme_accounts", ["ended_at"])
    op.create_table(
        "acme_orders",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("order_id", sa.Text(), nullable=False),
        sa.Column("account_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("machine_id", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("token", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("thumbprint", sa.Text(), nullable=True),
        sa.Column("spki", sa.LargeBinary(), nullable=True),
        sa.Column("ak_name", sa.LargeBinary(), nullable=True),
        sa.Column("boot", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("validated_at", sa.BigInteger(), nullable=True),
        sa.Column("serials", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "status IN ('pending', 'ready', 'valid', 'invalid')", name=op.f("ck_acme_orders_status")
        ),
        sa.ForeignKeyConstraint(
            ["account_id"], ["acme_accounts.account_id"], name=op.f("fk_acme_orders_account_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_acme_orders")),
        sa.UniqueConstraint("order_id", name=op.f("uq_acme_orders_order_id")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_acme_orders_account_id_id", "acme_orders", ["account_id", "id"])
    op.create_index("ix_acme_orders_expires_at", "acme_orders", ["expires_at"])
    op.create_table(
        "acme_nonces",
        sa.Column("nonce", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("nonce", name=op.f("pk_acme_nonces")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_acme_nonces_expires_at", "acme_nonces", ["expires_at"])
