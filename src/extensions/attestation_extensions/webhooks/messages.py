"""What receivers are told: names of events, and the body of a delivery. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from attestation.extension import Event, LogEvent, NodeEvent, OutboxEvent

MAX_BODY_BYTES: Final = 20 << 10
TEST: Final = "webhook.test"
DISABLED: Final = "webhook.disabled"
ALL: Final = "*"

SOURCES: Final[Mapping[str, Event | str]] = {
    "machine.registered": NodeEvent.REGISTERED,
    "machine.approved": NodeEvent.PROVISIONED,
    "machine.attested": NodeEvent.ONLINE,
    "machine.locked": NodeEvent.LOCKED,
    "machine.unlocked": NodeEvent.UNLOCKED,
    "machine.revoked": NodeEvent.DECOMMISSIONED,
    "machine.rejected": NodeEvent.REJECTED,
    "machine.wiped": NodeEvent.WIPED,
    "machine.role_changed": NodeEvent.ROLE_CHANGED,
    "machine.rebooted": NodeEvent.REBOOTED,
    "machine.firmware_changed": NodeEvent.FIRMWARE_CHANGED,
    "machine.image_created": NodeEvent.IMAGE_CREATED,
    "machine.configured": NodeEvent.CONFIGURED,
    "machine.heartbeat_missed": NodeEvent.HEARTBEAT_MISSED,
    "machine.certificate_renewed": NodeEvent.CERT_RENEWED,
    "machine.alarm": NodeEvent.ALARM,
    "approval.vote": NodeEvent.APPROVAL_VOTE,
    "attestation.failed": NodeEvent.ATTESTATION_FAILED,
    "audit.checkpoint": LogEvent.CHECKPOINT,
    **{
        name: name
        for name in (
            *("secret.created", "secret.rotated", "secret.deleted", "secret.accessed", "secret.refused"),
            *("kms.released", "kms.refused", "kms.held", DISABLED),
        )
    },
}
"""Name of an event to receivers -> what the service, or an extension, calls it."""
PENDING: Final = "machine.pending"
"""Beside `machine.registered`, of a machine that waits for an operator."""
NAMES: Final = (*SOURCES, PENDING, TEST)


def source_of(name: str) -> str:
    """Return what the service, or an extension, calls the event that receivers know as *name*."""
    return str(NodeEvent.REGISTERED if name == PENDING else SOURCES.get(name, name))


def names_of(event: OutboxEvent) -> tuple[str, ...]:
    """Return what *event* is called to receivers."""
    found = tuple(name for name, source in SOURCES.items() if source == event.event)
    waits = event.event == NodeEvent.REGISTERED and _member(event, "node", "status") == "pending_approval"
    return (*found, PENDING) if waits else found


def body_of(name: str, *, timestamp: str, machine_id: str | None, data: Mapping[str, Any]) -> bytes:
    """Return the body of a delivery; what is too long for a webhook is left out of `data`."""
    told = {"type": name, "event_type": name, "timestamp": timestamp, "machine_id": machine_id}
    body = json.dumps({**told, "data": dict(data)}, separators=(",", ":")).encode()
    if len(body) > MAX_BODY_BYTES:
        body = json.dumps({**told, "data": {"truncated": True}}, separators=(",", ":")).encode()
    return body


def data_of(event: OutboxEvent) -> dict[str, Any]:
    """Return what receivers are told of *event* beside its name and machine: thin, without secrets."""
    node = {
        name: value for name in ("hostname", "role") if (value := _member(event, "node", name)) is not None
    }
    meta = event.payload.get("meta")
    return {"event_id": event.id, **node, "meta": meta if isinstance(meta, dict) else {}}


def _member(event: OutboxEvent, part: str, name: str) -> Any:
    found = event.payload.get(part)
    return found.get(name) if isinstance(found, dict) else None
