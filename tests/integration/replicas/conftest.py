"""Three replicas behind nginx on one PostgreSQL; the clocks of their hosts are five minutes apart."""

from __future__ import annotations

import secrets
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import httpx
import pytest

from attestation_testing import SoftwareNode
from tests.fixtures.machine import Machine
from tests.fixtures.nginx import Nginx
from tests.fixtures.operator_pki import OperatorCA
from tests.fixtures.postgres import Server
from tests.fixtures.service import Operator, ServiceProcess
from tests.integration.concurrency.test_node_csr import clusters

SKEWS = (-5, 0, 5)
"""Minutes by which the clocks of the hosts differ from the database's."""

WRONG_CLOCK = Path(__file__).parents[2] / "fixtures" / "skewed"

SECRET = "proxy-secret-of-more-than-32-characters"
PATIENCE_SECONDS = 120


@dataclass(frozen=True, kw_only=True)
class Replicas:
    """The replicas.

    Args:
        all: Each is a process of its own: behind by five minutes, right, ahead by five minutes.
        operators: One for each of them.
        front: A client of nginx before all of them.
        stack: Closes what tests open.
        operator_ca: Whose certificates they believe, of operators beside the one with the token.
    """

    all: tuple[ServiceProcess, ...]
    operators: tuple[Operator, ...]
    front: httpx.Client
    stack: ExitStack
    operator_ca: OperatorCA

    def client(self, replica: int) -> httpx.Client:
        """Return a client of one of them."""
        return self.stack.enter_context(httpx.Client(base_url=self.all[replica].url, timeout=60))

    def person(self, replica: int, certificate: str) -> httpx.Client:
        """Return an operator with a certificate, escaped, who was sent to *replica* by nginx."""
        headers = {
            "Itl-Proxy-Secret": SECRET,
            "X-Forwarded-Proto": "https",
            "X-TLS-Version": "TLSv1.3",
            "X-TLS-Cipher": "TLS_AES_256_GCM_SHA384",
            "X-Client-Cert": certificate,
        }
        url = f"{self.all[replica].url}/api/v1"
        return self.stack.enter_context(httpx.Client(base_url=url, headers=headers, timeout=60))

    def machine(self) -> Machine:
        """Return a machine that talks to nginx."""
        return Machine(SoftwareNode(secrets.randbits(30)), self.front)

    def admitted(self) -> Machine:
        """Return one that is approved and attested."""
        machine = self.machine()
        machine.admitted(self.operators[0])
        return machine

    def at(self, machine: Machine, replica: int) -> Machine:
        """Let *machine* talk to one replica from now on."""
        machine.http = self.client(replica)
        return machine

    def now_us(self) -> int:
        """Return the time of the database, microseconds since 1970."""
        (row,) = self.all[0].rows("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now")
        found: int = row["now"]
        return found


def until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until *condition* holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.1)


@pytest.fixture(scope="package")
def replicas(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: Server, request: pytest.FixtureRequest
) -> Iterator[Replicas]:
    """Started at the same moment, on an empty database, with one empty folder for the keys of all."""
    directory: Path = tmp_path_factory.mktemp("replicas")
    (directory / "secret").write_text(SECRET)
    ca = OperatorCA(datetime.now(UTC).replace(microsecond=0))
    certificate, key = ca.server("attest.example.test").files(directory, "server")
    (directory / "ca.pem").write_bytes(ca.pem)
    url = postgres_server.create("replicas").replace("postgresql:", "postgresql+psycopg:", 1)
    token, canary = secrets.token_urlsafe(32), f"canary-{secrets.token_hex(16)}"
    environment = {
        "ITL_SERVICE_URL": "https://attest.example.test",
        "ITL_ENROLLMENT_CA_DIR": str(directory / "keys"),
        "ITL_ENROLLMENT_CA_UNENCRYPTED": "true",
        "ITL_PROXY_SECRET_FILE": str(directory / "secret"),
        "ITL_TRUSTED_PROXIES": "127.0.0.0/8",
        "ITL_MAINTENANCE_SECONDS": "1",
        "ITL_AUDIT_CHECKPOINT_SECONDS": "2",
        "ITL_OPERATOR_CA": str(directory / "ca.pem"),
        "ITL_OPERATOR_CERTIFICATES": "true",
        "ITL_DUAL_CONTROL_ROLES": "controlplane",
        "ITL_KUBERNETES_CLUSTERS": clusters(),
    }
    started = tuple(
        ServiceProcess(
            directory=directory / f"replica{number}",
            environment=environment | {"PYTHONPATH": str(WRONG_CLOCK), "SKEW_MINUTES": str(minutes)},
            admin_token=token,
            canary=canary,
            server_url=url,
        )
        for number, minutes in enumerate(SKEWS)
    )
    failed_before = request.session.testsfailed
    try:
        for each in started:
            each.directory.mkdir()
        with ThreadPoolExecutor(len(started)) as pool:
            list(pool.map(ServiceProcess.start, started))
        with ExitStack() as stack:
            (directory / "nginx").mkdir()
            nginx = stack.enter_context(
                Nginx(
                    directory / "nginx",
                    upstream=";\n        server ".join(f"127.0.0.1:{each.port}" for each in started),
                    certificate=certificate,
                    key=key,
                    operator_ca=directory / "ca.pem",
                    secret=SECRET,
                )
            )
            context = ssl.create_default_context(cafile=directory / "ca.pem")
            front = stack.enter_context(httpx.Client(base_url=nginx.url, verify=context, timeout=60))
            operators = tuple(each.operator() for each in started)
            for operator in operators:
                stack.callback(operator.http.close)
            yield Replicas(all=started, operators=operators, front=front, stack=stack, operator_ca=ca)
    finally:
        for each in started:
            each.kill()
            if request.session.testsfailed > failed_before:
                print(f"---- log of {each.directory.name} ----\n{each.log()}")
        postgres_server.drop("replicas")


class StartFleet(Protocol):
    """Starts services on one database of their own."""

    def __call__(
        self, replicas: int, workers: int, environment: Mapping[str, str]
    ) -> tuple[ServiceProcess, ...]:
        """Start them at the same moment; they end with the test."""
        ...


@pytest.fixture
def start_fleet(tmp_path: Path, postgres_server: Server) -> Iterator[StartFleet]:
    """Services without anything before them, each on its port."""
    name, token = f"fleet_{secrets.token_hex(4)}", secrets.token_urlsafe(32)
    started: list[ServiceProcess] = []

    def start(replicas: int, workers: int, environment: Mapping[str, str]) -> tuple[ServiceProcess, ...]:
        url = postgres_server.create(name).replace("postgresql:", "postgresql+psycopg:", 1)
        for number in range(replicas):
            directory = tmp_path / f"replica{number}"
            directory.mkdir()
            common = {
                "ITL_SERVICE_URL": "https://attest.example.test",
                "ITL_ENROLLMENT_CA_DIR": str(tmp_path / "keys"),
                "ITL_ENROLLMENT_CA_UNENCRYPTED": "true",
            }
            started.append(
                ServiceProcess(
                    directory=directory,
                    workers=workers,
                    environment={**common, **environment},
                    admin_token=token,
                    server_url=url,
                )
            )
        with ThreadPoolExecutor(replicas) as pool:
            list(pool.map(ServiceProcess.start, started))
        return tuple(started)

    yield start
    for each in started:
        each.kill()
    postgres_server.drop(name)
