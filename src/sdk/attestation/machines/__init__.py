"""Machines and the rules of their admission, without a database."""

from attestation.machines.events import Event, NodeEvent, OperatorEvent, event_named
from attestation.machines.lifecycle import ALLOWED, Role, Status, Transition, next_status
from attestation.machines.machine import (
    DEFAULT_CLUSTER,
    ClockState,
    EKCertificateInfo,
    Identity,
    Machine,
    TPMIdentity,
    Trust,
)

__all__ = [
    "ALLOWED",
    "DEFAULT_CLUSTER",
    "ClockState",
    "EKCertificateInfo",
    "Event",
    "Identity",
    "Machine",
    "NodeEvent",
    "OperatorEvent",
    "Role",
    "Status",
    "TPMIdentity",
    "Transition",
    "Trust",
    "event_named",
    "next_status",
]
