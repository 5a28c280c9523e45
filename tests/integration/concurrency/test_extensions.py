"""The example extension in a real service with two workers, killed where an event could be lost or done twice."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attestation_testing import SoftwareNode
from tests.fixtures.extension import install_example
from tests.fixtures.machine import Machine
from tests.fixtures.service import ServiceProcess
from tests.fixtures.stores import NewDatabase

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

PATIENCE_SECONDS = 60

HANGS = """

import asyncio, os, pathlib

HERE = pathlib.Path(__file__).parent


class Extension(Extension):
    async def came(self, event):
        with (HERE / "attempts").open("a") as attempts:
            attempts.write(f"{os.getpid()} {event.id}\\n")
        while (HERE / "hang").exists():
            await asyncio.sleep(0.01)
        return await super().came(event)
"""


@pytest.fixture
def two_workers(tmp_path: Path, new_database: NewDatabase) -> Iterator[ServiceProcess]:
    """A service with two workers that has the example, and hands out nothing yet."""
    site = tmp_path / "site"
    site.mkdir()
    install_example(site, HANGS)
    service = ServiceProcess(
        directory=tmp_path, workers=2, environment=_environment(tmp_path, "3600"), server_url=new_database()
    )
    service.start()
    yield service
    service.kill()
    print(service.log())


def _environment(directory: Path, maintenance_seconds: str) -> dict[str, str]:
    return {
        "PYTHONPATH": str(directory / "site"),
        "ITL_EXTENSIONS": "visits",
        "ITL_MAINTENANCE_SECONDS": maintenance_seconds,
    }


def _until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


@pytest.mark.threat("T183")
def test_no_event_is_lost_and_none_is_counted_twice(two_workers: ServiceProcess, tmp_path: Path) -> None:
    """Killed between commit and dispatch, then in the middle of a handler: told again, and counted once."""
    service, package = two_workers, tmp_path / "site/visits_extension"
    operator = service.operator()
    with operator.http as http:
        machine = Machine(SoftwareNode(1), http)
        machine.admitted(operator)

    def attempts() -> list[list[str]]:
        path = package / "attempts"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def count(rows: str) -> object:
        return service.rows(f"select count(*) as n from {rows}")[0]["n"]

    # Committed, and nobody told.
    assert count("outbox where event = 'node.online' and done_at is null") == 1
    service.kill()
    assert attempts() == []
    (package / "hang").touch()
    service.environment = _environment(tmp_path, "0.1")
    service.start()
    _until(attempts, "the first attempt")
    # Told, and not confirmed.
    os.kill(int(attempts()[0][0]), signal.SIGKILL)
    (package / "hang").unlink()
    service.rows("update handovers set next_attempt_at = 0")  # the lease of who died has passed
    operator = service.operator()
    with operator.http:
        _until(
            lambda: (
                operator.call("GET", f"/visits/{machine.machine_id}")["times"] == 1
                and count("handovers") == 0
            ),
            "the event to be counted",
        )
        (shown,) = operator.call("GET", "/extensions")["extensions"]
    assert (shown["pending"], shown["dead_letters"]) == (0, 0)
    told = attempts()
    assert len(told) >= 2
    assert len({event_id for _, event_id in told}) == 1
    assert count("extension_visits_visits") == 1
