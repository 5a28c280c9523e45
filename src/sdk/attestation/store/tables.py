"""The tables, and with them the invariants that no code path may break.

This is the only definition: Alembic compares the migrations with it, statements are written against it, and rows are
read by it: the type of a column says how its values are stored (`attestation.store.columns`).
Secrets are never here: tokens are SHA-256 digests, nonces die with their challenge.
"""

# Longer than 500 lines: the whole schema in one place, as the migrations are held against it.
from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, cast

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from attestation.machines import Role, Status
from attestation.results import Assurance, Verdict
from attestation.store.columns import (
    FLAG,
    INSTANT,
    Blobs,
    Digests,
    EventWord,
    Outcomes,
    Path,
    Payload,
    Subjects,
    Unsigned,
    word,
)

SerialType = BigInteger().with_variant(Integer(), "sqlite")
"""SQLite numbers rows by itself only in a column of type INTEGER."""

OPEN_VOTE = "consumed_at IS NULL AND withdrawn_at IS NULL AND lapsed_at IS NULL"
"""What holds of a vote that was neither used nor taken back nor replaced; it may still have expired."""

LEASED = "status = 'attested' AND last_verdict = 'Verified' AND heartbeat_missed_at IS NULL"
"""What holds of a machine whose lease is worth watching."""

NAMED = "name_key IS NOT NULL"
ADDRESSED = "address_key IS NOT NULL"
ALONE_BY_NAME = f"{NAMED} AND NOT shares_names"
ALONE_BY_ADDRESS = f"{ADDRESSED} AND NOT shares_names"
"""What holds of machines that are called something, and of those that no other one may be called like."""

ACTIVE_ISSUER = "state = 'active'"
"""What holds of the CA key that signs; one of a kind."""

COMING_ISSUER = "state IN ('reserved', 'next')"
"""What holds of the CA key that will; one of a kind."""

RESERVED_CERTIFICATE = "state = 'reserved'"
"""What holds of a serial number of which nobody knows yet whether it was signed."""

LIVE_HSM_CERTIFICATE = "state != 'void'"
LISTED_HSM_CERTIFICATE = "state IN ('revoked', 'void')"
UNFINISHED_HSM_CERTIFICATE = "state IN ('reserved', 'void')"

LISTED_CERTIFICATE = "state IN ('held', 'revoked', 'void')"
"""What holds of a certificate that a revocation list names until it has expired."""

Serial = Annotated[int, mapped_column(SerialType, primary_key=True, autoincrement=True)]
Key = Annotated[str, mapped_column(primary_key=True)]
UniqueText = Annotated[str, mapped_column(unique=True)]
UniqueBytes = Annotated[bytes, mapped_column(unique=True)]


class Base(DeclarativeBase):
    """Base of all tables; every constraint gets a name, so that a migration can change it."""

    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        bool: FLAG,
        bytes: LargeBinary(),
        datetime: INSTANT,
        int: BigInteger(),
        str: Text(),
        **{words: word(words) for words in (Assurance, Role, Status, Verdict)},
    }


def table_of(row: type[Base]) -> Table:
    """Return the Core table of a declarative class."""
    return cast("Table", row.__table__)


def _one_of(column: str, words: Iterable[StrEnum]) -> CheckConstraint:
    listed = ", ".join(f"'{word}'" for word in words)
    return CheckConstraint(f"{column} IN ({listed})", name=column)


class DatabaseIdentityRow(Base):
    """Which database this is: one row, made with it.

    `bound_at`: since when keys remember it. `moved_to`, `moved_at`: where and when it went on as a copy.
    """

    __tablename__ = "database_identity"
    __table_args__ = (
        CheckConstraint("id = 1", name="id"),
        CheckConstraint("length(database_id) = 32", name="database_id"),
    )

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    database_id: Mapped[str]
    made_at: Mapped[datetime]
    bound_at: Mapped[datetime | None]
    moved_to: Mapped[str | None]
    moved_at: Mapped[datetime | None]


class SchemaSupportRow(Base):
    """Which code may run on this schema, by its newest revision; `branch`: of which extension, empty for ours."""

    __tablename__ = "schema_support"
    __table_args__ = ({"sqlite_with_rowid": False},)

    branch: Mapped[str] = mapped_column(primary_key=True)
    revision: Mapped[str] = mapped_column(primary_key=True)


class MachineRow(Base):
    """One machine per EK. A new field is a line here, one of its name in `machines.Machine`, and a migration."""

    __tablename__ = "machines"
    __table_args__ = (
        _one_of("status", Status),
        _one_of("role", Role),
        _one_of("desired_role", Role),
        # `tee` is never kept: it is found anew by each attestation.
        _one_of("assurance", [level for level in Assurance if level is not Assurance.TEE]),
        _one_of("last_verdict", Verdict),
        CheckConstraint("version >= 1", name="version"),
        # Lists, newest first, under one filter each.
        Index(None, "status", "id"),
        Index(None, "role", "id"),
        Index(None, "cluster_id", "id"),
        # The quota of machines that await approval, over all and by address.
        Index(None, "status", "registered_from", "kept_bytes"),
        # Leases that ran out and that nobody was told of.
        Index(None, "trust_expires_at", sqlite_where=text(LEASED), postgresql_where=text(LEASED)),
        # Who still needs a measurement log.
        Index(
            None,
            "event_log_sha256",
            sqlite_where=text("event_log_sha256 IS NOT NULL"),
            postgresql_where=text("event_log_sha256 IS NOT NULL"),
        ),
        # Nobody of a cluster is called like another one, but those who were before it was a rule.
        Index(
            "uq_machines_cluster_id_name_key",
            *("cluster_id", "name_key"),
            unique=True,
            sqlite_where=text(ALONE_BY_NAME),
            postgresql_where=text(ALONE_BY_NAME),
        ),
        Index(
            "uq_machines_cluster_id_address_key",
            *("cluster_id", "address_key"),
            unique=True,
            sqlite_where=text(ALONE_BY_ADDRESS),
            postgresql_where=text(ALONE_BY_ADDRESS),
        ),
        # Who is called so, in whatever cluster.
        Index(None, "name_key", sqlite_where=text(NAMED), postgresql_where=text(NAMED)),
        Index(None, "address_key", sqlite_where=text(ADDRESSED), postgresql_where=text(ADDRESSED)),
        # What `q` looks through, so that a search does not read whole rows.
        Index(None, "id", "search", "machine_id", "ek_fingerprint"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[Serial]
    machine_id: Mapped[UniqueText]
    version: Mapped[int]
    status: Mapped[Status]
    role: Mapped[Role | None]
    cluster_id: Mapped[str]
    ek_fingerprint: Mapped[UniqueText]
    ek_public: Mapped[bytes]
    ek_source: Mapped[str]
    ek_template: Mapped[str]
    ek_certificate_subject: Mapped[str | None]
    ek_certificate_manufacturer: Mapped[str | None]
    ek_certificate_model: Mapped[str | None]
    ek_certificate_firmware: Mapped[str | None]
    ek_certificate_sha256: Mapped[str | None]
    assurance: Mapped[Assurance]
    ek_chain_ok: Mapped[bool]
    ek_allow_listed: Mapped[bool]
    hw_uuid: Mapped[str]
    hw_mac: Mapped[str]
    hw_serial: Mapped[str]
    hw_product: Mapped[str]
    desired_role: Mapped[Role | None]
    hostname: Mapped[str | None]
    assigned_ip: Mapped[str | None]
    registered_from: Mapped[str | None]
    registered_at: Mapped[datetime]
    attested_at: Mapped[datetime | None]
    locked_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    rejected_at: Mapped[datetime | None]
    wipe_pending: Mapped[bool]
    wiped_at: Mapped[datetime | None]
    ak_public: Mapped[bytes | None]
    ak_name: Mapped[bytes | None]
    ak_activated_at: Mapped[datetime | None]
    clock_ms: Mapped[Unsigned | None]
    reset_count: Mapped[int | None]
    restart_count: Mapped[int | None]
    clock_safe: Mapped[bool | None]
    firmware_version: Mapped[Unsigned | None]
    last_verdict: Mapped[Verdict | None]
    last_result_at: Mapped[datetime | None]
    last_policy: Mapped[str | None]
    last_failed: Mapped[str | None]
    last_result_key: Mapped[str | None]
    trust_expires_at: Mapped[datetime | None]
    directive_sha256: Mapped[bytes | None]
    event_log_sha256: Mapped[str | None]
    heartbeat_missed_at: Mapped[datetime | None]
    firmware_attested: Mapped[Unsigned | None]
    firmware_blocked: Mapped[str | None]
    search: Mapped[str]
    desired_cluster_id: Mapped[str | None]
    alarm: Mapped[str | None]
    kept_bytes: Mapped[int] = mapped_column(server_default="0")
    unlock_pending: Mapped[bool] = mapped_column(server_default=false())
    pinned_keys: Mapped[bytes | None]
    shares_names: Mapped[bool] = mapped_column(server_default=false())
    name_key: Mapped[str | None]
    address_key: Mapped[str | None]
    config_owed_since: Mapped[datetime | None]
    config_failure: Mapped[str | None]
    hardware_kind: Mapped[str | None]
    hardware_chip: Mapped[bytes | None]
    hardware_guest: Mapped[bytes | None]
    hardware_csp_id: Mapped[str | None]
    vouched_by_hardware: Mapped[bool] = mapped_column(server_default=false())
    last_result_from: Mapped[str | None]


class MachineLabelRow(Base):
    """What operators wrote on a machine. Beside its row, which is what machines are judged by: it has none of this."""

    __tablename__ = "machine_labels"
    __table_args__ = (
        # Who has this label.
        Index(None, "key", "value"),
        {"sqlite_with_rowid": False},
    )

    machine_id: Mapped[str] = mapped_column(
        ForeignKey("machines.machine_id", ondelete="CASCADE"), primary_key=True
    )
    key: Mapped[Key]
    value: Mapped[str]


class MachineIdentityRow(Base):
    """Who a machine is to a kind of evidence besides its TPM's, whose identity stands in the machine's own row."""

    __tablename__ = "machine_identities"
    __table_args__ = (UniqueConstraint("machine_id", "kind"), {"sqlite_with_rowid": False})

    kind: Mapped[Key]
    value: Mapped[bytes] = mapped_column(primary_key=True)
    machine_id: Mapped[str] = mapped_column(ForeignKey("machines.machine_id"))
    state: Mapped[Payload | None]
    guest: Mapped[bytes | None]
    approved_chip: Mapped[bytes | None]
    approved_csp_id: Mapped[str | None]


class AKBindingRow(Base):
    """An AK, by its Name, belongs to one EK for ever (PROTOCOL §8.6). No foreign key: it outlives its machine."""

    __tablename__ = "ak_bindings"
    __table_args__ = (Index(None, "ek_fingerprint"), {"sqlite_with_rowid": False})

    ak_name: Mapped[bytes] = mapped_column(primary_key=True)
    ek_fingerprint: Mapped[str]
    machine_id: Mapped[str]
    bound_at: Mapped[datetime]


class ChipMarkRow(Base):
    """What marks the chip of a machine. No foreign key: `ended_…` say what the machine was when it was deleted."""

    __tablename__ = "chip_marks"
    __table_args__ = (
        CheckConstraint("kind IN ('ek', 'ek-serial', 'hw-serial', 'hw-uuid')", name="kind"),
        _one_of("ended_as", Status),
        Index(None, "machine_id"),
        {"sqlite_with_rowid": False},
    )

    kind: Mapped[Key]
    value: Mapped[Key]
    machine_id: Mapped[Key]
    ended_as: Mapped[Status | None]
    ended_believed: Mapped[bool | None]
    ended_at: Mapped[datetime | None]


class EKCertificateRow(Base):
    """The EK certificate of a machine as it came, and how its chain was judged last.

    It stands beside the machine, because attestations never need it. `chain` is DER, `path` the judged path.
    """

    __tablename__ = "ek_certificates"
    __table_args__ = (
        # What a distrusted anchor vouched for; what another bundle judged.
        Index(None, "anchor_sha256"),
        Index(None, "bundle_sha256"),
    )

    machine_id: Mapped[str] = mapped_column(
        ForeignKey("machines.machine_id", ondelete="CASCADE"), primary_key=True
    )
    certificate: Mapped[bytes]
    chain: Mapped[Blobs]
    ok: Mapped[bool]
    reason: Mapped[str]
    vendor: Mapped[str | None]
    anchor_sha256: Mapped[str | None]
    path: Mapped[Path]
    revocation: Mapped[str]
    bundle_sha256: Mapped[str | None]
    judged_at: Mapped[datetime]


class AKCertificateRow(Base):
    """The certificate by which somebody vouches for the AK of a machine, and how its chain was judged last.

    `spki_sha256` names the certified key, which vouches for one machine; `bundle_sha256` the set of anchors.
    """

    __tablename__ = "ak_certificates"
    __table_args__ = (UniqueConstraint("spki_sha256"), Index(None, "bundle_sha256"))

    machine_id: Mapped[str] = mapped_column(
        ForeignKey("machines.machine_id", ondelete="CASCADE"), primary_key=True
    )
    ak_name: Mapped[bytes]
    spki_sha256: Mapped[str]
    certificate: Mapped[bytes]
    chain: Mapped[Blobs]
    ok: Mapped[bool]
    reason: Mapped[str]
    vendor: Mapped[str | None]
    anchor_sha256: Mapped[str | None]
    path: Mapped[Path]
    revocation: Mapped[str]
    bundle_sha256: Mapped[str | None]
    judged_at: Mapped[datetime]


class TrustCertificateRow(Base):
    """Certificates that operators added to the trust bundle, or distrusted in it."""

    __tablename__ = "trust_certificates"
    __table_args__ = (
        CheckConstraint("length(sha256) = 64", name="sha256"),
        CheckConstraint("role IN ('anchor', 'intermediate')", name="role"),
        CheckConstraint("status IN ('active', 'distrusted')", name="status"),
    )

    sha256: Mapped[Key]
    certificate: Mapped[bytes]
    role: Mapped[str]
    vendor: Mapped[str]
    status: Mapped[str]
    reason: Mapped[str | None]
    added_at: Mapped[datetime]
    added_by: Mapped[str]
    changed_at: Mapped[datetime]
    changed_by: Mapped[str]


class LogRow(Base):
    """Event logs (`tcg`) and IMA lists (`ima`) that results refer to; `content` is zlib of `size_bytes`."""

    __tablename__ = "measurement_logs"
    __table_args__ = (
        CheckConstraint("length(sha256) = 64", name="sha256"),
        CheckConstraint("kind IN ('tcg', 'ima')", name="kind"),
        Index(None, "last_used_at"),
    )

    sha256: Mapped[Key]
    kind: Mapped[str]
    size_bytes: Mapped[int]
    content: Mapped[bytes]
    first_seen_at: Mapped[datetime]
    last_used_at: Mapped[datetime]


class ChallengeRow(Base):
    """What we asked of one machine; redeemed at most once."""

    __tablename__ = "challenges"
    __table_args__ = (
        CheckConstraint("purpose IN ('activate', 'attest', 'certify', 'enroll')", name="purpose"),
        Index(None, "expires_at"),
        {"sqlite_with_rowid": False},
    )

    challenge_id: Mapped[Key]
    purpose: Mapped[str]
    machine_id: Mapped[str]
    ek_fingerprint: Mapped[str]
    nonce: Mapped[bytes | None]
    proof_sha256: Mapped[bytes | None]
    pcr_selection: Mapped[str | None]
    policy_ref: Mapped[str | None]
    payload: Mapped[str | None]
    issued_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    used_at: Mapped[datetime | None]
    event_log: Mapped[str | None]
    evidence: Mapped[str | None]
    ek_challenge: Mapped[bytes | None]


class NodeChallengeRow(Base):
    """What we asked of one machine that wants a Kubernetes certificate; redeemed at most once."""

    __tablename__ = "node_csr_challenges"
    __table_args__ = (Index(None, "expires_at"), {"sqlite_with_rowid": False})

    challenge_id: Mapped[Key]
    machine_id: Mapped[str]
    ek_fingerprint: Mapped[str]
    nonce: Mapped[bytes]
    pcr_selection: Mapped[str]
    event_log: Mapped[str]
    quote: Mapped[str]
    policy_ref: Mapped[str]
    issued_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    used_at: Mapped[datetime | None]


class NodeCSRRow(Base):
    """What was decided of a Kubernetes certificate request; once for each. No foreign key: it outlives the machine."""

    __tablename__ = "node_csrs"
    __table_args__ = (
        UniqueConstraint("cluster_id", "csr_uid"),
        Index(None, "at"),
        Index(None, "machine_id", "at"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[Serial]
    result_id: Mapped[UniqueText]
    cluster_id: Mapped[str]
    csr_uid: Mapped[str]
    csr_name: Mapped[str]
    signer_name: Mapped[str]
    content_sha256: Mapped[str]
    decision: Mapped[str]
    reason: Mapped[str]
    message: Mapped[str]
    tier: Mapped[int | None]
    machine_id: Mapped[str | None]
    node_name: Mapped[str | None]
    assurance: Mapped[str | None]
    ak_name: Mapped[bytes | None]
    at: Mapped[datetime]
    serial: Mapped[str | None]


class RunRow(Base):
    """An attestation run of a Kubernetes node, as a controller of its cluster opened it."""

    __tablename__ = "runs"
    __table_args__ = (
        UniqueConstraint("cluster_id", "run_uid"),
        Index(None, "deadline"),
        {"sqlite_with_rowid": False},
    )

    run_id: Mapped[Key]
    cluster_id: Mapped[str]
    run_uid: Mapped[str]
    namespace: Mapped[str]
    name: Mapped[str]
    node_name: Mapped[str]
    node_uid: Mapped[str]
    backend: Mapped[str]
    nonce: Mapped[str | None]
    policy: Mapped[str | None]
    policy_source: Mapped[str]
    policy_name: Mapped[str | None]
    policy_id: Mapped[str]
    content_sha256: Mapped[str]
    opened_at: Mapped[datetime]
    deadline: Mapped[datetime]


class RunAttemptRow(Base):
    """One challenge to the node of a run, and what its answer was found to be; redeemed at most once."""

    __tablename__ = "run_attempts"
    __table_args__ = (
        UniqueConstraint("run_id", "attempt"),
        {"sqlite_with_rowid": False},
    )

    challenge_id: Mapped[Key]
    run_id: Mapped[str]
    attempt: Mapped[int]
    random: Mapped[bytes]
    issued_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    used_at: Mapped[datetime | None]
    verdict: Mapped[str | None]
    machine_id: Mapped[str | None]
    result: Mapped[str | None]


class RunBlobRow(Base):
    """One item of evidence that an attempt was judged from, canonical JSON."""

    __tablename__ = "run_blobs"

    challenge_id: Mapped[Key]
    position: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(index=True)
    media_type: Mapped[str]
    sha256: Mapped[str]
    content: Mapped[bytes]


class RunSealRow(Base):
    """The seal of a run, and how far it is; `next_at` is NULL where nothing is left to do."""

    __tablename__ = "run_seals"
    __table_args__ = (UniqueConstraint("cluster_id", "bundle_uid"),)

    run_id: Mapped[Key]
    cluster_id: Mapped[str]
    run_uid: Mapped[str] = mapped_column(index=True)
    bundle_uid: Mapped[str]
    challenge_id: Mapped[str]
    content_sha256: Mapped[str]
    request: Mapped[str]
    asked_by: Mapped[str]
    asked_sub: Mapped[str | None]
    phase: Mapped[str]
    statement: Mapped[bytes | None]
    signature: Mapped[bytes | None]
    key: Mapped[str | None]
    signed_at: Mapped[datetime | None]
    entry: Mapped[bytes | None]
    entry_index: Mapped[int | None]
    log: Mapped[str | None]
    archive: Mapped[str | None]
    sealed_at: Mapped[datetime | None]
    failures: Mapped[str]
    tries: Mapped[int]
    next_at: Mapped[datetime | None] = mapped_column(index=True)


class CollateralRow(Base):
    """What vouches for confidential hardware, by its name. `data` is empty where it was asked for and did not come."""

    __tablename__ = "collateral"
    __table_args__ = (Index(None, "ask_at"),)

    name: Mapped[Key]
    data: Mapped[bytes | None]
    source: Mapped[str]
    stored_at: Mapped[datetime | None]
    begins_at: Mapped[datetime | None]
    expires_at: Mapped[datetime | None]
    ask_at: Mapped[datetime]
    failure: Mapped[str | None]
    failures: Mapped[int]


class IssuerRow(Base):
    """The keys of our CAs, each with its certificate. At most one is active, and one is to come, of a kind.

    A row is `reserved` before its key is made, so that whoever finds it after a crash goes on with the same URI.
    `revision` counts what was revoked, held, released or given up under this key; `demanded` is the newest revision
    that a list must know to be served; `crl_number` counts the CRLs it signed.
    `cross_certificates` is DER: this key, certified by its neighbours.
    """

    __tablename__ = "ca_issuers"
    __table_args__ = (
        CheckConstraint("purpose IN ('machine', 'operator')", name="purpose"),
        CheckConstraint("algorithm IN ('ecdsa-p384', 'rsa-4096', 'ml-dsa-87')", name="algorithm"),
        CheckConstraint(
            "state IN ('reserved', 'next', 'active', 'retiring', 'retired', 'abandoned')", name="state"
        ),
        CheckConstraint("state IN ('reserved', 'abandoned') OR certificate IS NOT NULL", name="certificate"),
        Index(
            "uq_ca_issuers_active",
            "purpose",
            "algorithm",
            unique=True,
            sqlite_where=text(ACTIVE_ISSUER),
            postgresql_where=text(ACTIVE_ISSUER),
        ),
        Index(
            "uq_ca_issuers_coming",
            "purpose",
            "algorithm",
            unique=True,
            sqlite_where=text(COMING_ISSUER),
            postgresql_where=text(COMING_ISSUER),
        ),
    )

    issuer_id: Mapped[Key]
    purpose: Mapped[str]
    algorithm: Mapped[str]
    state: Mapped[str]
    key_uri: Mapped[str]
    key_origin: Mapped[str | None]
    spki_sha256: Mapped[str | None]
    certificate: Mapped[bytes | None]
    cross_certificates: Mapped[Blobs]
    revision: Mapped[int]
    crl_number: Mapped[int]
    lease_owner: Mapped[str | None]
    lease_until: Mapped[datetime | None]
    reserved_at: Mapped[datetime]
    created_at: Mapped[datetime | None]
    activated_at: Mapped[datetime | None]
    retiring_at: Mapped[datetime | None]
    retired_at: Mapped[datetime | None]
    demanded: Mapped[int] = mapped_column(server_default="0")


class IssuanceRow(Base):
    """The issuance log: a row is `reserved` before anything is signed, and `void` where nothing came of it.

    `serial` is 20 bytes as 40 lower-case hex. Rows outlive their machine; what has ended long ago is purged.
    """

    __tablename__ = "certificates"
    __table_args__ = (
        CheckConstraint("length(serial) = 40", name="serial"),
        CheckConstraint("state IN ('reserved', 'issued', 'held', 'revoked', 'void')", name="state"),
        CheckConstraint("state IN ('reserved', 'void') OR certificate IS NOT NULL", name="certificate"),
        Index(None, "machine_id", "id"),
        Index(None, "issuer_id", "id"),
        Index(None, "not_after"),
        Index(
            "ix_certificates_reserved",
            "reserved_at",
            sqlite_where=text(RESERVED_CERTIFICATE),
            postgresql_where=text(RESERVED_CERTIFICATE),
        ),
        Index(
            "ix_certificates_listed",
            "issuer_id",
            "not_after",
            sqlite_where=text(LISTED_CERTIFICATE),
            postgresql_where=text(LISTED_CERTIFICATE),
        ),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[Serial]
    serial: Mapped[UniqueText]
    issuer_id: Mapped[str] = mapped_column(ForeignKey("ca_issuers.issuer_id"))
    profile: Mapped[str]
    state: Mapped[str]
    machine_id: Mapped[str | None]
    subject: Mapped[str]
    spki_sha256: Mapped[str]
    requester: Mapped[str]
    key_tier: Mapped[int | None]
    assurance: Mapped[str | None]
    renews: Mapped[str | None]
    not_before: Mapped[datetime]
    not_after: Mapped[datetime]
    reserved_at: Mapped[datetime]
    issued_at: Mapped[datetime | None]
    certificate: Mapped[bytes | None]
    ended_at: Mapped[datetime | None]
    reason: Mapped[str | None]
    note: Mapped[str | None]


class RefusedKeyRow(Base):
    """Public keys that never get a certificate again. No foreign key: certificates are purged, this is not."""

    __tablename__ = "refused_keys"
    __table_args__ = (CheckConstraint("length(spki_sha256) = 64", name="spki_sha256"),)

    spki_sha256: Mapped[Key]
    why: Mapped[str]
    added_at: Mapped[datetime]
    added_by: Mapped[str]


class CRLRow(Base):
    """The newest revocation list of each of our CA keys, made when its issuer was at `revision`."""

    __tablename__ = "ca_crls"
    __table_args__ = ({"sqlite_with_rowid": False},)

    issuer_id: Mapped[str] = mapped_column(ForeignKey("ca_issuers.issuer_id"), primary_key=True)
    number: Mapped[int]
    revision: Mapped[int]
    entries: Mapped[int]
    this_update: Mapped[datetime]
    next_update: Mapped[datetime]
    crl: Mapped[bytes]


class CAChainRow(Base):
    """Who vouches for a CA key of ours in its place: its certificate by a parent, and on, the root last; DER."""

    __tablename__ = "ca_chains"
    __table_args__ = ({"sqlite_with_rowid": False},)

    issuer_id: Mapped[str] = mapped_column(ForeignKey("ca_issuers.issuer_id"), primary_key=True)
    chain: Mapped[Blobs]
    imported_at: Mapped[datetime]


class OCSPDelegateRow(Base):
    """The key that answers OCSP for each of our CA keys: its certificate, and itself, sealed to the service's key."""

    __tablename__ = "ocsp_delegates"
    __table_args__ = ({"sqlite_with_rowid": False},)

    issuer_id: Mapped[str] = mapped_column(ForeignKey("ca_issuers.issuer_id"), primary_key=True)
    certificate: Mapped[bytes]
    sealed_key: Mapped[bytes]
    made_at: Mapped[datetime]
    not_after: Mapped[datetime]


class HSMIssuerRow(Base):
    """The CA keys on tokens of a cluster, one row for each key. No CA of these is believed here.

    `revision` counts what was revoked or given up; `begun_*` is the list that its controller is making.
    """

    __tablename__ = "hsm_issuers"
    __table_args__ = (
        UniqueConstraint("cluster_id", "spki_sha256"),
        Index(None, "cluster_id", "uid"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[Serial]
    issuer_id: Mapped[UniqueText]
    cluster_id: Mapped[str]
    uid: Mapped[str]
    kind: Mapped[str]
    namespace: Mapped[str | None]
    name: Mapped[str]
    certificate: Mapped[bytes]
    chain: Mapped[Blobs]
    key_origin: Mapped[str]
    module: Mapped[str]
    token_label: Mapped[str]
    subject: Mapped[str]
    spki_sha256: Mapped[str]
    not_before: Mapped[datetime]
    not_after: Mapped[datetime]
    registered_at: Mapped[datetime]
    superseded_at: Mapped[datetime | None]
    revision: Mapped[int]
    crl_number: Mapped[int]
    begun_revision: Mapped[int | None]
    begun_entries: Mapped[int | None]
    begun_digest: Mapped[str | None]
    begun_at: Mapped[datetime | None]


class HSMCertificateRow(Base):
    """Every serial number that was taken under such a key, and what became of it."""

    __tablename__ = "hsm_certificates"
    __table_args__ = (
        CheckConstraint("state IN ('reserved', 'issued', 'revoked', 'void')", name="state"),
        CheckConstraint("state IN ('reserved', 'void') OR certificate IS NOT NULL", name="certificate"),
        Index(
            "uq_hsm_certificates_request",
            "issuer_id",
            "request_uid",
            unique=True,
            sqlite_where=text(LIVE_HSM_CERTIFICATE),
            postgresql_where=text(LIVE_HSM_CERTIFICATE),
        ),
        Index(
            "ix_hsm_certificates_listed",
            "issuer_id",
            "serial",
            sqlite_where=text(LISTED_HSM_CERTIFICATE),
            postgresql_where=text(LISTED_HSM_CERTIFICATE),
        ),
        # How many a controller took and did not finish.
        Index(
            "ix_hsm_certificates_unfinished",
            "issuer_id",
            "state",
            "not_after",
            sqlite_where=text(UNFINISHED_HSM_CERTIFICATE),
            postgresql_where=text(UNFINISHED_HSM_CERTIFICATE),
        ),
        Index(
            "ix_hsm_certificates_reserved",
            "reserved_at",
            sqlite_where=text(RESERVED_CERTIFICATE),
            postgresql_where=text(RESERVED_CERTIFICATE),
        ),
        # When the last certificate of a key ends.
        Index(
            "ix_hsm_certificates_ends",
            "issuer_id",
            "not_after",
            sqlite_where=text(LIVE_HSM_CERTIFICATE),
            postgresql_where=text(LIVE_HSM_CERTIFICATE),
        ),
        Index(None, "issuer_id", "id"),
        Index(None, "not_after"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[Serial]
    serial: Mapped[UniqueText]
    issuer_id: Mapped[str] = mapped_column(ForeignKey("hsm_issuers.issuer_id"))
    request_uid: Mapped[str]
    kind: Mapped[str]
    namespace: Mapped[str | None]
    name: Mapped[str]
    spki_sha256: Mapped[str]
    subject: Mapped[str]
    names: Mapped[str]
    is_ca: Mapped[bool]
    requester: Mapped[str]
    not_before: Mapped[datetime]
    not_after: Mapped[datetime]
    reserved_at: Mapped[datetime]
    state: Mapped[str]
    issued_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    reason: Mapped[str | None]
    note: Mapped[str | None]
    certificate: Mapped[bytes | None]
    audit_entry_hash: Mapped[str | None]


class HSMCRLRow(Base):
    """The newest revocation list of each such key, as its controller signed it."""

    __tablename__ = "hsm_crls"
    __table_args__ = ({"sqlite_with_rowid": False},)

    issuer_id: Mapped[str] = mapped_column(ForeignKey("hsm_issuers.issuer_id"), primary_key=True)
    number: Mapped[int]
    revision: Mapped[int]
    entries: Mapped[int]
    this_update: Mapped[datetime]
    next_update: Mapped[datetime]
    crl: Mapped[bytes]


class HSMDelegateRow(Base):
    """Keys of this service that answer OCSP for such a key, sealed: the one that does, and the one to be certified."""

    __tablename__ = "hsm_delegates"
    __table_args__ = (
        CheckConstraint("state IN ('pending', 'active')", name="state"),
        {"sqlite_with_rowid": False},
    )

    issuer_id: Mapped[str] = mapped_column(ForeignKey("hsm_issuers.issuer_id"), primary_key=True)
    state: Mapped[Key]
    serial: Mapped[str]
    request: Mapped[bytes]
    sealed_key: Mapped[bytes]
    certificate: Mapped[bytes | None]
    made_at: Mapped[datetime]
    not_after: Mapped[datetime | None]


class HSMNonceRow(Base):
    """Nonces of evidence, by their digest: what was asked with each, and which QuoteAttestation and bundle used it."""

    __tablename__ = "hsm_nonces"
    __table_args__ = (
        Index(None, "expires_at"),
        # How many of a cluster are good.
        Index(None, "cluster_id", "expires_at"),
        {"sqlite_with_rowid": False},
    )

    nonce_sha256: Mapped[Key]
    cluster_id: Mapped[str]
    signer_uid: Mapped[str]
    purpose: Mapped[str]
    issued_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    quote_uid: Mapped[str | None]
    used_at: Mapped[datetime | None]
    used_by: Mapped[str | None]
    evidence_type: Mapped[str] = mapped_column(server_default="")
    policy_ref: Mapped[str | None]
    ak_name: Mapped[bytes | None]


class HSMQuoteRow(Base):
    """QuoteAttestations: the envelope, what it proved, and what became of the key."""

    __tablename__ = "hsm_quotes"
    __table_args__ = (
        UniqueConstraint("cluster_id", "uid"),
        Index(None, "received_at"),
        Index(None, "expires_at"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[Serial]
    cluster_id: Mapped[str]
    uid: Mapped[str]
    namespace: Mapped[str]
    name: Mapped[str]
    content_sha256: Mapped[str]
    spec: Mapped[str]
    purpose: Mapped[str]
    signer_uid: Mapped[str]
    evidence_type: Mapped[str]
    nonce_sha256: Mapped[str]
    received_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    verdict: Mapped[str]
    result: Mapped[str]
    steps: Mapped[str]
    last_step: Mapped[str | None]


class ACMEKeyRow(Base):
    """Keys for external accounts of ACME: who may make one account, and for which machine. What they are is derived."""

    __tablename__ = "acme_keys"
    __table_args__ = (Index(None, "expires_at"), {"sqlite_autoincrement": True})

    id: Mapped[Serial]
    key_id: Mapped[str] = mapped_column(unique=True)
    machine_id: Mapped[str | None]
    note: Mapped[str]
    created_at: Mapped[datetime]
    created_by: Mapped[str]
    expires_at: Mapped[datetime]
    account_id: Mapped[str | None]
    revoked_at: Mapped[datetime | None]


class ACMEAccountRow(Base):
    """Accounts of ACME: a public key that asks. What it may have, orders say."""

    __tablename__ = "acme_accounts"
    __table_args__ = (
        CheckConstraint("status IN ('valid', 'deactivated', 'revoked')", name="status"),
        UniqueConstraint("thumbprint"),
        Index(None, "ended_at"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[Serial]
    account_id: Mapped[str] = mapped_column(unique=True)
    thumbprint: Mapped[str]
    jwk: Mapped[str]
    contact: Mapped[str]
    status: Mapped[str]
    key_id: Mapped[str | None]
    machine_id: Mapped[str | None]
    created_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]


class ACMEOrderRow(Base):
    """Orders of ACME, each with its one identifier, authorization and challenge."""

    __tablename__ = "acme_orders"
    __table_args__ = (
        CheckConstraint("status IN ('pending', 'ready', 'valid', 'invalid')", name="status"),
        Index(None, "account_id", "id"),
        Index(None, "expires_at"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[Serial]
    order_id: Mapped[str] = mapped_column(unique=True)
    account_id: Mapped[str] = mapped_column(ForeignKey("acme_accounts.account_id"))
    kind: Mapped[str]
    value: Mapped[str]
    machine_id: Mapped[str]
    status: Mapped[str]
    token: Mapped[str]
    error: Mapped[str | None]
    thumbprint: Mapped[str | None]
    spki: Mapped[bytes | None]
    ak_name: Mapped[bytes | None]
    boot: Mapped[str | None]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    validated_at: Mapped[datetime | None]
    serials: Mapped[str]


class ACMENonceRow(Base):
    """Nonces of ACME that were used; those that were not are nowhere."""

    __tablename__ = "acme_nonces"
    __table_args__ = (Index(None, "expires_at"), {"sqlite_with_rowid": False})

    nonce: Mapped[Key]
    expires_at: Mapped[datetime]


class AllowListTableRow(Base):
    """EKs admitted in advance. What was removed admits nobody, and is remembered: to list it again replaces it."""

    __tablename__ = "allow_list"
    __table_args__ = (_one_of("role", Role),)

    ek_fingerprint: Mapped[Key]
    role: Mapped[Role]
    hostname: Mapped[str | None]
    assigned_ip: Mapped[str | None]
    cluster_id: Mapped[str | None]
    note: Mapped[str | None]
    created_at: Mapped[datetime]
    created_by: Mapped[str]
    removed_at: Mapped[datetime | None]


class ApprovalRuleRow(Base):
    """Rules by which machines are approved without a person."""

    __tablename__ = "approval_rules"
    __table_args__ = (
        _one_of("role", Role),
        CheckConstraint("used BETWEEN 0 AND max_count", name="used"),
    )

    name: Mapped[Key]
    expression: Mapped[str]
    role: Mapped[Role]
    cluster_id: Mapped[str]
    hostname: Mapped[str | None]
    minimum_assurance: Mapped[Assurance]
    max_count: Mapped[int]
    used: Mapped[int]
    priority: Mapped[int]
    enabled: Mapped[bool]
    created_at: Mapped[datetime]
    created_by: Mapped[str]
    changed_at: Mapped[datetime]
    changed_by: Mapped[str]


class ClusterRow(Base):
    """Clusters that operators declared. One that has machines is one without a row too."""

    __tablename__ = "clusters"

    cluster_id: Mapped[Key]
    description: Mapped[str | None]
    talos_version: Mapped[str | None]
    created_at: Mapped[datetime]
    created_by: Mapped[str]
    changed_at: Mapped[datetime]
    changed_by: Mapped[str]


class RegistrationTokenRow(Base):
    """Tokens of operators that admit machines; only their SHA-256 is kept."""

    __tablename__ = "registration_tokens"
    __table_args__ = (
        _one_of("role", Role),
        CheckConstraint("uses_left BETWEEN 0 AND uses", name="uses_left"),
        CheckConstraint("length(token_sha256) = 32", name="token_sha256"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[Serial]
    token_id: Mapped[UniqueText]
    token_sha256: Mapped[UniqueBytes]
    role: Mapped[Role]
    hostname: Mapped[str | None]
    assigned_ip: Mapped[str | None]
    cluster_id: Mapped[str | None]
    uses: Mapped[int]
    uses_left: Mapped[int]
    created_at: Mapped[datetime]
    created_by: Mapped[str]
    expires_at: Mapped[datetime]
    revoked_at: Mapped[datetime | None]
    minimum_assurance: Mapped[Assurance] = mapped_column(server_default=Assurance.EK_CHAIN.value)


class ConfigTokenRow(Base):
    """Tokens good for one delivery to one AK; only their SHA-256 is kept."""

    __tablename__ = "config_tokens"
    __table_args__ = (
        CheckConstraint("length(token_sha256) = 32", name="token_sha256"),
        Index(None, "machine_id"),
        Index(None, "expires_at"),
        Index(None, "answer_until"),
        {"sqlite_with_rowid": False},
    )

    token_id: Mapped[Key]
    token_sha256: Mapped[UniqueBytes]
    machine_id: Mapped[str] = mapped_column(ForeignKey("machines.machine_id", ondelete="CASCADE"))
    ak_name: Mapped[bytes]
    issued_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    used_at: Mapped[datetime | None]
    answer: Mapped[bytes | None]
    answer_until: Mapped[datetime | None]
    withdrawn_at: Mapped[datetime | None]


class ResultRow(Base):
    """Attestation results of a machine: a ring, so that steady state does not grow it."""

    __tablename__ = "attestation_results"
    __table_args__ = (
        _one_of("verdict", Verdict),
        Index(None, "machine_id", "id"),
        Index(None, "event_log_sha256"),
        Index(
            None,
            "ima_log_sha256",
            sqlite_where=text("ima_log_sha256 IS NOT NULL"),
            postgresql_where=text("ima_log_sha256 IS NOT NULL"),
        ),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[Serial]
    machine_id: Mapped[str] = mapped_column(ForeignKey("machines.machine_id", ondelete="CASCADE"))
    at: Mapped[datetime]
    verdict: Mapped[Verdict]
    policy: Mapped[str | None]
    appraised: Mapped[Subjects | None]
    pcr_digest: Mapped[str | None]
    outcomes: Mapped[Outcomes]
    pcr_bank: Mapped[str | None]
    pcr_values: Mapped[Digests | None]
    event_log_sha256: Mapped[str | None]
    ima_log_sha256: Mapped[str | None]
    policy_sha256: Mapped[str | None]
    assurance: Mapped[Assurance | None]
    bundle_sha256: Mapped[str | None]
    nonce: Mapped[bytes | None]
    ek_key_attested: Mapped[bool | None]


class AuditRow(Base):
    """The audit chain. Triggers refuse UPDATE and DELETE; one entry has one successor.

    No foreign key: the audit outlives what it speaks of.
    """

    __tablename__ = "audit_log"
    __table_args__ = (
        CheckConstraint("length(prev_hash) = 64", name="prev_hash"),
        CheckConstraint("length(entry_hash) = 64", name="entry_hash"),
        Index(None, "machine_id", "id"),
        Index(None, "operator_cn", "id"),
        Index(None, "action", "id"),
        # By code point, which for such texts is the order of time.
        Index(None, "timestamp", postgresql_ops={"timestamp": 'COLLATE "C"'}),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[Serial]
    timestamp: Mapped[str]
    operator_cn: Mapped[str]
    operator_sub: Mapped[str | None]
    action: Mapped[str]
    machine_id: Mapped[str | None]
    prev_state: Mapped[str | None]
    new_state: Mapped[str | None]
    detail: Mapped[str | None]
    source_ip: Mapped[str | None]
    format: Mapped[int]
    prev_hash: Mapped[UniqueText]
    entry_hash: Mapped[UniqueText]


class AuditNodeRow(Base):
    """The Merkle tree over the audit log, by tiles of 256 (C2SP tlog-tiles): append-only.

    A node of level 0 is the leaf hash of the entry with id `position` + 1; one of level L + 1 is the root of
    the 256 nodes of level L from 256 times its `position` on, and is there once all of them are.
    """

    __tablename__ = "audit_nodes"
    __table_args__ = (CheckConstraint("length(hash) = 32", name="hash"), {"sqlite_with_rowid": False})

    level: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    hash: Mapped[bytes]


class AuditCheckpointRow(Base):
    """Checkpoints that we signed: at most one per size of the tree, append-only."""

    __tablename__ = "audit_checkpoints"
    __table_args__ = (
        CheckConstraint("size >= 0", name="size"),
        CheckConstraint("length(root) = 32", name="root"),
    )

    size: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    root: Mapped[bytes]
    note: Mapped[str]
    created_at: Mapped[datetime]


class AuditCountersignatureRow(Base):
    """What others said of a checkpoint: cosignatures of witnesses, RFC 3161 time stamps; append-only.

    `value` of a cosignature is its line of the note without LF, of a time stamp the DER TimeStampResp.
    """

    __tablename__ = "audit_countersignatures"
    __table_args__ = (CheckConstraint("kind IN ('cosignature', 'timestamp')", name="kind"),)

    size: Mapped[int] = mapped_column(
        ForeignKey("audit_checkpoints.size"), primary_key=True, autoincrement=False
    )
    kind: Mapped[Key]
    signer: Mapped[Key]
    value: Mapped[bytes]
    created_at: Mapped[datetime]


class ApprovalRow(Base):
    """Votes of dual control; kept when they ended. One operator has one open vote per proposal.

    `void` says why one ended without its voter; then `withdrawn_at` is set too. `certificate` (DER) is what a voter
    came with, to be looked at again. `reason` is what the voter said, `document` what was sent where the proposal binds
    only a digest of it; no vote binds either. `lapsed_at` is set when an expired vote makes room for new ones. No
    foreign key: votes are listed for what they were, whatever became of their machine.
    """

    __tablename__ = "approvals"
    __table_args__ = (
        _one_of("role", Role),
        CheckConstraint("length(proposal_digest) = 64", name="proposal_digest"),
        CheckConstraint("operator_sub <> ''", name="operator_sub"),
        CheckConstraint("consumed_at IS NULL OR withdrawn_at IS NULL", name="ended_once"),
        Index(
            None,
            "proposal_digest",
            "operator_sub",
            unique=True,
            sqlite_where=text(OPEN_VOTE),
            postgresql_where=text(OPEN_VOTE),
        ),
        # Votes of one machine, newest first; live votes of all.
        Index(None, "machine_id", "id"),
        Index(None, "expires_at"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[Serial]
    proposal_digest: Mapped[str]
    action: Mapped[str]
    machine_id: Mapped[str | None]
    subject: Mapped[str]
    operator_cn: Mapped[str]
    operator_sub: Mapped[str]
    role: Mapped[Role | None]
    hostname: Mapped[str | None]
    assigned_ip: Mapped[str | None]
    proposal: Mapped[str]
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    consumed_at: Mapped[datetime | None]
    withdrawn_at: Mapped[datetime | None]
    lapsed_at: Mapped[datetime | None]
    void: Mapped[str | None]
    certificate: Mapped[bytes | None]
    reason: Mapped[str | None]
    document: Mapped[str | None]


class OutboxRow(Base):
    """Events written with the change that they tell of. `next_attempt_at` null: done."""

    __tablename__ = "outbox"
    __table_args__ = (
        # Due rows, and done rows by age.
        Index(None, "done_at", "next_attempt_at"),
        # The order of one machine's events.
        Index(None, "machine_id", "done_at", "sequence"),
        {"sqlite_autoincrement": True},
    )

    sequence: Mapped[Serial]
    id: Mapped[UniqueText]
    event: Mapped[EventWord]
    machine_id: Mapped[str | None]
    payload: Mapped[Payload]
    created_at: Mapped[datetime]
    attempts: Mapped[int]
    next_attempt_at: Mapped[datetime | None]
    done_at: Mapped[datetime | None]


class HandoverRow(Base):
    """An event that a subscriber has not handled. `next_attempt_at` null: given up."""

    __tablename__ = "handovers"
    __table_args__ = (
        UniqueConstraint("subscriber", "id"),
        Index(None, "created_at"),
        # Due ones; the order of one machine's.
        Index(None, "subscriber", "next_attempt_at"),
        Index(
            None,
            "subscriber",
            "machine_id",
            "sequence",
            sqlite_where=text("next_attempt_at IS NOT NULL"),
            postgresql_where=text("next_attempt_at IS NOT NULL"),
        ),
        {"sqlite_autoincrement": True},
    )

    sequence: Mapped[Serial]
    subscriber: Mapped[str]
    id: Mapped[str]
    event: Mapped[EventWord]
    machine_id: Mapped[str | None]
    payload: Mapped[Payload]
    created_at: Mapped[datetime]
    attempts: Mapped[int]
    next_attempt_at: Mapped[datetime | None]
    error: Mapped[str]


class RateLimitRow(Base):
    """One theoretical arrival time (GCRA) per limited key."""

    __tablename__ = "rate_limits"
    __table_args__ = (Index(None, "tat_us"), {"sqlite_with_rowid": False})

    key: Mapped[Key]
    tat_us: Mapped[int]


class ActRow(Base):
    """An act of an operator that was done, by the key that they gave it. Digests; no secret, no answer with one."""

    __tablename__ = "acts"
    __table_args__ = (
        CheckConstraint("status IS NOT NULL OR answer IS NULL", name="answer"),
        UniqueConstraint("operator", "number"),
        Index(None, "done_at"),
    )

    key: Mapped[bytes] = mapped_column(primary_key=True)
    operator: Mapped[bytes]
    number: Mapped[int]
    request: Mapped[bytes]
    entry_id: Mapped[int]
    status: Mapped[int | None]
    answer: Mapped[str | None]
    done_at: Mapped[datetime]


class ChoreRow(Base):
    """What one process does for all that share the database: who, and until when unless it says so again."""

    __tablename__ = "chores"

    name: Mapped[Key]
    holder: Mapped[str]
    until: Mapped[datetime]


class KnownKeyRow(Base):
    """Public keys of the service: a process that has none of its purpose is of another service."""

    __tablename__ = "known_keys"

    purpose: Mapped[Key]
    fingerprint: Mapped[Key]
    known_since: Mapped[datetime]


class PolicyRow(Base):
    """Immutable policies by name and version."""

    __tablename__ = "policies"
    __table_args__ = (CheckConstraint("version >= 1", name="version"),)

    name: Mapped[Key]
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    sha256: Mapped[str]
    document: Mapped[str]
    created_at: Mapped[datetime]
    created_by: Mapped[str]


class PolicyAssignmentRow(Base):
    """Which policy applies where; one per scope and subject."""

    __tablename__ = "policy_assignments"
    __table_args__ = (
        CheckConstraint("scope IN ('fleet', 'cluster', 'role', 'machine')", name="scope"),
        CheckConstraint("(scope = 'fleet') = (subject = '*')", name="subject"),
        ForeignKeyConstraint(["policy_name", "policy_version"], ["policies.name", "policies.version"]),
    )

    scope: Mapped[Key]
    subject: Mapped[Key]
    policy_name: Mapped[str]
    policy_version: Mapped[int]
    assigned_at: Mapped[datetime]
    assigned_by: Mapped[str]
    agreed: Mapped[bool] = mapped_column(server_default=false())


class ConfigurationRow(Base):
    """Immutable versions of base configurations and of machines' patches, encrypted (docs/adr/0197).

    `machine_id` of a patch is that of its machine, `cluster_id` and `role` are of a base; the others are empty.
    """

    __tablename__ = "configurations"
    __table_args__ = (
        CheckConstraint("version >= 1", name="version"),
        CheckConstraint("(machine_id = '') = (cluster_id != '' AND role != '')", name="place"),
        CheckConstraint("(cluster_id = '') = (role = '')", name="base"),
    )

    cluster_id: Mapped[Key]
    role: Mapped[Key]
    machine_id: Mapped[Key]
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    sha256: Mapped[str]
    size_bytes: Mapped[int]
    talos_version: Mapped[str]
    note: Mapped[str | None]
    created_at: Mapped[datetime]
    created_by: Mapped[str]
    kek_id: Mapped[str]
    wrapped: Mapped[bytes]
    blob: Mapped[bytes]


class ActiveConfigurationRow(Base):
    """Which version is delivered: one per place. `mark`: made under the key of that version, for this place."""

    __tablename__ = "active_configurations"
    __table_args__ = (
        ForeignKeyConstraint(
            ["cluster_id", "role", "machine_id", "version"],
            [
                "configurations.cluster_id",
                "configurations.role",
                "configurations.machine_id",
                "configurations.version",
            ],
        ),
    )

    cluster_id: Mapped[Key]
    role: Mapped[Key]
    machine_id: Mapped[Key]
    version: Mapped[int]
    previous: Mapped[int | None]
    sha256: Mapped[str]
    activated_at: Mapped[datetime]
    activated_by: Mapped[str]
    agreed: Mapped[bool] = mapped_column(server_default=false())
    mark: Mapped[bytes]


class RevisionRow(Base):
    """How often something was changed that judgements rest on, so that whoever writes one can compare."""

    __tablename__ = "revisions"

    what: Mapped[Key]
    revision: Mapped[int]


class PolicyHistoryRow(Base):
    """Which policy applied where, and since when: append-only. Without name and version: nothing did."""

    __tablename__ = "policy_history"
    __table_args__ = (
        CheckConstraint("scope IN ('fleet', 'cluster', 'role', 'machine')", name="scope"),
        CheckConstraint("(policy_name IS NULL) = (policy_version IS NULL)", name="policy"),
        Index(None, "scope", "subject", "id"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[Serial]
    scope: Mapped[str]
    subject: Mapped[str]
    policy_name: Mapped[str | None]
    policy_version: Mapped[int | None]
    at: Mapped[datetime]
    by: Mapped[str]


class SavedQueryRow(Base):
    """What somebody kept under a name: a query, or a view of a list. `owner`: their stable subject, or break-glass."""

    __tablename__ = "saved_queries"
    __table_args__ = (
        UniqueConstraint("owner", "name"),
        # What others share.
        Index(None, "shared", "id"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[Serial]
    owner: Mapped[str]
    owner_cn: Mapped[str]
    name: Mapped[str]
    query: Mapped[str]
    description: Mapped[str | None]
    shared: Mapped[bool]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    kind: Mapped[str] = mapped_column(server_default="query")


class ConsoleCodeRow(Base):
    """Codes that machines show on their consoles (RFC 8628); secrets as SHA-256 alone. Nothing is released on a row."""

    __tablename__ = "console_codes"
    __table_args__ = (
        CheckConstraint("state IN ('pending', 'approved', 'denied')", name="state"),
        CheckConstraint("token_sha256 IS NULL OR state = 'approved'", name="token_sha256"),
        Index(None, "state", "expires_at"),
        Index(None, "kept_until"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[Serial]
    user_code: Mapped[UniqueText]
    device_sha256: Mapped[UniqueBytes]
    client_id: Mapped[str]
    hw_uuid: Mapped[str | None]
    hw_mac: Mapped[str | None]
    hw_serial: Mapped[str | None]
    hostname: Mapped[str | None]
    source: Mapped[str]
    asked_at: Mapped[datetime]
    expires_at: Mapped[datetime]
    state: Mapped[str]
    decided_at: Mapped[datetime | None]
    decided_by: Mapped[str | None]
    token_sha256: Mapped[bytes | None] = mapped_column(unique=True)
    token_until: Mapped[datetime | None]
    token_source: Mapped[str | None]
    kept_until: Mapped[datetime]
