"""The lifecycle events of a node (ITL-REFERENCE §7, DELIVERY-AND-OPERATORS §13).

They are written to the outbox in the unit of the change; who handles them is decided elsewhere.
"""

from enum import StrEnum


class OperatorEvent(StrEnum):
    """What operators did that concerns no single machine; the words are API."""

    BREAK_GLASS = "operator.break_glass"


class NodeEvent(StrEnum):
    """What happened to a node; the words are API."""

    REGISTERED = "node.registered"
    CONFIGURED = "node.configured"
    IMAGE_CREATED = "node.image_created"
    PROVISIONED = "node.provisioned"
    ONLINE = "node.online"
    DECOMMISSIONED = "node.decommissioned"
    HEARTBEAT_MISSED = "node.heartbeat_missed"
    ROLE_CHANGED = "node.role_changed"
    CERT_RENEWED = "node.cert_renewed"
    ATTESTATION_FAILED = "node.attestation_failed"
    LOCKED = "node.locked"
    UNLOCKED = "node.unlocked"
    REJECTED = "node.rejected"
    WIPED = "node.wiped"
    FIRMWARE_CHANGED = "node.firmware_changed"
    REBOOTED = "node.rebooted"
    APPROVAL_VOTE = "node.approval_vote"
    ALARM = "node.alarm"


Event = NodeEvent | OperatorEvent
"""Every event that the outbox carries."""


def event_named(word: str) -> Event:
    """Return the event that *word* names.

    Raises:
        ValueError: None does.
    """
    try:
        return NodeEvent(word)
    except ValueError:
        return OperatorEvent(word)
