"""A machine as the rules see it: immutable, without a database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from attestation.errors import TPMRequired
from attestation.machines.lifecycle import Role, Status
from attestation.results import Assurance, Verdict

DEFAULT_CLUSTER: Final = "default"
"""Where a machine belongs as long as no operator decided otherwise."""


class Trust(StrEnum):
    """What the last result is worth now (PROTOCOL §7)."""

    VERIFIED = "verified"
    FAILED = "failed"
    STALE = "stale"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockState:
    """Clock and counters of the TPM at the last verified quote, per AK (TPM 2.0 Part 2, TPMS_CLOCK_INFO).

    Args:
        clock_ms: Milliseconds, u64.
        reset_count: Number of TPM Resets, u32.
        restart_count: Number of TPM Restarts or Resumes, u32.
        safe: False where the clock may have been set back by a power loss.
        firmware_version: u64, four words of sixteen bits.
    """

    clock_ms: int
    reset_count: int
    restart_count: int
    safe: bool
    firmware_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EKCertificateInfo:
    """What an EK certificate says of its TPM; shown to operators."""

    subject: str
    manufacturer: str
    model: str
    firmware: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """What a machine is known by, and the key that is bound to it: EK and AK of its TPM.

    `ek_chain_ok`: a pinned vendor anchor vouches for the EK; `ek_allow_listed`: an operator did, in advance.

    A confidential machine without a TPM (PROTOCOL §9) is known by its hardware: `ek_source` is `sev-snp` or `tdx`,
    `ek_fingerprint` its hardware fingerprint, `ek_public` empty, `ek_template` says what the fingerprint names;
    `ak_public` is the SubjectPublicKeyInfo of its subject key, DER, and `ak_name` the SHA-384 of that.
    """

    ek_fingerprint: str
    ek_public: bytes
    ek_source: str
    ek_template: str
    ek_certificate: EKCertificateInfo | None
    ek_chain_ok: bool
    ek_allow_listed: bool
    ak_public: bytes | None
    ak_name: bytes | None
    ak_activated_at: datetime | None


TEES: Final = frozenset({"sev-snp", "tdx"})
"""What a confidential machine may be known by in place of a TPM."""
NAMED_GUEST: Final = "guest"
EPHEMERAL: Final = "boot"
"""`Anchor.ek_template`: the fingerprint names a guest of a chip, or nothing that outlasts a boot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a machine is to another kind of evidence.

    Args:
        value: What names its hardware; no two machines have the same of a kind.
        state: What its last verified evidence told, as its kind wants it; None before the first.
        guest: HOST_DATA or MRCONFIGID with which a machine without a TPM was introduced; None beside a TPM.
        approved_chip: The chip that operators approved, from what was seen: CHIP_ID or PPID, empty where it is hidden;
            None before.
        approved_csp_id: Likewise whose VLEK may sign in place of the chip's own key.
    """

    value: bytes
    state: Mapping[str, Any] | None = None
    guest: bytes | None = None
    approved_chip: bytes | None = None
    approved_csp_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenHardware:
    """What authentic evidence showed last of the hardware that a machine runs on; nobody decided about it thereby.

    Args:
        kind: The kind of evidence, by its name.
        chip: CHIP_ID or PPID; empty where it is hidden.
        guest: HOST_DATA or MRCONFIGID.
        csp_id: Of a VLEK; None where a VCEK signs.
    """

    kind: str
    chip: bytes
    guest: bytes
    csp_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine. What it is known by stands in `anchor`; kinds of evidence besides a TPM's have an `Identity`.

    `version` grows with every operator's or status change: whoever decides about version n cannot thereby
    change version n + 1.

    `cluster_id` is what operators decided, `desired_cluster_id` what the machine asked for; `alarm` is the newest
    alarm about it, in words, until an operator admits or unlocks it. `kept_bytes` is how much its certificates take.

    `event_log_sha256` names the event log (hex) that led to the PCRs last quoted. `heartbeat_missed_at` is when
    the lapse of its lease was noticed. `firmware_attested` is the firmware version (u64) that the EK itself
    vouched for, `firmware_blocked` the advisory that forbids the firmware, or None. `unlock_pending`: an operator
    unlocked it, and it has not acknowledged that yet. `pinned_keys` names the key set (`keys.key_set_sha256`) that it
    acknowledged to pin, or None where it was never asked.
    `config_owed_since` is from when on it was to have a configuration that it has not acknowledged to have applied, or
    None; `config_failure` says in words why it has not, where more is known than that it did not fetch it yet.
    `shares_names` is True where another machine of its cluster had its host name or address before these became unique.
    `hardware` is what was seen last of confidential hardware; `vouched_by_hardware`: its last verified evidence came
    from the chip that operators approved, and matched a reference value (level `tee`).
    `last_result_from` is the address that the evidence of the last result came from.
    """

    machine_id: str
    version: int
    status: Status
    role: Role | None
    cluster_id: str
    anchor: Anchor
    assurance: Assurance
    hw_uuid: str
    hw_mac: str
    hw_serial: str
    hw_product: str
    desired_role: Role | None
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
    config_owed_since: datetime | None
    clock: ClockState | None
    last_verdict: Verdict | None
    last_result_at: datetime | None
    last_policy: str | None
    last_failed: str | None
    last_result_key: str | None
    trust_expires_at: datetime | None
    directive_sha256: bytes | None
    event_log_sha256: str | None = None
    heartbeat_missed_at: datetime | None = None
    firmware_attested: int | None = None
    firmware_blocked: str | None = None
    desired_cluster_id: str | None = None
    alarm: str | None = None
    kept_bytes: int = 0
    unlock_pending: bool = False
    pinned_keys: bytes | None = None
    shares_names: bool = False
    config_failure: str | None = None
    hardware: SeenHardware | None = None
    vouched_by_hardware: bool = False
    last_result_from: str | None = None

    @property
    def fingerprint(self) -> str:
        """The name of its TPM or its hardware, 96 lower-case hex: what a statement is addressed to."""
        return self.anchor.ek_fingerprint

    @property
    def key_name(self) -> bytes | None:
        """The Name of its AK, or the SHA-384 of its subject key's SubjectPublicKeyInfo; None before it has one."""
        return self.anchor.ak_name

    @property
    def tee(self) -> str | None:
        """`sev-snp` or `tdx` where that is what it is known by; None where it has a TPM."""
        return self.anchor.ek_source if self.anchor.ek_source in TEES else None

    @property
    def expected(self) -> bool:
        """True if a receipt alone tells of it: it has no key, and nothing of it was proven."""
        return self.tee is None and not self.anchor.ek_public

    @property
    def ephemeral(self) -> bool:
        """True if nothing that it is known by outlasts its boot."""
        return self.tee is not None and self.anchor.ek_template == EPHEMERAL

    @property
    def tpm(self) -> Anchor:
        """EK and AK.

        Raises:
            TPMRequired: It has no TPM: what was asked for needs one.
        """
        if self.tee is not None:
            raise TPMRequired("this machine is known by its confidential hardware: it has no TPM")
        return self.anchor

    @property
    def vouched_as(self) -> Assurance:
        """How well it is vouched for, its hardware counted."""
        best = Assurance.TEE if self.vouched_by_hardware else Assurance.NONE
        return max(self.assurance, best, key=lambda level: level.level)

    def trust(self, at: datetime) -> Trust:
        """Return what the last result is worth at *at*; age and failure only lower it."""
        if self.last_verdict is None or self.last_verdict is Verdict.INDETERMINATE:
            return Trust.UNKNOWN
        if self.last_verdict is Verdict.FAILED:
            return Trust.FAILED
        if self.trust_expires_at is None or at >= self.trust_expires_at:
            return Trust.STALE
        return Trust.VERIFIED
