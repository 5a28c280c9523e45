"""Schedules, Nodes and runs as an API server shows them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from attestation.clock import parse_rfc3339, rfc3339
from attestation_operator.objects import RUN, SCHEDULE
from attestation_operator.runs.schedule_objects import SCHEDULED_AT

AT = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
UID = "5c4ed01e-0000-4000-8000-000000000001"


def raw_schedule(
    *,
    name: str = "nightly",
    uid: str = UID,
    created_at: datetime = AT,
    generation: int = 1,
    status: dict[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Return an AttestationSchedule; every hour where nothing else is said."""
    if not spec.keys() & {"schedule", "every"}:
        spec["every"] = "1h"
    return {
        "apiVersion": SCHEDULE.api_version,
        "kind": SCHEDULE.kind,
        "metadata": {
            "name": name,
            "namespace": "attest",
            "uid": uid,
            "resourceVersion": "5",
            "generation": generation,
            "creationTimestamp": created_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        },
        "spec": {"backend": "tpm", **spec},
        "status": status or {},
    }


def raw_node(name: str, **labels: str) -> dict[str, Any]:
    """Return a Node."""
    metadata = {
        "name": name,
        "uid": f"uid-{name}",
        "resourceVersion": "1",
        "creationTimestamp": "2026-11-01T00:00:00Z",
        "labels": {key.replace("__", "/").replace("_", "-"): value for key, value in labels.items()},
    }
    return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}}


def stored(made: dict[str, Any] | Any, number: int, at: datetime | None = None) -> dict[str, Any]:
    """Return what the API server stores where *made* is created: when it was due, unless another instant is said."""
    at = at or parse_rfc3339(made["metadata"]["annotations"][SCHEDULED_AT])
    metadata = {
        **made["metadata"],
        "uid": f"run-{number}",
        "resourceVersion": str(100 + number),
        "creationTimestamp": at.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return {"apiVersion": RUN.api_version, "kind": RUN.kind, **made, "metadata": metadata}


def ended(raw: dict[str, Any], phase: str, at: datetime, *, settled: bool = True) -> dict[str, Any]:
    """Return a run that has ended."""
    said = "True" if settled else "False"
    status = {
        "phase": phase,
        "completionTime": rfc3339(at),
        "conditions": [
            {"type": "Accepted", "status": "True", "reason": "PolicyEnforced"},
            *({"type": each, "status": said} for each in ("EventsEmitted", "Sealed")),
        ],
    }
    return {**raw, "status": status}


def later(**span: float) -> datetime:
    """Return so long after `AT`."""
    return AT + timedelta(**span)
