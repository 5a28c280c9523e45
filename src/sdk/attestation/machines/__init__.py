"""Machines and the rules of their admission, without a database."""

from attestation.machines.events import NodeEvent
from attestation.machines.lifecycle import ALLOWED, Operation, Role, Status, next_status
from attestation.machines.machine import ClockState, EKCertificateInfo, Machine, Trust

__all__ = [
    "ALLOWED",
    "ClockState",
    "EKCertificateInfo",
    "Machine",
    "NodeEvent",
    "Operation",
    "Role",
    "Status",
    "Trust",
    "next_status",
]
