"""A machine as operators see it: never a token, nonce or key (PROTOCOL §7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from attestation.api import (
    ApprovalDetail,
    ConfigurationNotDelivered,
    EKCertificateDetail,
    LastResult,
    MachineDetail,
)
from attestation.machines import Machine


def machine_detail(
    machine: Machine, approvals: Sequence[ApprovalDetail], labels: Mapping[str, str], at: datetime
) -> MachineDetail:
    """Return *machine* with its live votes and labels as operators see it at the instant *at*."""
    certificate, clock = machine.ek_certificate, machine.clock
    return MachineDetail(
        machine_id=machine.machine_id,
        version=machine.version,
        ek_fingerprint=machine.ek_fingerprint,
        ek_source="cert" if machine.ek_source == "cert" else "pub",
        ek_template=machine.ek_template,
        ek_certificate=EKCertificateDetail(
            subject=certificate.subject,
            manufacturer=certificate.manufacturer,
            model=certificate.model,
            firmware=certificate.firmware,
            sha256=certificate.sha256,
        )
        if certificate
        else None,
        assurance=machine.assurance,
        ek_chain_ok=machine.ek_chain_ok,
        ek_allow_listed=machine.ek_allow_listed,
        hw_uuid=machine.hw_uuid,
        hw_mac=machine.hw_mac,
        hw_serial=machine.hw_serial,
        hw_product=machine.hw_product,
        desired_role=machine.desired_role,
        role=machine.role,
        status=machine.status,
        cluster_id=machine.cluster_id,
        desired_cluster_id=machine.desired_cluster_id,
        alarm=machine.alarm,
        hostname=machine.hostname,
        assigned_ip=machine.assigned_ip,
        registered_from=machine.registered_from,
        registered_at=machine.registered_at,
        attested_at=machine.attested_at,
        locked_at=machine.locked_at,
        revoked_at=machine.revoked_at,
        rejected_at=machine.rejected_at,
        wipe_pending=machine.wipe_pending,
        wiped_at=machine.wiped_at,
        redeliver_pending=machine.config_owed_since is not None,
        configuration_not_delivered=_not_delivered(machine),
        ak_activated_at=machine.ak_activated_at,
        ak_name=machine.ak_name.hex() if machine.ak_name else None,
        reset_count=clock.reset_count if clock else None,
        restart_count=clock.restart_count if clock else None,
        firmware_version=_firmware(clock.firmware_version) if clock else None,
        firmware_attested=None if machine.firmware_attested is None else _firmware(machine.firmware_attested),
        firmware_blocked=machine.firmware_blocked,
        shares_names=machine.shares_names,
        event_log_sha256=machine.event_log_sha256,
        trust=machine.trust(at),
        trust_expires_at=machine.trust_expires_at,
        heartbeat_missed_at=machine.heartbeat_missed_at,
        last_result=_last_result(machine),
        approvals=list(approvals),
        labels=dict(labels),
    )


def _not_delivered(machine: Machine) -> ConfigurationNotDelivered | None:
    if machine.config_owed_since is None:
        return None
    return ConfigurationNotDelivered(
        why=machine.config_failure or "the machine has not fetched it yet", since=machine.config_owed_since
    )


def _last_result(machine: Machine) -> LastResult | None:
    if machine.last_verdict is None or machine.last_result_at is None:
        return None
    return LastResult(
        verdict=machine.last_verdict,
        at=machine.last_result_at,
        policy=machine.last_policy,
        failed=machine.last_failed,
    )


def _firmware(version: int) -> str:
    """Write a u64 firmware version as its four words of sixteen bits."""
    return ".".join(str(version >> shift & 0xFFFF) for shift in (48, 32, 16, 0))
