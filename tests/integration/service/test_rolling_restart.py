"""Two replicas behind nginx, restarted one after the other under load: whoever asks notices nothing."""

from __future__ import annotations

import ssl
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from attestation_testing import SoftwareNode
from tests.fixtures.machine import Machine
from tests.fixtures.nginx import Nginx
from tests.fixtures.operator_pki import OperatorCA
from tests.fixtures.service import ServiceProcess
from tools.ports import free_port

pytestmark = pytest.mark.nginx

MACHINES = 4
SETTINGS = {
    "ITL_SERVICE_URL": "https://attest.example.test",
    "ITL_SHUTDOWN_DELAY_SECONDS": "2",
    "ITL_TRUSTED_PROXIES": "127.0.0.0/8",
}


def test_no_request_fails_while_replicas_are_restarted(tmp_path: Path) -> None:
    """Neither a GET nor a POST, which nginx sends to nobody else once it was sent: each is answered, with 200."""
    one = ServiceProcess(directory=tmp_path / "service", environment=SETTINGS)
    one.directory.mkdir()
    two = replace(one, port=free_port())
    servers = OperatorCA(datetime.now(UTC), "Servers")
    (tmp_path / "ca.pem").write_bytes(servers.pem)
    certificate, key = servers.server("127.0.0.1").files(tmp_path, "server")
    (tmp_path / "nginx").mkdir()
    stop = threading.Event()
    try:
        one.start()
        two.start()
        with (
            Nginx(
                tmp_path / "nginx",
                upstream=f"127.0.0.1:{one.port} max_fails=0; server 127.0.0.1:{two.port} max_fails=0",
                certificate=certificate,
                key=key,
                operator_ca=tmp_path / "ca.pem",
                secret=None,
            ) as nginx,
            ThreadPoolExecutor(MACHINES) as pool,
        ):
            try:
                machines = [_admitted(one, number) for number in range(MACHINES)]
                trust = ssl.create_default_context(cafile=tmp_path / "ca.pem")
                running = [pool.submit(_live, each, nginx.url, trust, stop) for each in machines]
                for each in (one, two):
                    assert each.stop() != -9
                    each.start()
            finally:
                stop.set()
            answers = sum((each.result(60) for each in running), Counter[str]())
        print(answers)
        assert set(answers) == {"GET 200", "POST 200"}
        assert answers.total() > 20 * MACHINES
    finally:
        one.kill()
        two.kill()


def _admitted(service: ServiceProcess, number: int) -> Machine:
    operator = service.operator()
    with httpx.Client(base_url=service.url, timeout=60) as http:
        machine = Machine(SoftwareNode(number), http)
        machine.admitted(operator)
    operator.http.close()
    return machine


def _live(machine: Machine, url: str, trust: ssl.SSLContext, stop: threading.Event) -> Counter[str]:
    """Attest again and again; return what came."""
    told: Counter[str] = Counter()
    with httpx.Client(base_url=url, verify=trust, timeout=60) as machine.http:
        while not stop.is_set():
            asked = machine.http.get("/api/v1/attest/challenge", params={"machine_id": machine.machine_id})
            told[f"GET {asked.status_code}"] += 1
            if asked.is_success:
                told[f"POST {machine.send(machine.evidence(asked.json())).status_code}"] += 1
    return told
