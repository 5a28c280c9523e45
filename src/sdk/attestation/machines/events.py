"""The lifecycle events of a node (ITL-REFERENCE §7, DELIVERY-AND-OPERATORS §13).

They are written to the outbox in the unit of the change; who handles them is decided elsewhere.
"""

import re
from enum import StrEnum
from typing import Final, Self


class OperatorEvent(StrEnum):
    """What operators did that concerns no single machine; the words are API."""

    BREAK_GLASS = "operator.break_glass"


class LogEvent(StrEnum):
    """What happened to the audit log; the words are API."""

    CHECKPOINT = "audit.checkpoint"


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


OWN_EVENTS: Final = (*NodeEvent, *OperatorEvent, *LogEvent)
"""What the service itself tells of."""


class ExtensionEvent(str):
    """What an extension tells of: `<word>.<word>`, the first of which no event of the service has.

    Raises:
        ValueError: Not so.
    """

    __slots__ = ()

    def __new__(cls, word: str) -> Self:
        """Check that it is a name for one."""
        if not _WORDS.fullmatch(word) or word.partition(".")[0] in _OURS:
            raise ValueError(f"{word!r} is no name of an event of an extension")
        return super().__new__(cls, word)

    @property
    def value(self) -> str:
        """The word, as of a member of an enumeration."""
        return str(self)


_WORDS: Final = re.compile(r"[a-z][a-z0-9_]{0,31}\.[a-z][a-z0-9_]{0,31}")
_OURS: Final = frozenset(each.partition(".")[0] for each in OWN_EVENTS) | {"approval"}

Event = NodeEvent | OperatorEvent | LogEvent | ExtensionEvent
"""Every event that the outbox carries."""


_NAMED: Final[dict[str, Event]] = {each.value: each for each in OWN_EVENTS}


def event_named(word: str) -> Event:
    """Return the event that *word* names; whether an extension tells of it, only those that are enabled know.

    Raises:
        ValueError: None can.
    """
    return _NAMED.get(word) or ExtensionEvent(word)
