"""Machines and the rules of their admission, without a database."""

from attestation.machines.events import (
    OWN_EVENTS,
    Event,
    ExtensionEvent,
    LogEvent,
    NodeEvent,
    OperatorEvent,
    event_named,
)
from attestation.machines.lifecycle import ALLOWED, Role, Status, Transition, next_status
from attestation.machines.machine import (
    DEFAULT_CLUSTER,
    EPHEMERAL,
    NAMED_GUEST,
    TEES,
    Anchor,
    ClockState,
    EKCertificateInfo,
    Identity,
    Machine,
    SeenHardware,
    Trust,
)

__all__ = [
    "ALLOWED",
    "DEFAULT_CLUSTER",
    "EPHEMERAL",
    "NAMED_GUEST",
    "OWN_EVENTS",
    "TEES",
    "Anchor",
    "ClockState",
    "EKCertificateInfo",
    "Event",
    "ExtensionEvent",
    "Identity",
    "LogEvent",
    "Machine",
    "NodeEvent",
    "OperatorEvent",
    "Role",
    "SeenHardware",
    "Status",
    "Transition",
    "Trust",
    "event_named",
    "next_status",
]
