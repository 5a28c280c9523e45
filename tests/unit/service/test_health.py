"""Alive is not ready; what is not ready is named."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from attestation.errors import StoreUnavailable
from attestation_service.health import handlers
from attestation_service.storage import write_probe
from attestation_service.storage.write_probe import WriteProbe
from tests.unit.service.conftest import Service
from tests.unit.service.node import SoftwareNode

pytestmark = pytest.mark.anyio


async def ready(service: Service) -> tuple[int, dict[str, str]]:
    """Ask, and return status and parts."""
    answer = await service.get("/readyz")
    body = answer.json()
    assert body["status"] == ("ok" if answer.status_code == 200 else "unavailable")
    assert body["version"] == service.app.version
    return answer.status_code, body["checks"]


async def test_ready(service: Service) -> None:
    """All parts `ok`."""
    assert await ready(service) == (
        200,
        {"database": "ok", "ca_directory": "ok", "clock": "ok", "service_key": "ok", "audit": "ok"},
    )


async def test_the_ca_directory_is_gone(service: Service) -> None:
    """Only that part fails."""
    shutil.rmtree(service.directory / "ca")
    status, parts = await ready(service)
    assert (status, parts["ca_directory"], parts["database"]) == (503, "failed: no such directory", "ok")


async def test_the_database_does_not_answer(service: Service) -> None:
    """Named by the kind of error, without its words."""
    await service.store.aclose()
    status, parts = await ready(service)
    assert (status, parts["database"], parts["ca_directory"]) == (503, "failed: StoreUnavailable", "ok")
    assert (await service.get("/healthz")).status_code == 200


@pytest.mark.threat("T130")
async def test_the_database_takes_no_writes(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk goes on answering whoever reads: ready is who can write. Many who ask cost one write in a while."""
    seconds, writes, full = [1000.0], [], [False]
    real = service.store.write

    async def write(work: Any) -> Any:
        writes.append(work)
        if full[0]:
            raise StoreUnavailable("database or disk is full")
        return await real(work)

    monkeypatch.setattr(service.store, "write", write)
    probe = WriteProbe(service.store, lambda: seconds[0])
    service.app.state.resources = dataclasses.replace(service.resources, write_probe=probe)
    rows = []
    for _ in range(3):
        assert (await ready(service))[0] == 200
        rows.append(rate_limits(service))
    assert rows == [rows[0]] * 3
    assert len(writes) == 1
    full[0] = True
    seconds[0] += write_probe.GOOD_SECONDS
    answers = await asyncio.gather(*(ready(service) for _ in range(5)))
    assert {(status, parts["database"]) for status, parts in answers} == {(503, "failed: StoreUnavailable")}
    assert len(writes) == 2
    full[0] = False
    seconds[0] += write_probe.BAD_SECONDS
    assert (await ready(service))[0] == 200
    assert rate_limits(service) == rows[0]


def rate_limits(service: Service) -> int:
    """Return how many rows the table of the probe has."""
    with closing(sqlite3.connect(service.directory / "machines.db")) as database:
        return int(database.execute("SELECT count(*) FROM rate_limits").fetchone()[0])


async def test_the_database_hangs(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits without end."""

    async def hang(_: Any) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(handlers, "TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr(service.store, "read", hang)
    status, parts = await ready(service)
    assert (status, parts["database"]) == (503, "failed: TimeoutError")


async def test_the_clock_is_too_early(service: Service) -> None:
    """A clock before this software existed would accept expired certificates."""
    service.clock.at = datetime(2020, 1, 1, tzinfo=UTC)
    status, parts = await ready(service)
    assert (status, parts["clock"]) == (503, "failed: the clock shows 2020")


async def test_the_clock_went_back(service: Service) -> None:
    """Behind the newest audit entry, leases and challenges would live again."""
    await service.introduce(SoftwareNode())
    service.clock.at -= timedelta(seconds=59)
    assert (await ready(service))[0] == 200
    service.clock.at -= timedelta(seconds=2)
    status, parts = await ready(service)
    assert (status, parts["clock"]) == (503, "failed: the clock stands behind the newest audit entry")
