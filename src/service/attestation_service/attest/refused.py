"""What is on record of evidence that proves nothing."""

from __future__ import annotations

from attestation.audit import AuditEvent
from attestation.errors import AttestationError, HardwareEvidenceRejected
from attestation.machines import Machine
from attestation_service.context.request import Origin


def _expected(refusal: AttestationError) -> str:
    """Return which checks of hardware failed, and what they expected; nothing that the sender wrote."""
    if not isinstance(refusal, HardwareEvidenceRejected):
        return ""
    return "; " + "; ".join(f"{each.check}: expected {each.expected}" for each in refusal.failed)[:600]


def denied(machine: Machine, refusal: AttestationError, origin: Origin, what: str = "attest") -> AuditEvent:
    """Return the audit event of evidence that proves nothing; the sub-code is for operators only."""
    return AuditEvent(
        operator_cn="unknown",
        action="denied",
        machine_id=machine.machine_id,
        detail=f"{what}: {refusal.code}{_expected(refusal)}",
        source_ip=origin.address,
    )
