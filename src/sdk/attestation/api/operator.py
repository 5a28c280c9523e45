"""What operators do (PROTOCOL §7, ITL-REFERENCE §4)."""

# Longer than 500 lines: one schema after the other; each stands alone.
from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from attestation.api.approvals import ApprovalDetail
from attestation.api.base import (
    AssignedIP,
    ClusterId,
    ConfirmName,
    Hostname,
    MachineId,
    Reason,
    Wire,
    spelled,
)
from attestation.machines import DEFAULT_CLUSTER, Role, Status, Trust
from attestation.machines.chips import MarkKind
from attestation.machines.labels import MAX_LABELS, checked_key, checked_value
from attestation.results import Assurance, Subject, Verdict

__all__ = [
    "AKResetRequest",
    "AKVouchingDetail",
    "AllowListEntry",
    "AllowListImport",
    "AllowListImported",
    "AllowListItem",
    "AllowListPage",
    "ApproveRequest",
    "AuditEntryDetail",
    "AuditPage",
    "AuditState",
    "AuditVerification",
    "CheckDetail",
    "ConfigurationNotDelivered",
    "EKCertificateDetail",
    "HardwareDetail",
    "HardwareRequest",
    "KeyBindingDetail",
    "KeysDetail",
    "LabelsRequest",
    "LastResult",
    "LockRequest",
    "MachineDetail",
    "MachinePage",
    "OpenActivation",
    "PolicyAssignment",
    "PolicyAssignmentRequest",
    "PolicyChangeDetail",
    "PolicyDetail",
    "PolicyHistoryPage",
    "PolicyList",
    "ReasonRequest",
    "RegistrationTokenCreated",
    "RegistrationTokenDetail",
    "RegistrationTokenPage",
    "RegistrationTokenRequest",
    "RelativeDetail",
    "ReplaceRequest",
    "ResultDetail",
    "ResultPage",
    "RevokeRequest",
    "RoleChangeRequest",
    "UnprovenRow",
    "WhoAmI",
]


Cursor = Annotated[str | None, Field(description="Pass as `cursor` to get the next page; null at the end")]


class WhoAmI(Wire):
    """`GET /api/v1/whoami`: whom the service takes the caller for."""

    name: str = Field(description="As it stands in the audit")
    subject: str | None = Field(
        description="What stays the same when names change: issuer and `sub`, or the key of a certificate"
    )
    method: Literal["oidc", "certificate", "break_glass"]
    roles: list[str] = Field(
        description="`operator`, `viewer`, `auditor`, `metrics`, or `operator:<cluster>`; empty for break-glass"
    )
    rights: list[str] = Field(description="As routes declare them in `x-access`: `read`, `act`, `audit`")
    clusters: dict[str, list[str]] = Field(
        default={},
        description="In which clusters, for each right that does not hold in all; on routes with `x-reach`",
    )


class EKCertificateDetail(Wire):
    """What the EK certificate says of its TPM."""

    subject: str
    manufacturer: str
    model: str
    firmware: str
    sha256: str


class LastResult(Wire):
    """The newest attestation result in one line."""

    verdict: Verdict
    at: datetime
    policy: str | None
    failed: str | None = Field(description="Names of the failed checks, or null")


class RelativeDetail(Wire):
    """Another machine with the same mark of a chip; one that was deleted stays known."""

    machine_id: str
    mark: MarkKind
    same_chip: bool = Field(description="The mark proves that both are one TPM; else it is a hint")
    status: Status | None = Field(
        description="Its last one; null where it waited and was never decided about"
    )
    deleted_at: datetime | None


class ConfigurationNotDelivered(Wire):
    """The configuration of a machine did not arrive there yet."""

    why: str = Field(description="In words; what the machine says of itself is its own word")
    since: datetime = Field(description="From when on it was to have it: attested first, or ordered anew")


class HardwareDetail(Wire):
    """What confidential hardware a machine was seen on last, by authentic evidence; hex."""

    kind: str = Field(description="Kind of the evidence", examples=["sev_snp", "tdx"])
    chip: str | None = Field(description="CHIP_ID or PPID; null where it is hidden")
    guest: str | None = Field(description="HOST_DATA or MRCONFIGID; null where nothing names the guest")
    csp_id: str | None = Field(description="Whose VLEK signed; null where the chip's own key did")
    ephemeral: bool = Field(description="The machine is known by nothing that outlasts its boot")
    approved_chip: str | None = Field(
        description="The chip that operators approved, empty where it was hidden; null before, and in lists"
    )
    approved_csp_id: str | None = Field(description="Likewise")
    vouches: bool = Field(description="Its last verified evidence gives the level `tee`")


class MachineDetail(Wire):
    """One machine; never a token, nonce or key."""

    machine_id: str
    version: int
    ek_fingerprint: str
    ek_source: Literal["cert", "pub", "sev-snp", "tdx"] = Field(
        description="`sev-snp`, `tdx`: it has no TPM; ek_* and ak_* are of its hardware and its subject key"
    )
    ek_template: str
    expected: bool = Field(
        default=False,
        description="A receipt alone tells of it: nothing was proven, and nobody can approve it",
    )
    ek_certificate: EKCertificateDetail | None
    assurance: Assurance
    hardware: HardwareDetail | None = Field(
        default=None, description="Confidential hardware; null where none was seen"
    )
    ek_chain_ok: bool
    ek_allow_listed: bool
    hw_uuid: str
    hw_mac: str
    hw_serial: str
    hw_product: str
    desired_role: Role | None
    role: Role | None
    status: Status
    cluster_id: str
    desired_cluster_id: str | None = Field(
        default=None, description="The cluster that it asked for: a wish, never obeyed"
    )
    alarm: str | None = Field(
        default=None,
        description="The newest alarm about it, in words, until an operator admits or unlocks it",
    )
    hostname: str | None
    assigned_ip: str | None
    registered_from: str | None
    registered_at: datetime
    attested_at: datetime | None
    locked_at: datetime | None
    revoked_at: datetime | None
    rejected_at: datetime | None
    wipe_pending: bool
    wiped_at: datetime | None
    redeliver_pending: bool = Field(description="Its configuration is offered at its next good attestation")
    configuration_not_delivered: ConfigurationNotDelivered | None = Field(
        default=None, description="Null where it has its configuration, or is not to have one yet"
    )
    ak_activated_at: datetime | None
    ak_name: str | None
    reset_count: int | None
    restart_count: int | None
    firmware_version: str | None
    firmware_attested: str | None = Field(
        default=None, description="Firmware version that the EK itself vouched for, where it did"
    )
    firmware_blocked: str | None = Field(default=None, description="The advisory that forbids its firmware")
    shares_names: bool = Field(
        default=False, description="Another machine of its cluster had its host name or address before"
    )
    event_log_sha256: str | None = Field(
        default=None, description="The kept event log that led to its PCRs last; null where none is known"
    )
    trust: Trust
    trust_expires_at: datetime | None
    heartbeat_missed_at: datetime | None = Field(
        default=None, description="When it was noticed that it did not attest again in time"
    )
    last_result: LastResult | None
    console_codes: list[str] = Field(
        default=[],
        description="Codes that wait on consoles which say the same of their hardware; only where one machine is "
        "asked for. They prove nothing of it",
    )
    relatives: list[RelativeDetail] = Field(
        default=[],
        description="Machines that are or may be the same chip; only where one machine is asked for",
    )
    approvals: list[ApprovalDetail] = Field(
        default=[], description="Live votes of dual control, oldest first"
    )
    labels: dict[str, str] = Field(
        default={}, description="What operators wrote on it; no decision rests on them"
    )


class KeyBindingDetail(Wire):
    """An attestation key that was activated for an EK; it belongs to it for ever."""

    ak_name: str = Field(description="Name of the key in the TPM, hex")
    machine_id: str = Field(description="Under which id it was activated first")
    bound_at: datetime


class OpenActivation(Wire):
    """A credential that was given out for the TPM and can still be answered; what is in it stays secret."""

    issued_at: datetime
    expires_at: datetime


class AKVouchingDetail(Wire):
    """Who vouches for the attestation key of a machine."""

    subject: str
    issuer: str
    sha256: str = Field(description="SHA-256 of the certificate's DER")
    ok: bool = Field(description="A CA of ITL_AK_CA_DIR leads to it, and it is about the key that counts now")
    reason: str
    anchor_sha256: str | None
    judged_at: datetime


class KeysDetail(Wire):
    """The keys of a machine: which are proven, which is awaited, which were before. Names and times, no key."""

    machine_id: str
    ek_fingerprint: str
    ek_template: str
    ek_alternatives: list[str] = Field(description="Fingerprints of further EKs that the same TPM proved")
    ak_name: str | None = Field(
        description="The attestation key that counts now; null where none is activated"
    )
    ak_activated_at: datetime | None
    earlier: list[KeyBindingDetail] = Field(
        description="Other keys that were activated for the EK, newest first"
    )
    activations: list[OpenActivation] = Field(
        description="Anybody who knows the EK can have one made: it says that somebody came, not who"
    )
    ak_certificate: AKVouchingDetail | None = Field(
        default=None, description="The certificate by which somebody vouches for the attestation key"
    )


class MachinePage(Wire):
    """Machines, newest first."""

    items: list[MachineDetail]
    next_cursor: Cursor


class ApproveRequest(Wire):
    """Admit a pending machine in a role."""

    role: Role
    hostname: Hostname | None = None
    assigned_ip: AssignedIP | None = None
    cluster_id: ClusterId = Field(
        default=DEFAULT_CLUSTER, description="Whose policies and configuration it gets"
    )
    accept_ek: bool = Field(
        default=False,
        strict=True,
        description="Admit this EK by name: it goes on the allow-list, whoever vouches for it",
    )
    reason: Reason | None = None
    expected_version: int | None = Field(
        default=None, ge=1, description="Refuse with 409 unless the machine is still at this version"
    )


class RoleChangeRequest(Wire):
    """Give an admitted machine another role or cluster; what is left out stays as it is."""

    role: Role
    hostname: Hostname | None = None
    assigned_ip: AssignedIP | None = None
    cluster_id: ClusterId | None = None
    reason: Reason
    expected_version: int | None = Field(
        default=None, ge=1, description="Refuse with 409 unless the machine is still at this version"
    )


class ReplaceRequest(Wire):
    """Let a machine that waits take the place of another one, which is revoked."""

    new: MachineId = Field(
        description="The machine that waits; it inherits role, cluster, host name and address"
    )
    accept_ek: bool = Field(
        default=False, strict=True, description="Admit its EK by name: it goes on the allow-list"
    )
    reason: Reason
    expected_version: int | None = Field(
        default=None, ge=1, description="Refuse with 409 unless the new machine is still at this version"
    )
    confirm_name: ConfirmName | None = None


LabelKey = Annotated[
    str,
    Field(max_length=317, description="Of a label, as Kubernetes has them", examples=["rack"]),
    AfterValidator(lambda text: spelled(checked_key, text)),
]
LabelValue = Annotated[str, Field(max_length=63), AfterValidator(lambda text: spelled(checked_value, text))]


class LabelsRequest(Wire):
    """Write labels on a machine, or take them off; what is not named stays."""

    set: dict[LabelKey, LabelValue] = Field(default={}, max_length=MAX_LABELS, examples=[{"rack": "4"}])
    remove: list[LabelKey] = Field(default=[], max_length=MAX_LABELS)


class ReasonRequest(Wire):
    """An act that must be explained."""

    reason: Reason


class AKResetRequest(ReasonRequest):
    """Let a machine activate another attestation key."""

    confirm_name: ConfirmName | None = None


class HardwareRequest(ReasonRequest):
    """What an operator saw of a machine's hardware, and why it shall be believed from now on."""

    chip: Annotated[str, Field(pattern=r"^[0-9a-f]*$", max_length=128)] | None = Field(
        default=None, description="CHIP_ID or PPID as it was shown, hex; compared"
    )
    expected_version: int | None = Field(
        default=None, ge=1, description="Refuse with 409 unless the machine is still at this version"
    )


class LockRequest(Wire):
    """An act that may be explained."""

    reason: Reason | None = None


class RevokeRequest(Wire):
    """End a machine's admission for good."""

    wipe: bool = Field(default=False, strict=True)
    reason: Reason | None = None
    confirm_name: ConfirmName | None = None


class CheckDetail(Wire):
    """One check of an appraisal."""

    check: str
    outcome: Literal["passed", "failed", "flagged", "reported", "undecided"]
    expected: str | None = None
    found: str | None = None
    note: str | None = None


class ResultDetail(Wire):
    """One stored attestation result, with every check."""

    result_id: int
    machine_id: str
    at: datetime
    verdict: Verdict
    policy: str | None
    boot_state_appraised: list[Subject] = Field(
        description="What of the boot was compared with reference values and is as expected"
    )
    pcr_digest: str | None
    checks: list[CheckDetail]


class ResultPage(Wire):
    """Results of one machine, newest first."""

    items: list[ResultDetail]
    next_cursor: Cursor


class RegistrationTokenRequest(Wire):
    """Let whoever presents the token and proves a TPM be `registered` at once."""

    role: Role
    hostname: Hostname | None = None
    assigned_ip: AssignedIP | None = None
    cluster_id: ClusterId | None = Field(default=None, description="Null is `default`")
    minimum_assurance: Assurance = Field(
        default=Assurance.EK_CHAIN, description="A machine that is vouched for less waits for an operator"
    )
    uses: int = Field(default=1, ge=1, le=10_000)
    expires_in_seconds: int = Field(ge=60, le=31_536_000)


class RegistrationTokenDetail(Wire):
    """A registration token without its secret."""

    token_id: str
    role: Role
    hostname: str | None
    assigned_ip: str | None
    cluster_id: str | None
    minimum_assurance: Assurance
    uses: int
    uses_left: int
    created_at: datetime
    created_by: str
    expires_at: datetime
    revoked_at: datetime | None


class RegistrationTokenCreated(RegistrationTokenDetail):
    """A registration token, with its secret: shown this once, stored hashed."""

    SHOWN_ONCE = True

    token: str
    jwks_sha256: str | None = Field(
        default=None,
        pattern=r"^[0-9a-f]{64}$",
        description="Digest of the service's keys: beside the token, it tells a new machine whom to believe",
    )


class RegistrationTokenPage(Wire):
    """Registration tokens, newest first."""

    items: list[RegistrationTokenDetail]
    next_cursor: Cursor


class AllowListEntry(Wire):
    """One EK admitted in advance."""

    ek_fingerprint: Annotated[
        str, Field(pattern=r"^[0-9a-f]{96}$", description="SHA-384 of the EK's SPKI DER, 96 lower-case hex")
    ]
    role: Role
    hostname: Hostname | None = None
    assigned_ip: AssignedIP | None = None
    cluster_id: ClusterId | None = Field(default=None, description="Null is `default`")
    note: Annotated[str, Field(max_length=256, pattern=r"^[^\x00-\x1f\x7f]*$")] | None = None


class AllowListImport(Wire):
    """`POST /api/v1/allow-list` as JSON; all or nothing."""

    entries: list[AllowListEntry] = Field(min_length=1, max_length=10_000)


class AllowListImported(Wire):
    """How the import ended."""

    added: int
    replaced: int


class AllowListItem(AllowListEntry):
    """A stored entry."""

    created_at: datetime
    created_by: str


class AllowListPage(Wire):
    """Allow-list entries in the order of their fingerprints."""

    items: list[AllowListItem]
    next_cursor: Cursor


class AuditEntryDetail(Wire):
    """One entry of the audit chain, every column."""

    id: int
    timestamp: str
    operator_cn: str
    operator_sub: str | None
    action: str
    machine_id: str | None
    prev_state: str | None
    new_state: str | None
    detail: str | None
    source_ip: str | None
    format: int
    prev_hash: str
    entry_hash: str


class AuditPage(Wire):
    """Audit entries, newest first."""

    items: list[AuditEntryDetail]
    next_cursor: Cursor
    searched_to: int | None = Field(
        default=None,
        description="With `text`: entries down to this number were looked at, older ones are behind `next_cursor`; "
        "null where all that fit otherwise were",
    )


class UnprovenRow(Wire):
    """A row that gives authority and is not what the audit log says, or an entry whose row is not there."""

    kind: str = Field(description="Which kind of row", examples=["allow-list"])
    key: str = Field(description="Which one: its EK, id, serial number or place")
    problem: str = Field(description="What is wrong, in words")
    entry_id: int | None = Field(description="The last entry about it; null where there is none")


class AuditState(Wire):
    """The rows that give authority, compared with the log."""

    rows: int = Field(description="Rows that give authority now")
    adopted: int = Field(description="Of these, those that an upgrade found; no entry says who wrote them")
    unproven: list[UnprovenRow] = Field(description="What does not fit, a hundred at most")
    more: int = Field(description="How many there are beyond these")


class AuditVerification(Wire):
    """What a walk over the whole log found: chain, tree and stored checkpoints; and the rows that rest on it."""

    valid: bool
    entries: int = Field(description="Entries that were good")
    root_hash: str | None = Field(description="`entry_hash` of the last entry; null where invalid or empty")
    first_invalid_id: int | None = Field(description="The first entry that does not fit, or may not")
    error: str | None
    tree_size: int = Field(default=0, description="Entries in the tree; 0 where invalid")
    tree_root: str | None = Field(default=None, description="Its root, base64; null where invalid")
    checkpoints: int = Field(default=0, description="Signed checkpoints that the log still has as beginnings")
    checkpoint_size: int | None = Field(default=None, description="Entries that the newest of them covers")
    state: AuditState | None = Field(default=None, description="Null where the log itself is invalid")


class PolicyDetail(Wire):
    """One immutable policy version."""

    name: str
    version: int
    sha256: str
    created_at: datetime | None
    created_by: str
    document: dict[str, Any]


class PolicyAssignmentRequest(Wire):
    """Which policy applies there from now on."""

    policy: Annotated[
        str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}@[1-9][0-9]{0,8}$", examples=["workers@1"])
    ]


class PolicyAssignment(Wire):
    """A policy assigned to the fleet, a cluster, a role or one machine; the narrowest wins."""

    scope: Literal["fleet", "cluster", "role", "machine"]
    subject: str = Field(description="`*` for the fleet, else the cluster id, role or machine id")
    policy: str
    assigned_at: datetime
    assigned_by: str
    agreed: bool = Field(default=False, description="Several operators agreed to it (dual control)")


class PolicyList(Wire):
    """All policies and where they apply."""

    policies: list[PolicyDetail]
    assignments: list[PolicyAssignment]


class PolicyChangeDetail(Wire):
    """What began to apply somewhere."""

    scope: Literal["fleet", "cluster", "role", "machine"]
    subject: str
    policy: str | None = Field(description="Null: from then on nothing is assigned there")
    at: datetime
    by: str = Field(description="Who asked last; the audit names everybody who agreed")


class PolicyHistoryPage(Wire):
    """Changes of assignments, newest first."""

    items: list[PolicyChangeDetail]
    next_cursor: Cursor
