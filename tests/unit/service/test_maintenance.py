"""What happens without a request: events are handed out, old rows go, errors end nothing."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from attestation.errors import StoreUnavailable
from attestation_service.process import maintenance
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.node import SoftwareNode

pytestmark = pytest.mark.anyio


def count(service: Service, table: str, where: str = "1") -> int:
    """Count rows."""
    with closing(sqlite3.connect(service.directory / "machines.db")) as db:
        (found,) = db.execute(f"select count(*) from {table} where {where}").fetchone()
    return int(found)


async def test_events_leave_the_outbox_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several workers at once: every event is told, none twice, in the order of its machine."""
    nodes = [SoftwareNode() for _ in range(4)]
    for node in nodes:
        await service.admitted(node)
    told: list[Any] = []
    monkeypatch.setattr(maintenance, "tell", told.append)
    await asyncio.gather(*(maintenance.once(service.resources) for _ in range(4)))
    await maintenance.once(service.resources)
    about_machines = [event for event in told if event.machine_id is not None]
    assert len(about_machines) == 12
    assert len(told) == len({event.id for event in told})
    for node in nodes:
        events = [event.event.value for event in told if event.machine_id == node.machine_id]
        assert events == ["node.registered", "node.provisioned", "node.online"]
    # A checkpoint may be taken at any moment, and tells of itself: events of machines are all gone.
    assert count(service, "outbox", "done_at is null and machine_id is not null") == 0


async def test_old_challenges_go(service: Service) -> None:
    """In steady state the database does not grow."""
    node = SoftwareNode()
    await service.introduce(node)
    for _ in range(5):
        await service.challenge(node)
    before = count(service, "challenges")
    service.clock.advance(661)
    await maintenance.once(service.resources)
    assert (before, count(service, "challenges")) == (6, 0)


async def test_errors_do_not_end_it(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that fails is logged; the next one comes."""
    await start(maintenance_seconds=0.001)
    rounds: list[int] = []
    third = asyncio.Event()

    async def fail(_: Any, *, for_all: bool) -> None:
        rounds.append(1)
        if len(rounds) == 1:
            raise StoreUnavailable("busy")
        if len(rounds) == 2:
            raise ZeroDivisionError
        if len(rounds) == 3:
            third.set()

    monkeypatch.setattr(maintenance, "once", fail)
    async with asyncio.timeout(60):
        await third.wait()
