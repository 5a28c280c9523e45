"""Alarms: what operators must hear of, although nobody asked them.

An alarm is an audit entry `alarm`, an event `node.alarm` and a line of the structured log. Strangers can cause
some of them, so each subject and all of them together may cause so many; what is left out is still logged.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

import structlog

from attestation.audit import AuditEvent
from attestation.clock import rfc3339
from attestation.machines import Machine, NodeEvent
from attestation.store import RateLimit, Tx

OF_SUBJECT: Final = RateLimit(requests=5, per_seconds=3600)
OF_ALL: Final = RateLimit(requests=100, per_seconds=3600)

log = structlog.get_logger("attestation_service.alarms")


def sound(
    tx: Tx,
    words: str,
    at: datetime,
    *,
    subject: str,
    machine: Machine | None = None,
    source: str | None = None,
) -> bool:
    """Tell operators of something, in the unit in which it was found.

    Args:
        tx: The unit.
        words: What was found, in one sentence that names machines by their id; never a secret.
        at: Now.
        subject: What it is about, e.g. an EK fingerprint: beyond five an hour only the log has it.
        machine: The machine that it concerns, where there is one.
        source: Address the cause came from.

    Returns:
        False where there were too many lately.
    """
    log.warning("alarm", words=words, machine_id=machine and machine.machine_id, source=source)
    counted = ((f"alarm:{subject}", OF_SUBJECT), ("alarm", OF_ALL))
    if any(tx.rate_limits.check(key, at, limit) is not None for key, limit in counted):
        return False
    tx.rate_limits.take_both(*counted, at)
    machine_id = machine.machine_id if machine is not None else None
    tx.audit.append(
        AuditEvent(
            operator_cn="service", action="alarm", machine_id=machine_id, detail=words, source_ip=source
        ),
        at,
    )
    tx.outbox.add(
        NodeEvent.ALARM,
        machine_id,
        {
            "ek_fingerprint": machine.fingerprint if machine is not None else None,
            "timestamp": rfc3339(at),
            "node": {
                "machine_id": machine_id,
                "hostname": machine.hostname if machine is not None else None,
                "role": machine.role if machine is not None else None,
            },
            "meta": {"words": words, "source_ip": source},
        },
        at,
    )
    return True
