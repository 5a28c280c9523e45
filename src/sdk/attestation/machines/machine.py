"""A machine as the rules see it: immutable, without a database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

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
class TPMIdentity:
    """Who a machine is to TPM evidence: its EK, by which it is known, and the AK that is bound to it.

    `ek_chain_ok`: a pinned vendor anchor vouches for the EK; `ek_allow_listed`: an operator did, in advance.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a machine is to another kind of evidence.

    Args:
        value: What names its hardware; no two machines have the same of a kind.
        state: What its last verified evidence told, as its kind wants it; None before the first.
    """

    value: bytes
    state: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One physical machine. What its TPM proves of it stands in `tpm`; other kinds of evidence have an `Identity`.

    `version` grows with every operator's or status change: whoever decides about version n cannot thereby
    change version n + 1.

    `cluster_id` is what operators decided, `desired_cluster_id` what the machine asked for; `alarm` is the newest
    alarm about it, in words, until an operator admits it. `kept_bytes` is how much its certificates take.

    `event_log_sha256` names the event log (hex) that led to the PCRs last quoted. `heartbeat_missed_at` is when
    the lapse of its lease was noticed. `firmware_attested` is the firmware version (u64) that the EK itself
    vouched for, `firmware_blocked` the advisory that forbids the firmware, or None. `unlock_pending`: an operator
    unlocked it, and it has not acknowledged that yet. `pinned_keys` names the key set (`keys.key_set_sha256`) that it
    acknowledged to pin, or None where it was never asked.
    `config_owed_since` is from when on it was to have a configuration that it has not acknowledged to have applied, or
    None; `config_failure` says in words why it has not, where more is known than that it did not fetch it yet.
    `shares_names` is True where another machine of its cluster had its host name or address before these became unique.
    """

    machine_id: str
    version: int
    status: Status
    role: Role | None
    cluster_id: str
    tpm: TPMIdentity
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

    def trust(self, at: datetime) -> Trust:
        """Return what the last result is worth at *at*; age and failure only lower it."""
        if self.last_verdict is None or self.last_verdict is Verdict.INDETERMINATE:
            return Trust.UNKNOWN
        if self.last_verdict is Verdict.FAILED:
            return Trust.FAILED
        if self.trust_expires_at is None or at >= self.trust_expires_at:
            return Trust.STALE
        return Trust.VERIFIED
