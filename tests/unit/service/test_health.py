"""Alive is not ready; what is not ready is named."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from attestation.errors import StoreUnavailable
from attestation_service.health import handlers
from attestation_service.storage import write_probe
from attestation_service.storage.write_probe import WriteProbe
from tests.unit.service.conftest import HeldClock, Service
from tests.unit.service.node import SoftwareNode

pytestmark = pytest.mark.anyio


async def ready(service: Service) -> tuple[int, dict[str, str]]:
    """Ask, and return status and parts."""
    answer = await service.get("/readyz")
    body = answer.json()
    degraded = any(part.startswith("degraded: ") for part in body["checks"].values())
    good = "degraded" if degraded else "ok"
    assert body["status"] == (good if answer.status_code == 200 else "unavailable")
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


async def test_the_schema_was_taken_away(service: Service) -> None:
    """A newer version upgraded the database to what this one cannot use; one that stops is not asked any more."""
    with closing(sqlite3.connect(service.directory / "machines.db")) as db, db:
        db.execute("DELETE FROM schema_support")
    assert (await ready(service))[1]["database"] == "failed: SchemaContracted"
    service.app.state.life.stop(0)
    assert await ready(service) == (503, {"process": "stopping"})


@pytest.mark.threat("T130")
async def test_the_database_takes_no_writes(service: Service) -> None:
    """A full disk goes on answering whoever reads: ready is who can write. Many who ask cost one write in a while."""
    seconds, writes, full = [1000.0], [], [False]
    real = service.store.write

    async def write(work: Any) -> Any:
        writes.append(work)
        if full[0]:
            raise StoreUnavailable("database or disk is full")
        return await real(work)

    store: Any = SimpleNamespace(write=write)  # what chores write besides is not counted
    probe = WriteProbe(store, lambda: seconds[0])
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


@pytest.mark.parametrize(
    ("url", "host_ahead", "expected"),
    [
        ("postgresql+psycopg://itl@db.example/attestation", timedelta(0), 200),
        ("postgresql+psycopg://itl@db.example/attestation", timedelta(seconds=11), 503),
        # No second clock: a socket and the loopback interface lead to this computer's.
        ("postgresql+psycopg://itl@/attestation?host=/var/run/postgresql", timedelta(0), 503),
        ("postgresql+psycopg://itl@db.example/attestation?host=db.example,127.0.0.1", timedelta(0), 503),
    ],
)
async def test_a_clock_was_ahead(
    service: Service, monkeypatch: pytest.MonkeyPatch, url: str, host_ahead: timedelta, expected: int
) -> None:
    """Its time stays in the log until it comes: where two clocks agree that it was wrong, the service goes on."""
    now = datetime.now(UTC)
    service.clock.at = now + timedelta(days=1)
    await service.introduce(SoftwareNode())
    service.clock.at = now
    chosen = service.resources.settings.model_copy(update={"db_url": url})
    service.app.state.resources = dataclasses.replace(service.resources, settings=chosen)
    monkeypatch.setattr(service.store, "clock", HeldClock(now - host_ahead), raising=False)
    status, parts = await ready(service)
    assert status == expected
    assert parts["clock"].startswith(
        "degraded: a clock was ahead" if expected == 200 else "failed: the clock"
    )


@pytest.mark.parametrize(("minutes", "told"), [(5, "300 s"), (-5, "-300 s"), (0, None)])
async def test_the_host_s_clock_is_not_the_database_s(
    service: Service, monkeypatch: pytest.MonkeyPatch, minutes: int, told: str | None
) -> None:
    """It is told, and stops nothing: the database's clock counts."""
    now = datetime.now(UTC) + timedelta(minutes=minutes)
    monkeypatch.setattr(service.store, "clock", HeldClock(now), raising=False)
    answer = await service.get("/readyz")
    expected = f"degraded: this host's clock differs from the database's by {told}"
    assert answer.status_code == 200
    assert answer.json()["checks"].get("host_clock") == (expected if told else None)
