"""Alarms reach operators, and strangers cannot fill the audit with them."""

from __future__ import annotations

import pytest

from attestation.store import OutboxEvent, Tx
from attestation_service.entitlements import alarms
from tests.unit.service.conftest import Service
from tests.unit.service.node import SoftwareNode

pytestmark = pytest.mark.anyio


async def test_an_alarm_is_an_entry_and_an_event(service: Service) -> None:
    """Both in the unit of what caused it, about the machine that it concerns."""
    node = SoftwareNode()
    await service.introduce(node)

    def work(tx: Tx) -> None:
        machine = tx.machines.by_id(node.machine_id)
        alarms.sound(tx, "two of it", service.clock.now(), subject="x", machine=machine, source="192.0.2.9")

    await service.store.write(work)
    (entry,) = await service.audit(action="alarm")
    assert (entry["operator_cn"], entry["machine_id"], entry["detail"], entry["source_ip"]) == (
        "service",
        node.machine_id,
        "two of it",
        "192.0.2.9",
    )

    def drained(tx: Tx) -> list[OutboxEvent]:
        found: list[OutboxEvent] = []
        while claimed := tx.outbox.claim(10, service.clock.now()):
            found += claimed
            tx.outbox.done([event.id for event in claimed], service.clock.now())
        return found

    (event,) = (e for e in await service.store.write(drained) if e.event == "node.alarm")
    assert event.payload["ek_fingerprint"] == node.ek_fingerprint
    assert event.payload["meta"] == {"words": "two of it", "source_ip": "192.0.2.9"}


@pytest.mark.threat("T128")
async def test_alarms_are_bounded(service: Service) -> None:
    """Of one subject and of all: a stranger who causes them neither fills the log nor drowns another subject's."""
    at = service.clock.now()

    def burst(tx: Tx, subject: str) -> int:
        return sum(alarms.sound(tx, "again", at, subject=subject) for _ in range(10))

    assert await service.store.write(lambda tx: burst(tx, "one")) == alarms.OF_SUBJECT.requests
    assert await service.store.write(lambda tx: burst(tx, "two")) == alarms.OF_SUBJECT.requests
    total = await service.store.write(lambda tx: sum(burst(tx, f"many {i}") for i in range(40)))
    assert total == alarms.OF_ALL.requests - 2 * alarms.OF_SUBJECT.requests
