"""Certificates from two workers at once: one challenge gives one, and a lock leaves none that counts (R6, R13)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from attestation_testing import SoftwareNode
from tests.fixtures.machine import Machine, code
from tests.fixtures.service import ServiceProcess, StartService

pytestmark = pytest.mark.slow

REQUESTS = 100
THREADS = 20
ROUNDS = 10


@pytest.fixture(scope="module")
def service(start_service: StartService) -> ServiceProcess:
    """Two workers with one CA."""
    return start_service(workers=2, ITL_ENROLLMENT_CA_UNENCRYPTED="true")


@contextmanager
def machine_of(service: ServiceProcess, seed: int) -> Iterator[Machine]:
    """Return an attested machine."""
    operator = service.operator()
    with httpx.Client(base_url=service.url, timeout=60) as http, operator.http:
        machine = Machine(SoftwareNode(seed), http)
        machine.admitted(operator)
        yield machine


def states(service: ServiceProcess, machine: Machine) -> Counter[str]:
    """Count the certificates of a machine by state, as they stand in the database."""
    rows = service.rows("SELECT state FROM certificates WHERE machine_id = ?", machine.machine_id)
    return Counter(row["state"] for row in rows)


@pytest.mark.threat("T106")
def test_a_hundred_requests_with_one_challenge(service: ServiceProcess) -> None:
    """Whichever worker each of them meets: exactly one certificate, and ninety-nine hear that it was used."""
    with machine_of(service, 1) as machine:
        body = machine.cert_request(machine.certificate_challenge(), machine.keys.create_signing_key())
        start = threading.Barrier(THREADS)

        def ask(number: int) -> str:
            with httpx.Client(base_url=service.url, timeout=60) as http:
                if number < THREADS:
                    start.wait(60)
                return code(http.post(f"/api/v1/machines/{machine.machine_id}/request-cert", json=body))

        with ThreadPoolExecutor(THREADS) as pool:
            answers = Counter(pool.map(ask, range(REQUESTS)))
        assert answers == {"ok": 1, "challenge-used": REQUESTS - 1}
        assert states(service, machine) == {"issued": 1}


@pytest.mark.threat("T106")
def test_a_lock_meets_requests(service: ServiceProcess) -> None:
    """Locked while certificates are being made: each was refused, or is on hold with the lock; none is good."""
    operator = service.operator()
    with machine_of(service, 2) as machine, operator.http:
        for _ in range(ROUNDS):
            machine.attest()
            bodies = [
                machine.cert_request(machine.certificate_challenge(), machine.keys.create_signing_key())
                for _ in range(4)
            ]
            start = threading.Barrier(len(bodies) + 1)

            def ask(body: dict[str, str], start: threading.Barrier = start) -> str:
                with httpx.Client(base_url=service.url, timeout=60) as http:
                    start.wait(60)
                    return code(http.post(f"/api/v1/machines/{machine.machine_id}/request-cert", json=body))

            with ThreadPoolExecutor(len(bodies)) as pool:
                answers = [pool.submit(ask, body) for body in bodies]
                start.wait(60)
                operator.act(machine.machine_id, "lock", reason="test")
                given = Counter(answer.result() for answer in answers)
            assert set(given) <= {"ok", "machine-not-admitted", "rate-limited"}
            assert states(service, machine)["issued"] == 0
            operator.act(machine.machine_id, "unlock", reason="test")
            for row in operator.pages(f"/machines/{machine.machine_id}/certificates"):
                if row["state"] == "issued":
                    operator.call("POST", f"/ca/certificates/{row['serial']}/revoke", json={})
        assert operator.audit_is_valid()
