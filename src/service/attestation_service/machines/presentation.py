"""A machine as operators see it: never a token, nonce or key (PROTOCOL §7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime

from attestation.api import (
    ApprovalDetail,
    ConfigurationNotDelivered,
    EKCertificateDetail,
    HardwareDetail,
    LastResult,
    MachineDetail,
)
from attestation.appraisal.confidential import Approved
from attestation.machines import Anchor, Machine
from attestation.store import Tx

_TOLD, _TOLD_OF_TPM = (
    [field.name for field in fields(record) if field.name in MachineDetail.model_fields]
    for record in (Machine, Anchor)
)
"""What operators see of a machine is what `MachineDetail` declares; these as they are, but for four."""


def machine_detail(
    machine: Machine,
    approvals: Sequence[ApprovalDetail],
    labels: Mapping[str, str],
    at: datetime,
    approved: Approved | None = None,
) -> MachineDetail:
    """Return *machine* with its live votes and labels as operators see it at the instant *at*.

    *approved* is the hardware that they approved, where one machine is asked for.
    """
    certificate, clock = machine.anchor.ek_certificate, machine.clock
    told = {name: getattr(machine, name) for name in _TOLD}
    told |= {name: getattr(machine.anchor, name) for name in _TOLD_OF_TPM}
    told |= {
        "assurance": machine.vouched_as,
        "expected": machine.expected,
        "hardware": _hardware(machine, approved),
        "ek_certificate": EKCertificateDetail(
            subject=certificate.subject,
            manufacturer=certificate.manufacturer,
            model=certificate.model,
            firmware=certificate.firmware,
            sha256=certificate.sha256,
        )
        if certificate
        else None,
        "ak_name": machine.key_name.hex() if machine.key_name else None,
        "firmware_attested": None
        if machine.firmware_attested is None
        else _firmware(machine.firmware_attested),
    }
    return MachineDetail(
        **told,
        redeliver_pending=machine.config_owed_since is not None,
        configuration_not_delivered=_not_delivered(machine),
        reset_count=clock.reset_count if clock else None,
        restart_count=clock.restart_count if clock else None,
        firmware_version=_firmware(clock.firmware_version) if clock else None,
        trust=machine.trust(at),
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


def approved_of(tx: Tx, machine: Machine) -> Approved | None:
    """Return the hardware that operators approved for *machine*; None where they approved none."""
    if machine.hardware is None:
        return None
    found = tx.identities.of(machine.machine_id).get(machine.hardware.kind)
    if found is None or found.approved_chip is None:
        return None
    return Approved(chip=found.approved_chip, csp_id=found.approved_csp_id)


def _hardware(machine: Machine, approved: Approved | None) -> HardwareDetail | None:
    seen = machine.hardware
    if seen is None:
        return None
    return HardwareDetail(
        kind=seen.kind,
        chip=seen.chip.hex() if any(seen.chip) else None,
        guest=seen.guest.hex() if any(seen.guest) else None,
        csp_id=seen.csp_id,
        ephemeral=machine.ephemeral,
        approved_chip=None if approved is None else approved.chip.hex(),
        approved_csp_id=None if approved is None else approved.csp_id,
        vouches=machine.vouched_by_hardware,
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
