"""The server of the database goes away under a running service, and comes back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import httpx
import pytest

from attestation.store import migrate
from attestation_testing import SoftwareNode
from tests.fixtures.machine import Machine, code
from tests.fixtures.postgres import Server, server
from tests.fixtures.service import ServiceProcess, StartService, start_service

__all__ = ["start_service"]

PATIENCE_SECONDS = 60


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """A server that a test may stop."""
    with server() as running:
        yield running


@pytest.fixture(scope="module")
def service(start_service: StartService, own_server: Server) -> ServiceProcess:
    """Two workers on it."""
    url = own_server.create("service")
    migrate(url)
    return start_service(workers=2, ITL_DB_URL=url)


def _until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.05)


def test_who_asks_meanwhile_is_told_when_to_come_again(service: ServiceProcess, own_server: Server) -> None:
    """503 with Retry-After, never another answer; a worker that begins meanwhile does once the server is there."""
    operator = service.operator()
    with closing(operator.http), httpx.Client(base_url=service.url, timeout=60) as http:
        machine = Machine(SoftwareNode(1), http)
        machine.admitted(operator)
        evidence = machine.evidence(machine.challenge())
        own_server.stop(signal.SIGQUIT)
        try:
            _until(lambda: not service.is_ready(), "not ready")
            assert http.get("/healthz").status_code == 200
            for answer in (
                machine.send(evidence),
                machine.introduce(),
                operator.request("GET", "/machines"),
                operator.request("POST", f"/machines/{machine.machine_id}/lock", json={"reason": "test"}),
            ):
                assert answer.status_code == 503, answer.text
                assert code(answer) == "store-unavailable"
                assert int(answer.headers["Retry-After"]) > 0
            victim = service.worker_pids()[0]
            os.kill(victim, signal.SIGKILL)
            _until(lambda: service.log().count("worker.ended") >= 2, "the worker that follows ends too")
        finally:
            own_server.start()
        _until(service.is_ready, "ready again")
        _until(lambda: len(service.worker_pids()) == 2, "two workers")
        assert code(machine.send(evidence)) == "ok", "the challenge was not spent"
        assert operator.audit_is_valid()


def test_a_start_without_a_server_ends_in_words(service: ServiceProcess, own_server: Server) -> None:
    """It does not wait: who started it starts it again."""
    service.stop()
    own_server.stop()
    try:
        service.start(ready=False)
        assert service._process is not None
        assert service._process.wait(PATIENCE_SECONDS) == 1
        last = service.log().splitlines()[-1]
        assert '"service.unusable"' in last
        assert "no server of PostgreSQL answers" in last
    finally:
        own_server.start()
    service.start()
