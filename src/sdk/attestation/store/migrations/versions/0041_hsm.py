"""CA keys on tokens of Kubernetes clusters: what they signed, their lists, and the evidence that gave them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0040"


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "hsm_issuers",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("issuer_id", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("certificate", sa.LargeBinary(), nullable=False),
        sa.Column("chain", sa.Text(), nullable=False),
        sa.Column("key_origin", sa.Text(), nullable=False),
        sa.Column("module", sa.Text(), nullable=False),
        sa.Column("token_label", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("spki_sha256", sa.Text(), nullable=False),
        sa.Column("not_before", sa.BigInteger(), nullable=False),
        sa.Column("not_after", sa.BigInteger(), nullable=False),
        sa.Column("registered_at", sa.BigInteger(), nullable=False),
        sa.Column("superseded_at", sa.BigInteger(), nullable=True),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("crl_number", sa.BigInteger(), nullable=False),
        sa.Column("begun_revision", sa.BigInteger(), nullable=True),
        sa.Column("begun_entries", sa.BigInteger(), nullable=True),
        sa.Column("begun_digest", sa.Text(), nullable=True),
        sa.Column("begun_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hsm_issuers")),
        sa.UniqueConstraint("issuer_id", name=op.f("uq_hsm_issuers_issuer_id")),
        sa.UniqueConstraint("cluster_id", "spki_sha256", name=op.f("uq_hsm_issuers_cluster_id_spki_sha256")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_hsm_issuers_cluster_id_uid", "hsm_issuers", ["cluster_id", "uid"])
    op.create_table(
        "hsm_certificates",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("serial", sa.Text(), nullable=False),
        sa.Column("issuer_id", sa.Text(), nullable=False),
        sa.Column("request_uid", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("spki_sha256", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("names", sa.Text(), nullable=False),
        sa.Column("is_ca", sa.Boolean(), nullable=False),
        sa.Column("requester", sa.Text(), nullable=False),
        sa.Column("not_before", sa.BigInteger(), nullable=False),
        sa.Column("not_after", sa.BigInteger(), nullable=False),
        sa.Column("reserved_at", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("issued_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("certificate", sa.LargeBinary(), nullable=True),
        sa.Column("audit_entry_hash", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "state IN ('reserved', 'void') OR certificate IS NOT NULL",
            name=op.f("ck_hsm_certificates_certificate"),
        ),
        sa.CheckConstraint(
            "state IN ('reserved', 'issued', 'revoked', 'void')",
            name=op.f("ck_hsm_certificates_state"),
        ),
        sa.ForeignKeyConstraint(
            ["issuer_id"], ["hsm_issuers.issuer_id"], name=op.f("fk_hsm_certificates_issuer_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hsm_certificates")),
        sa.UniqueConstraint("serial", name=op.f("uq_hsm_certificates_serial")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_hsm_certificates_issuer_id_id", "hsm_certificates", ["issuer_id", "id"])
    op.create_index(
        "ix_hsm_certificates_listed",
        "hsm_certificates",
        ["issuer_id", "serial"],
        sqlite_where=sa.text("state IN ('revoked', 'void')"),
        postgresql_where=sa.text("state IN ('revoked', 'void')"),
    )
    op.create_index("ix_hsm_certificates_not_after", "hsm_certificates", ["not_after"])
    op.create_index(
        "ix_hsm_certificates_reserved",
        "hsm_certificates",
        ["reserved_at"],
        sqlite_where=sa.text("state = 'reserved'"),
        postgresql_where=sa.text("state = 'reserved'"),
    )
    op.create_index(
        "uq_hsm_certificates_request",
        "hsm_certificates",
        ["issuer_id", "request_uid"],
        unique=True,
        sqlite_where=sa.text("state != 'void'"),
        postgresql_where=sa.text("state != 'void'"),
    )
    op.create_table(
        "hsm_crls",
        sa.Column("issuer_id", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("this_update", sa.BigInteger(), nullable=False),
        sa.Column("next_update", sa.BigInteger(), nullable=False),
        sa.Column("crl", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["issuer_id"], ["hsm_issuers.issuer_id"], name=op.f("fk_hsm_crls_issuer_id")),
        sa.PrimaryKeyConstraint("issuer_id", name=op.f("pk_hsm_crls")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "hsm_delegates",
        sa.Column("issuer_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("serial", sa.Text(), nullable=False),
        sa.Column("request", sa.LargeBinary(), nullable=False),
        sa.Column("sealed_key", sa.LargeBinary(), nullable=False),
        sa.Column("certificate", sa.LargeBinary(), nullable=True),
        sa.Column("made_at", sa.BigInteger(), nullable=False),
        sa.Column("not_after", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("state IN ('pending', 'active')", name=op.f("ck_hsm_delegates_state")),
        sa.ForeignKeyConstraint(
            ["issuer_id"], ["hsm_issuers.issuer_id"], name=op.f("fk_hsm_delegates_issuer_id")
        ),
        sa.PrimaryKeyConstraint("issuer_id", "state", name=op.f("pk_hsm_delegates")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "hsm_nonces",
        sa.Column("nonce_sha256", sa.Text(), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("signer_uid", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("issued_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("quote_uid", sa.Text(), nullable=True),
        sa.Column("used_at", sa.BigInteger(), nullable=True),
        sa.Column("used_by", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("nonce_sha256", name=op.f("pk_hsm_nonces")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_hsm_nonces_expires_at", "hsm_nonces", ["expires_at"])
    op.create_table(
        "hsm_quotes",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("content_sha256", sa.Text(), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("signer_uid", sa.Text(), nullable=False),
        sa.Column("evidence_type", sa.Text(), nullable=False),
        sa.Column("nonce_sha256", sa.Text(), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("result", sa.Text(), nullable=False),
        sa.Column("steps", sa.Text(), nullable=False),
        sa.Column("last_step", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hsm_quotes")),
        sa.UniqueConstraint("cluster_id", "uid", name=op.f("uq_hsm_quotes_cluster_id_uid")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_hsm_quotes_received_at", "hsm_quotes", ["received_at"])
