"""Payloads of lifecycle events (ITL-REFERENCE §7): thin, without secrets, written in the unit of the change."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from attestation.clock import rfc3339
from attestation.machines import Machine, NodeEvent
from attestation.store import Tx


def emit(
    tx: Tx,
    event: NodeEvent,
    machine: Machine,
    at: datetime,
    *,
    node: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> None:
    """Write *event* about *machine* to the outbox.

    Args:
        tx: The unit of the change.
        event: What happened.
        machine: The machine after the change.
        at: When.
        node: Members beside `machine_id`, `hostname` and `role`. A config URL is never among them: it
            contains the token.
        meta: About the event itself.
    """
    payload = {
        "ek_fingerprint": machine.fingerprint,
        "timestamp": rfc3339(at),
        "node": {**node_of(machine), **(node or {})},
        "meta": dict(meta or {}),
    }
    tx.outbox.add(event, machine.machine_id, payload, at)


def image_given(tx: Tx, machine: Machine, iso_url: str, at: datetime) -> None:
    """Write that *machine* was given an image, where there is one to give: *iso_url* is `ITL_ISO_URL`, or empty."""
    if iso_url:
        node = {"config_url": None, "iso_url": iso_url, "schematic_id": None}
        emit(tx, NodeEvent.IMAGE_CREATED, machine, at, node=node)


def image_issued(
    tx: Tx, at: datetime, *, role: str, cluster_id: str, iso_url: str, schematic_id: str | None
) -> None:
    """Write that an image for every machine of *role* was issued: no single machine is in it."""
    node = {
        "machine_id": None,
        "hostname": None,
        "role": role,
        "config_url": None,
        "iso_url": iso_url,
        "schematic_id": schematic_id,
    }
    meta = {"cluster_id": cluster_id}
    payload = {"ek_fingerprint": None, "timestamp": rfc3339(at), "node": node, "meta": meta}
    tx.outbox.add(NodeEvent.IMAGE_CREATED, None, payload, at)


def node_of(machine: Machine) -> dict[str, str | None]:
    """Return what every event says of *machine*."""
    return {"machine_id": machine.machine_id, "hostname": machine.hostname, "role": machine.role}


def hardware(machine: Machine) -> dict[str, str]:
    """Return what the firmware tables said, for the event `node.registered`."""
    return {
        "hw_uuid": machine.hw_uuid,
        "hw_mac": machine.hw_mac,
        "hw_serial": machine.hw_serial,
        "hw_product": machine.hw_product,
    }
