"""The first schema: what revisions 0001 to 0009 made in six steps before anything was released (ADR 88).

Later revisions change it step by step; this one is never edited. There is no way down: to go back, restore a
backup, because an audit log that a command can drop proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = None

TYPES = {
    "": sa.Text(),
    "int": sa.BigInteger(),
    "bytes": sa.LargeBinary(),
    "bool": sa.Boolean(),
    "serial": sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
}
ROLE = "role IN ('controlplane', 'worker-infra', 'worker-app', 'generic', 'windows', 'linux')"
VERDICT = "verdict IN ('Verified', 'Failed', 'Indeterminate')"
SCOPE = "scope IN ('fleet', 'cluster', 'role', 'machine')"
NUMBERED = {"sqlite_autoincrement": True}
BY_KEY = {"sqlite_with_rowid": False}

SCHEMA = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    }
)


def _columns(words: str) -> Iterator[sa.Column]:
    """Yield a column for each word: `*` part of the key, name, `!` unique, `?` may be null, `:` type if not text."""
    for word in words.split():
        name, _, kind = word.strip("*!?").partition(":")
        yield sa.Column(
            name,
            TYPES[kind],
            primary_key=word[0] == "*",
            unique=word[-1] == "!" or None,
            nullable=word[-1] == "?",
            autoincrement=kind == "serial",
        )


def _table(name: str, columns: str, *rules: sa.schema.SchemaItem, **options: bool) -> None:
    sa.Table(name, SCHEMA, *_columns(columns), *rules, **options)


def _index(
    *columns: str, name: str | None = None, unique: bool = False, where: str | None = None
) -> sa.Index:
    which = {} if where is None else {"sqlite_where": sa.text(where), "postgresql_where": sa.text(where)}
    return sa.Index(name, *columns, unique=unique, **which)


def _check(name: str, rule: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(rule, name=name)


def _of_machine() -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["machine_id"], ["machines.machine_id"], ondelete="CASCADE")


def _of(column: str, table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [f"{table}.{column}"])


# ---------------------------------------------------------------- machines

_table(
    "machines",
    "*id:serial machine_id! version:int status role? cluster_id ek_fingerprint! ek_public:bytes ek_source ek_template "
    "ek_certificate_subject? ek_certificate_manufacturer? ek_certificate_model? ek_certificate_firmware? "
    "ek_certificate_sha256? assurance ek_chain_ok:bool ek_allow_listed:bool hw_uuid hw_mac hw_serial hw_product "
    "desired_role? hostname? assigned_ip? registered_from? registered_at:int attested_at:int? locked_at:int? "
    "revoked_at:int? rejected_at:int? wipe_pending:bool wiped_at:int? redeliver:bool ak_public:bytes? ak_name:bytes? "
    "ak_activated_at:int? clock_ms:int? reset_count:int? restart_count:int? clock_safe:bool? firmware_version:int? "
    "last_verdict? last_result_at:int? last_policy? last_failed? last_result_key? trust_expires_at:int? "
    "directive_sha256:bytes? search event_log_sha256? heartbeat_missed_at:int? firmware_attested:int? "
    "firmware_blocked?",
    _check("assurance", "assurance IN ('ek-allowlist', 'ek-chain', 'ak-certified', 'tofu', 'none')"),
    _check("desired_role", f"desired_{ROLE}"),
    _check("last_verdict", f"last_{VERDICT}"),
    _check("role", ROLE),
    _check(
        "status", "status IN ('pending_approval', 'registered', 'attested', 'rejected', 'locked', 'revoked')"
    ),
    _check("version", "version >= 1"),
    _index("cluster_id", "id"),
    _index("id", "search", "machine_id", "ek_fingerprint"),
    _index("role", "id"),
    _index("status", "id"),
    _index("status", "registered_from"),
    _index(
        "trust_expires_at",
        where="status = 'attested' AND last_verdict = 'Verified' AND heartbeat_missed_at IS NULL",
    ),
    _index("event_log_sha256", where="event_log_sha256 IS NOT NULL"),
    **NUMBERED,
)
_table(
    "ek_certificates",
    "*machine_id certificate:bytes chain ok:bool reason vendor? anchor_sha256? path revocation bundle_sha256? "
    "judged_at:int",
    _of_machine(),
    _index("anchor_sha256"),
    _index("bundle_sha256"),
)
_table(
    "attestation_results",
    "*id:serial machine_id at:int verdict policy? boot_state_appraised:bool pcr_digest? outcomes pcr_bank? pcr_values? "
    "event_log_sha256? ima_log_sha256? policy_sha256? assurance? bundle_sha256? nonce:bytes? ek_key_attested:bool?",
    _check("verdict", VERDICT),
    _of_machine(),
    _index("machine_id", "id"),
    _index("event_log_sha256"),
    _index("ima_log_sha256", where="ima_log_sha256 IS NOT NULL"),
    **NUMBERED,
)
_table(
    "measurement_logs",
    "*sha256 kind size_bytes:int content:bytes first_seen_at:int last_used_at:int",
    _check("sha256", "length(sha256) = 64"),
    _check("kind", "kind IN ('tcg', 'ima')"),
    _index("last_used_at"),
)
_table(
    "challenges",
    "*challenge_id purpose machine_id ek_fingerprint nonce:bytes? proof_sha256:bytes? pcr_selection? policy_ref? "
    "payload? issued_at:int expires_at:int used_at:int? event_log? evidence? ek_challenge:bytes?",
    _check("purpose", "purpose IN ('activate', 'attest', 'certify', 'enroll')"),
    _index("expires_at"),
    **BY_KEY,
)

# ---------------------------------------------------------------- what operators decide

_table(
    "allow_list",
    "*ek_fingerprint role hostname? assigned_ip? cluster_id? note? created_at:int created_by",
    _check("role", ROLE),
)
_table(
    "registration_tokens",
    "*id:serial token_id! token_sha256:bytes! role hostname? assigned_ip? cluster_id? uses:int uses_left:int "
    "created_at:int created_by expires_at:int revoked_at:int?",
    _check("role", ROLE),
    _check("token_sha256", "length(token_sha256) = 32"),
    _check("uses_left", "uses_left BETWEEN 0 AND uses"),
    **NUMBERED,
)
_table(
    "config_tokens",
    "*token_id token_sha256:bytes! machine_id ak_name:bytes issued_at:int expires_at:int used_at:int? answer:bytes? "
    "answer_until:int? withdrawn_at:int?",
    _check("token_sha256", "length(token_sha256) = 32"),
    _of_machine(),
    _index("answer_until"),
    _index("expires_at"),
    _index("machine_id"),
    **BY_KEY,
)
_table(
    "approvals",
    "*id:serial proposal_digest action machine_id? subject operator_cn operator_sub role? hostname? assigned_ip? "
    "proposal created_at:int expires_at:int consumed_at:int? withdrawn_at:int? lapsed_at:int?",
    _check("role", ROLE),
    _check("proposal_digest", "length(proposal_digest) = 64"),
    _check("operator_sub", "operator_sub <> ''"),
    _check("ended_once", "consumed_at IS NULL OR withdrawn_at IS NULL"),
    _index(
        *("proposal_digest", "operator_sub"),
        unique=True,
        where="consumed_at IS NULL AND withdrawn_at IS NULL AND lapsed_at IS NULL",
    ),
    _index("machine_id", "id"),
    _index("expires_at"),
    **NUMBERED,
)
_table(
    "policies",
    "*name *version:int sha256 document created_at:int created_by",
    _check("version", "version >= 1"),
)
_table(
    "policy_assignments",
    "*scope *subject policy_name policy_version:int assigned_at:int assigned_by",
    _check("subject", "(scope = 'fleet') = (subject = '*')"),
    _check("scope", SCOPE),
    sa.ForeignKeyConstraint(["policy_name", "policy_version"], ["policies.name", "policies.version"]),
)
_table(
    "policy_history",
    "*id:serial scope subject policy_name? policy_version:int? at:int by",
    _check("scope", SCOPE),
    _check("policy", "(policy_name IS NULL) = (policy_version IS NULL)"),
    _index("scope", "subject", "id"),
    **NUMBERED,
)
_table(
    "trust_certificates",
    "*sha256 certificate:bytes role vendor status reason? added_at:int added_by changed_at:int changed_by",
    _check("sha256", "length(sha256) = 64"),
    _check("role", "role IN ('anchor', 'intermediate')"),
    _check("status", "status IN ('active', 'distrusted')"),
)

# ---------------------------------------------------------------- certificates of ours

_table(
    "ca_issuers",
    "*issuer_id purpose algorithm state key_uri key_origin? spki_sha256? certificate:bytes? cross_certificates "
    "revision:int crl_number:int lease_owner? lease_until:int? reserved_at:int created_at:int? activated_at:int? "
    "retiring_at:int? retired_at:int?",
    _check("purpose", "purpose IN ('machine', 'operator')"),
    _check("algorithm", "algorithm IN ('ecdsa-p384', 'rsa-4096', 'ml-dsa-87')"),
    _check("state", "state IN ('reserved', 'next', 'active', 'retiring', 'retired', 'abandoned')"),
    _check("certificate", "state IN ('reserved', 'abandoned') OR certificate IS NOT NULL"),
    _index("purpose", "algorithm", name="uq_ca_issuers_active", unique=True, where="state = 'active'"),
    _index(
        *("purpose", "algorithm"),
        name="uq_ca_issuers_coming",
        unique=True,
        where="state IN ('reserved', 'next')",
    ),
)
_table(
    "certificates",
    "*id:serial serial! issuer_id profile state machine_id? subject spki_sha256 requester key_tier:int? assurance? "
    "renews? not_before:int not_after:int reserved_at:int issued_at:int? certificate:bytes? ended_at:int? reason? "
    "note?",
    _check("serial", "length(serial) = 40"),
    _check("state", "state IN ('reserved', 'issued', 'held', 'revoked', 'void')"),
    _check("certificate", "state IN ('reserved', 'void') OR certificate IS NOT NULL"),
    _of("issuer_id", "ca_issuers"),
    _index("machine_id", "id"),
    _index("issuer_id", "id"),
    _index("not_after"),
    _index("reserved_at", name="ix_certificates_reserved", where="state = 'reserved'"),
    _index(
        *("issuer_id", "not_after"),
        name="ix_certificates_listed",
        where="state IN ('held', 'revoked', 'void')",
    ),
    **NUMBERED,
)
_table(
    "ca_crls",
    "*issuer_id number:int revision:int entries:int this_update:int next_update:int crl:bytes",
    _of("issuer_id", "ca_issuers"),
    **BY_KEY,
)

# ---------------------------------------------------------------- the record

_table(
    "audit_log",
    "*id:serial timestamp operator_cn operator_sub? action machine_id? prev_state? new_state? detail? source_ip? "
    "format:int prev_hash! entry_hash!",
    _check("entry_hash", "length(entry_hash) = 64"),
    _check("prev_hash", "length(prev_hash) = 64"),
    _index("action", "id"),
    _index("machine_id", "id"),
    _index("operator_cn", "id"),
    **NUMBERED,
)
_table(
    "audit_nodes",
    "*level:int *position:int hash:bytes",
    _check("hash", "length(hash) = 32"),
    **BY_KEY,
)
_table(
    "audit_checkpoints",
    "*size:int root:bytes note created_at:int",
    _check("root", "length(root) = 32"),
    _check("size", "size >= 0"),
)
_table(
    "audit_countersignatures",
    "*size:int *kind *signer value:bytes created_at:int",
    _check("kind", "kind IN ('cosignature', 'timestamp')"),
    _of("size", "audit_checkpoints"),
)
_table(
    "outbox",
    "*sequence:serial id! event machine_id? payload created_at:int attempts:int next_attempt_at:int? done_at:int?",
    _index("done_at", "next_attempt_at"),
    _index("machine_id", "done_at", "sequence"),
    **NUMBERED,
)
_table("rate_limits", "*key tat_us:int", _index("tat_us"), **BY_KEY)

# ---------------------------------------------------------------- what databases say differently

# Append-only, by the database itself: whoever finds a way to run SQL through us still cannot rewrite the past.
APPEND_ONLY = {
    "sqlite": (
        "CREATE TRIGGER {0}_refuses_update BEFORE UPDATE ON {0} BEGIN SELECT RAISE(ABORT, '{0} is append-only'); END",
        "CREATE TRIGGER {0}_refuses_delete BEFORE DELETE ON {0} BEGIN SELECT RAISE(ABORT, '{0} is append-only'); END",
    ),
    "postgresql": (
        """CREATE FUNCTION {0}_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION '{0} is append-only' USING ERRCODE = 'integrity_constraint_violation'; END $$""",
        """CREATE TRIGGER {0}_refuses_change BEFORE UPDATE OR DELETE ON {0}
        FOR EACH ROW EXECUTE FUNCTION {0}_is_append_only()""",
        """CREATE TRIGGER {0}_refuses_truncate BEFORE TRUNCATE ON {0}
        FOR EACH STATEMENT EXECUTE FUNCTION {0}_is_append_only()""",
    ),
}
# A leaf's place in the tree is its id less one, so ids have no gap.
WITHOUT_GAP = {
    "sqlite": (
        """CREATE TRIGGER audit_log_refuses_gap BEFORE INSERT ON audit_log
        WHEN NEW.id IS NOT (SELECT COALESCE(MAX(id), 0) + 1 FROM audit_log)
        BEGIN SELECT RAISE(ABORT, 'audit_log ids have no gap'); END""",
    ),
    "postgresql": (
        """CREATE FUNCTION audit_log_has_no_gap() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NEW.id IS DISTINCT FROM (SELECT COALESCE(MAX(id), 0) + 1 FROM audit_log) THEN
                RAISE EXCEPTION 'audit_log ids have no gap' USING ERRCODE = 'integrity_constraint_violation';
            END IF;
            RETURN NEW;
        END $$""",
        """CREATE TRIGGER audit_log_refuses_gap BEFORE INSERT ON audit_log
        FOR EACH ROW EXECUTE FUNCTION audit_log_has_no_gap()""",
    ),
}


def upgrade() -> None:
    """Create everything."""
    SCHEMA.create_all(op.get_bind(), checkfirst=False)
    dialect = op.get_context().dialect.name
    for table in ("audit_log", "audit_nodes", "audit_checkpoints", "audit_countersignatures"):
        for statement in APPEND_ONLY[dialect]:
            op.execute(statement.format(table))
    for statement in WITHOUT_GAP[dialect]:
        op.execute(statement)
