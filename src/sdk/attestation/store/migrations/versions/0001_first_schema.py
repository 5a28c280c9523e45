"""The first schema.

Later revisions change it step by step; this one is never edited. There is no way down: to go back, restore a
backup, because an audit log that a command can drop proves nothing.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

# Append-only, by the database itself: whoever finds a way to run SQL through us still cannot rewrite the past.
APPEND_ONLY = {
    "sqlite": (
        """CREATE TRIGGER audit_log_refuses_update BEFORE UPDATE ON audit_log
        BEGIN SELECT RAISE(ABORT, 'audit_log is append-only'); END""",
        """CREATE TRIGGER audit_log_refuses_delete BEFORE DELETE ON audit_log
        BEGIN SELECT RAISE(ABORT, 'audit_log is append-only'); END""",
    ),
    "postgresql": (
        """CREATE FUNCTION audit_log_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'audit_log is append-only' USING ERRCODE = 'integrity_constraint_violation'; END
        $$""",
        """CREATE TRIGGER audit_log_refuses_change BEFORE UPDATE OR DELETE ON audit_log
        FOR EACH ROW EXECUTE FUNCTION audit_log_is_append_only()""",
        """CREATE TRIGGER audit_log_refuses_truncate BEFORE TRUNCATE ON audit_log
        FOR EACH STATEMENT EXECUTE FUNCTION audit_log_is_append_only()""",
    ),
}


def upgrade() -> None:
    """Create everything."""
    op.create_table(
        "allow_list",
        sa.Column("ek_fingerprint", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("hostname", sa.Text(), nullable=True),
        sa.Column("assigned_ip", sa.Text(), nullable=True),
        sa.Column("cluster_id", sa.Text(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "role IN ('controlplane', 'worker-infra', 'worker-app', 'generic', 'windows', 'linux')",
            name=op.f("ck_allow_list_role"),
        ),
        sa.PrimaryKeyConstraint("ek_fingerprint", name=op.f("pk_allow_list")),
    )
    op.create_table(
        "audit_log",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("timestamp", sa.Text(), nullable=False),
        sa.Column("operator_cn", sa.Text(), nullable=False),
        sa.Column("operator_sub", sa.Text(), nullable=True),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("machine_id", sa.Text(), nullable=True),
        sa.Column("prev_state", sa.Text(), nullable=True),
        sa.Column("new_state", sa.Text(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("source_ip", sa.Text(), nullable=True),
        sa.Column("format", sa.BigInteger(), nullable=False),
        sa.Column("prev_hash", sa.Text(), nullable=False),
        sa.Column("entry_hash", sa.Text(), nullable=False),
        sa.CheckConstraint("length(entry_hash) = 64", name=op.f("ck_audit_log_entry_hash")),
        sa.CheckConstraint("length(prev_hash) = 64", name=op.f("ck_audit_log_prev_hash")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_log")),
        sa.UniqueConstraint("entry_hash", name=op.f("uq_audit_log_entry_hash")),
        sa.UniqueConstraint("prev_hash", name=op.f("uq_audit_log_prev_hash")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_audit_log_action_id", "audit_log", ["action", "id"])
    op.create_index("ix_audit_log_machine_id_id", "audit_log", ["machine_id", "id"])
    op.create_index("ix_audit_log_operator_cn_id", "audit_log", ["operator_cn", "id"])
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
        sa.CheckConstraint("purpose IN ('activate', 'attest')", name=op.f("ck_challenges_purpose")),
        sa.PrimaryKeyConstraint("challenge_id", name=op.f("pk_challenges")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_challenges_expires_at", "challenges", ["expires_at"])
    op.create_table(
        "machines",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("machine_id", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=True),
        sa.Column("cluster_id", sa.Text(), nullable=False),
        sa.Column("ek_fingerprint", sa.Text(), nullable=False),
        sa.Column("ek_public", sa.LargeBinary(), nullable=False),
        sa.Column("ek_source", sa.Text(), nullable=False),
        sa.Column("ek_template", sa.Text(), nullable=False),
        sa.Column("ek_certificate_subject", sa.Text(), nullable=True),
        sa.Column("ek_certificate_manufacturer", sa.Text(), nullable=True),
        sa.Column("ek_certificate_model", sa.Text(), nullable=True),
        sa.Column("ek_certificate_firmware", sa.Text(), nullable=True),
        sa.Column("ek_certificate_sha256", sa.Text(), nullable=True),
        sa.Column("assurance", sa.Text(), nullable=False),
        sa.Column("ek_chain_ok", sa.Boolean(), nullable=False),
        sa.Column("ek_allow_listed", sa.Boolean(), nullable=False),
        sa.Column("hw_uuid", sa.Text(), nullable=False),
        sa.Column("hw_mac", sa.Text(), nullable=False),
        sa.Column("hw_serial", sa.Text(), nullable=False),
        sa.Column("hw_product", sa.Text(), nullable=False),
        sa.Column("desired_role", sa.Text(), nullable=True),
        sa.Column("hostname", sa.Text(), nullable=True),
        sa.Column("assigned_ip", sa.Text(), nullable=True),
        sa.Column("registered_from", sa.Text(), nullable=True),
        sa.Column("registered_at", sa.BigInteger(), nullable=False),
        sa.Column("attested_at", sa.BigInteger(), nullable=True),
        sa.Column("locked_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.Column("rejected_at", sa.BigInteger(), nullable=True),
        sa.Column("wipe_pending", sa.Boolean(), nullable=False),
        sa.Column("wiped_at", sa.BigInteger(), nullable=True),
        sa.Column("redeliver", sa.Boolean(), nullable=False),
        sa.Column("ak_public", sa.LargeBinary(), nullable=True),
        sa.Column("ak_name", sa.LargeBinary(), nullable=True),
        sa.Column("ak_activated_at", sa.BigInteger(), nullable=True),
        sa.Column("clock_ms", sa.BigInteger(), nullable=True),
        sa.Column("reset_count", sa.BigInteger(), nullable=True),
        sa.Column("restart_count", sa.BigInteger(), nullable=True),
        sa.Column("clock_safe", sa.Boolean(), nullable=True),
        sa.Column("firmware_version", sa.BigInteger(), nullable=True),
        sa.Column("last_verdict", sa.Text(), nullable=True),
        sa.Column("last_result_at", sa.BigInteger(), nullable=True),
        sa.Column("last_policy", sa.Text(), nullable=True),
        sa.Column("last_failed", sa.Text(), nullable=True),
        sa.Column("last_result_key", sa.Text(), nullable=True),
        sa.Column("trust_expires_at", sa.BigInteger(), nullable=True),
        sa.Column("directive_sha256", sa.LargeBinary(), nullable=True),
        sa.Column("search", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "assurance IN ('ek-allowlist', 'ek-chain', 'ak-certified', 'tofu', 'none')",
            name=op.f("ck_machines_assurance"),
        ),
        sa.CheckConstraint(
            "desired_role IN ('controlplane', 'worker-infra', 'worker-app', 'generic', 'windows', 'linux')",
            name=op.f("ck_machines_desired_role"),
        ),
        sa.CheckConstraint(
            "last_verdict IN ('Verified', 'Failed', 'Indeterminate')", name=op.f("ck_machines_last_verdict")
        ),
        sa.CheckConstraint(
            "role IN ('controlplane', 'worker-infra', 'worker-app', 'generic', 'windows', 'linux')",
            name=op.f("ck_machines_role"),
        ),
        sa.CheckConstraint(
            "status IN ('pending_approval', 'registered', 'attested', 'rejected', 'locked', 'revoked')",
            name=op.f("ck_machines_status"),
        ),
        sa.CheckConstraint("version >= 1", name=op.f("ck_machines_version")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_machines")),
        sa.UniqueConstraint("ek_fingerprint", name=op.f("uq_machines_ek_fingerprint")),
        sa.UniqueConstraint("machine_id", name=op.f("uq_machines_machine_id")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_machines_cluster_id_id", "machines", ["cluster_id", "id"])
    op.create_index(
        "ix_machines_id_search_machine_id_ek_fingerprint",
        "machines",
        ["id", "search", "machine_id", "ek_fingerprint"],
    )
    op.create_index("ix_machines_role_id", "machines", ["role", "id"])
    op.create_index("ix_machines_status_id", "machines", ["status", "id"])
    op.create_index("ix_machines_status_registered_from", "machines", ["status", "registered_from"])
    op.create_table(
        "outbox",
        sa.Column("sequence", SERIAL, autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("machine_id", sa.Text(), nullable=True),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("next_attempt_at", sa.BigInteger(), nullable=True),
        sa.Column("done_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_outbox")),
        sa.UniqueConstraint("id", name=op.f("uq_outbox_id")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_outbox_done_at_next_attempt_at", "outbox", ["done_at", "next_attempt_at"])
    op.create_index("ix_outbox_machine_id_done_at_sequence", "outbox", ["machine_id", "done_at", "sequence"])
    op.create_table(
        "policies",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.CheckConstraint("version >= 1", name=op.f("ck_policies_version")),
        sa.PrimaryKeyConstraint("name", "version", name=op.f("pk_policies")),
    )
    op.create_table(
        "rate_limits",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("tat_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_rate_limits")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_rate_limits_tat_us", "rate_limits", ["tat_us"])
    op.create_table(
        "registration_tokens",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("token_id", sa.Text(), nullable=False),
        sa.Column("token_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("hostname", sa.Text(), nullable=True),
        sa.Column("assigned_ip", sa.Text(), nullable=True),
        sa.Column("cluster_id", sa.Text(), nullable=True),
        sa.Column("uses", sa.BigInteger(), nullable=False),
        sa.Column("uses_left", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "role IN ('controlplane', 'worker-infra', 'worker-app', 'generic', 'windows', 'linux')",
            name=op.f("ck_registration_tokens_role"),
        ),
        sa.CheckConstraint("length(token_sha256) = 32", name=op.f("ck_registration_tokens_token_sha256")),
        sa.CheckConstraint("uses_left BETWEEN 0 AND uses", name=op.f("ck_registration_tokens_uses_left")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_registration_tokens")),
        sa.UniqueConstraint("token_id", name=op.f("uq_registration_tokens_token_id")),
        sa.UniqueConstraint("token_sha256", name=op.f("uq_registration_tokens_token_sha256")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "attestation_results",
        sa.Column("id", SERIAL, autoincrement=True, nullable=False),
        sa.Column("machine_id", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=True),
        sa.Column("boot_state_appraised", sa.Boolean(), nullable=False),
        sa.Column("pcr_digest", sa.Text(), nullable=True),
        sa.Column("outcomes", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "verdict IN ('Verified', 'Failed', 'Indeterminate')", name=op.f("ck_attestation_results_verdict")
        ),
        sa.ForeignKeyConstraint(
            ["machine_id"],
            ["machines.machine_id"],
            name=op.f("fk_attestation_results_machine_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attestation_results")),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_attestation_results_machine_id_id", "attestation_results", ["machine_id", "id"])
    op.create_table(
        "config_tokens",
        sa.Column("token_id", sa.Text(), nullable=False),
        sa.Column("token_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("machine_id", sa.Text(), nullable=False),
        sa.Column("ak_name", sa.LargeBinary(), nullable=False),
        sa.Column("issued_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("used_at", sa.BigInteger(), nullable=True),
        sa.Column("answer", sa.LargeBinary(), nullable=True),
        sa.Column("answer_until", sa.BigInteger(), nullable=True),
        sa.Column("withdrawn_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("length(token_sha256) = 32", name=op.f("ck_config_tokens_token_sha256")),
        sa.ForeignKeyConstraint(
            ["machine_id"],
            ["machines.machine_id"],
            name=op.f("fk_config_tokens_machine_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("token_id", name=op.f("pk_config_tokens")),
        sa.UniqueConstraint("token_sha256", name=op.f("uq_config_tokens_token_sha256")),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_config_tokens_answer_until", "config_tokens", ["answer_until"])
    op.create_index("ix_config_tokens_expires_at", "config_tokens", ["expires_at"])
    op.create_index("ix_config_tokens_machine_id", "config_tokens", ["machine_id"])
    op.create_table(
        "policy_assignments",
        sa.Column("scope", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("policy_name", sa.Text(), nullable=False),
        sa.Column("policy_version", sa.BigInteger(), nullable=False),
        sa.Column("assigned_at", sa.BigInteger(), nullable=False),
        sa.Column("assigned_by", sa.Text(), nullable=False),
        sa.CheckConstraint("(scope = 'fleet') = (subject = '*')", name=op.f("ck_policy_assignments_subject")),
        sa.CheckConstraint(
            "scope IN ('fleet', 'cluster', 'role', 'machine')", name=op.f("ck_policy_assignments_scope")
        ),
        sa.ForeignKeyConstraint(
            ["policy_name", "policy_version"],
            ["policies.name", "policies.version"],
            name=op.f("fk_policy_assignments_policy_name_policy_version"),
        ),
        sa.PrimaryKeyConstraint("scope", "subject", name=op.f("pk_policy_assignments")),
    )
    for statement in APPEND_ONLY[op.get_context().dialect.name]:
        op.execute(statement)
