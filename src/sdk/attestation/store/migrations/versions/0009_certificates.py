"""Keep the CA keys, the issuance log and the revocation lists; challenges for certificates."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the tables; nothing was issued before."""
    op.create_table(
        "ca_issuers",
        sa.Column("issuer_id", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("algorithm", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("key_uri", sa.Text(), nullable=False),
        sa.Column("key_origin", sa.Text(), nullable=True),
        sa.Column("spki_sha256", sa.Text(), nullable=True),
        sa.Column("certificate", sa.LargeBinary(), nullable=True),
        sa.Column("cross_certificates", sa.Text(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("crl_number", sa.BigInteger(), nullable=False),
        sa.Column("lease_owner", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.BigInteger(), nullable=True),
        sa.Column("reserved_at", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=True),
        sa.Column("activated_at", sa.BigInteger(), nullable=True),
        sa.Column("retiring_at", sa.BigInteger(), nullable=True),
        sa.Column("retired_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("purpose IN ('machine', 'operator')", name=op.f("ck_ca_issuers_purpose")),
        sa.CheckConstraint(
            "algorithm IN ('ecdsa-p384', 'rsa-4096', 'ml-dsa-87')", name=op.f("ck_ca_issuers_algorithm")
        ),
        sa.CheckConstraint(
            "state IN ('reserved', 'next', 'active', 'retiring', 'retired', 'abandoned')",
            name=op.f("ck_ca_issuers_state"),
        ),
        sa.CheckConstraint(
            "state IN ('reserved', 'abandoned') OR certificate IS NOT NULL",
            name=op.f("ck_ca_issuers_certificate"),
        ),
        sa.PrimaryKeyConstraint("issuer_id", name=op.f("pk_ca_issuers")),
    )
    for name, which in (("active", "state = 'active'"), ("coming", "state IN ('reserved', 'next')")):
        op.create_index(
            f"uq_ca_issuers_{name}",
            "ca_issuers",
            ["purpose", "algorithm"],
            unique=True,
            sqlite_where=sa.text(which),
            postgresql_where=sa.text(which),
        )
    op.create_table(
        "certificates",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("serial", sa.Text(), nullable=False),
        sa.Column("issuer_id", sa.Text(), nullable=False),
        sa.Column("profile", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("machine_id", sa.Text(), nullable=True),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("spki_sha256", sa.Text(), nullable=False),
        sa.Column("requester", sa.Text(), nullable=False),
        sa.Column("key_tier", sa.BigInteger(), nullable=True),
        sa.Column("assurance", sa.Text(), nullable=True),
        sa.Column("renews", sa.Text(), nullable=True),
        sa.Column("not_before", sa.BigInteger(), nullable=False),
        sa.Column("not_after", sa.BigInteger(), nullable=False),
        sa.Column("reserved_at", sa.BigInteger(), nullable=False),
        sa.Column("issued_at", sa.BigInteger(), nullable=True),
        sa.Column("certificate", sa.LargeBinary(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.CheckConstraint("length(serial) = 40", name=op.f("ck_certificates_serial")),
        sa.CheckConstraint(
            "state IN ('reserved', 'issued', 'held', 'revoked', 'void')", name=op.f("ck_certificates_state")
        ),
        sa.CheckConstraint(
            "state IN ('reserved', 'void') OR certificate IS NOT NULL",
            name=op.f("ck_certificates_certificate"),
        ),
        sa.ForeignKeyConstraint(
            ["issuer_id"], ["ca_issuers.issuer_id"], name=op.f("fk_certificates_issuer_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_certificates")),
        sa.UniqueConstraint("serial", name=op.f("uq_certificates_serial")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_certificates_machine_id_id", "certificates", ["machine_id", "id"])
    op.create_index("ix_certificates_issuer_id_id", "certificates", ["issuer_id", "id"])
    op.create_index("ix_certificates_not_after", "certificates", ["not_after"])
    for name, columns, which in (
        ("reserved", ["reserved_at"], "state = 'reserved'"),
        ("listed", ["issuer_id", "not_after"], "state IN ('held', 'revoked', 'void')"),
    ):
        op.create_index(
            f"ix_certificates_{name}",
            "certificates",
            columns,
            sqlite_where=sa.text(which),
            postgresql_where=sa.text(which),
        )
    op.create_table(
        "ca_crls",
        sa.Column("issuer_id", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("this_update", sa.BigInteger(), nullable=False),
        sa.Column("next_update", sa.BigInteger(), nullable=False),
        sa.Column("crl", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["issuer_id"], ["ca_issuers.issuer_id"], name=op.f("fk_ca_crls_issuer_id")),
        sa.PrimaryKeyConstraint("issuer_id", name=op.f("pk_ca_crls")),
        sqlite_with_rowid=False,
    )
    # A CHECK cannot be changed in place on SQLite. The rows live for a minute, but a machine may be waiting on one.
    op.execute("CREATE TABLE challenges_before AS SELECT * FROM challenges")
    op.drop_index("ix_challenges_expires_at", "challenges")
    op.drop_table("challenges")
    op.create_table(
        "challenges",
        sa.Column("challenge_id", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("machine_id", sa.Text(), nullable=False),
        sa.Column("ek_fingerprint", sa.Text(), nullable=False),
        sa.Column("nonce", sa.LargeBinary(), nullable=True),
        sa.Column("proof_sha256", sa.LargeBinary(), nullable=True),
        sa.Column("pcr_selection", sa.Text(), nullable=True),
        sa.Column("policy_ref", sa.Text(), nullable=True),
        sa.Column("payload", sa.Text(), nullable=True),
        sa.Column("issued_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("used_at", sa.BigInteger(), nullable=True),
        sa.Column("event_log", sa.Text(), nullable=True),
        sa.Column("evidence", sa.Text(), nullable=True),
        sa.Column("ek_challenge", sa.LargeBinary(), nullable=True),
        sa.CheckConstraint(
            "purpose IN ('activate', 'attest', 'certify', 'enroll')", name=op.f("ck_challenges_purpose")
        ),
        sa.PrimaryKeyConstraint("challenge_id", name=op.f("pk_challenges")),
        sqlite_with_rowid=False,
    )
    op.execute("INSERT INTO challenges SELECT * FROM challenges_before")
    op.drop_table("challenges_before")
    op.create_index("ix_challenges_expires_at", "challenges", ["expires_at"])
