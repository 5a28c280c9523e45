"""EK certificates and who vouches for them, measurement logs, evidence beside results, history of policies."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
LEASED = sa.text("status = 'attested' AND last_verdict = 'Verified' AND heartbeat_missed_at IS NULL")


def upgrade() -> None:
    """Add what was not known of machines, results and challenges before as NULL, and the new tables empty."""
    _columns()
    _tables()
    _history()


def _columns() -> None:
    for column in (
        sa.Column("event_log_sha256", sa.Text(), nullable=True),
        sa.Column("heartbeat_missed_at", sa.BigInteger(), nullable=True),
        sa.Column("firmware_attested", sa.BigInteger(), nullable=True),
        sa.Column("firmware_blocked", sa.Text(), nullable=True),
    ):
        op.add_column("machines", column)
    op.create_index(
        "ix_machines_trust_expires_at",
        "machines",
        ["trust_expires_at"],
        sqlite_where=LEASED,
        postgresql_where=LEASED,
    )
    for column in (
        sa.Column("event_log", sa.Text(), nullable=True),
        sa.Column("evidence", sa.Text(), nullable=True),
        sa.Column("ek_challenge", sa.LargeBinary(), nullable=True),
    ):
        op.add_column("challenges", column)
    for column in (
        sa.Column("pcr_bank", sa.Text(), nullable=True),
        sa.Column("pcr_values", sa.Text(), nullable=True),
        sa.Column("event_log_sha256", sa.Text(), nullable=True),
        sa.Column("ima_log_sha256", sa.Text(), nullable=True),
        sa.Column("policy_sha256", sa.Text(), nullable=True),
        sa.Column("assurance", sa.Text(), nullable=True),
        sa.Column("bundle_sha256", sa.Text(), nullable=True),
        sa.Column("nonce", sa.LargeBinary(), nullable=True),
        sa.Column("ek_key_attested", sa.Boolean(), nullable=True),
    ):
        op.add_column("attestation_results", column)
    op.create_index("ix_attestation_results_event_log_sha256", "attestation_results", ["event_log_sha256"])


def _tables() -> None:
    op.create_table(
        "ek_certificates",
        sa.Column("machine_id", sa.Text(), nullable=False),
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
            name=op.f("fk_ek_certificates_machine_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("machine_id", name=op.f("pk_ek_certificates")),
    )
    op.create_index("ix_ek_certificates_anchor_sha256", "ek_certificates", ["anchor_sha256"])
    op.create_index("ix_ek_certificates_bundle_sha256", "ek_certificates", ["bundle_sha256"])
    op.create_table(
        "trust_certificates",
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("certificate", sa.LargeBinary(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("vendor", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("added_at", sa.BigInteger(), nullable=False),
        sa.Column("added_by", sa.Text(), nullable=False),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        sa.Column("changed_by", sa.Text(), nullable=False),
        sa.CheckConstraint("length(sha256) = 64", name=op.f("ck_trust_certificates_sha256")),
        sa.CheckConstraint("role IN ('anchor', 'intermediate')", name=op.f("ck_trust_certificates_role")),
        sa.CheckConstraint("status IN ('active', 'distrusted')", name=op.f("ck_trust_certificates_status")),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_trust_certificates")),
    )
    op.create_table(
        "measurement_logs",
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("first_seen_at", sa.BigInteger(), nullable=False),
        sa.Column("last_used_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("length(sha256) = 64", name=op.f("ck_measurement_logs_sha256")),
        sa.CheckConstraint("kind IN ('tcg', 'ima')", name=op.f("ck_measurement_logs_kind")),
        sa.PrimaryKeyConstraint("sha256", name=op.f("pk_measurement_logs")),
    )
    op.create_index("ix_measurement_logs_last_used_at", "measurement_logs", ["last_used_at"])
    op.create_table(
        "policy_history",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("policy_name", sa.Text(), nullable=True),
        sa.Column("policy_version", sa.BigInteger(), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "scope IN ('fleet', 'cluster', 'role', 'machine')", name=op.f("ck_policy_history_scope")
        ),
        sa.CheckConstraint(
            "(policy_name IS NULL) = (policy_version IS NULL)", name=op.f("ck_policy_history_policy")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_policy_history")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_policy_history_scope_subject_id", "policy_history", ["scope", "subject", "id"])


def _history() -> None:
    """Let the history begin with what applies now."""
    op.execute(
        "INSERT INTO policy_history (scope, subject, policy_name, policy_version, at, by) "
        "SELECT scope, subject, policy_name, policy_version, assigned_at, assigned_by "
        "FROM policy_assignments ORDER BY assigned_at"
    )
