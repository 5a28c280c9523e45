"""The service with its CA in an HSM of another process: it issues, refuses while that is away, issues again."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509

from tests.fixtures.machine import code
from tests.fixtures.service import ServiceProcess
from tests.fixtures.softhsm import PIN, RemoteHSM, SoftHSM
from tests.unit.service.node import SoftwareNode
from tests.unit.service.node_keys import cert_request, ecc_key

pytestmark = [pytest.mark.softhsm, pytest.mark.slow]


class Client:
    """A machine that is admitted, and what it asks for."""

    def __init__(self, service: ServiceProcess) -> None:
        self.http = httpx.Client(base_url=service.url, timeout=60)
        self.operator = service.operator()
        self.node = SoftwareNode()
        self.post("/attest", self._introduced())

    def _introduced(self) -> dict[str, Any]:
        node = self.node
        introduced = self.post("/self-register", node.introduction()).json()
        body = node.activation(introduced)
        self.post(f"/machines/{node.machine_id}/ak-activate", body)
        self.operator.approve(node.machine_id)
        challenge = self.http.get("/api/v1/attest/challenge", params={"machine_id": node.machine_id})
        return node.attestation(challenge.json())

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """Send what must succeed."""
        answer = self.http.post(f"/api/v1{path}", json=body)
        assert answer.is_success, answer.text
        return answer

    def ask(self) -> httpx.Response:
        """Ask for a certificate."""
        path = f"/api/v1/machines/{self.node.machine_id}"
        challenge = self.http.get(f"{path}/challenge", params={"purpose": "certify"}).json()
        return self.http.post(f"{path}/request-cert", json=cert_request(self.node, challenge, ecc_key()))

    def close(self) -> None:
        """End the connections."""
        self.http.close()
        self.operator.http.close()


@pytest.fixture
def service(remote_hsm: RemoteHSM, tmp_path: Path) -> Iterator[ServiceProcess]:
    """One process, so nothing restarts it, whose CA is on the token."""
    started = on_the_token(remote_hsm, tmp_path)
    started.start()
    yield started
    started.kill()


def on_the_token(remote_hsm: RemoteHSM, tmp_path: Path, workers: int = 1) -> ServiceProcess:
    """Return a service, not started yet, whose CA is on the token."""
    (tmp_path / "service").mkdir()
    return ServiceProcess(
        directory=tmp_path / "service",
        workers=workers,
        environment={
            "ITL_ENROLLMENT_CA_KEY": f"pkcs11:token=hsm?module-name=remote&pin-source=file:{remote_hsm.hsm.pin_file}",
            "ITL_PKCS11_MODULES": f"remote={remote_hsm.module}",
            "ITL_MAINTENANCE_SECONDS": "1",
        },
    )


@pytest.mark.threat("T91")
def test_the_hsm_restarts_under_the_service(service: ServiceProcess, remote_hsm: RemoteHSM) -> None:
    """The CA's key is on the token only; 503 while that is away; certificates again afterwards, by the same process."""
    client = Client(service)
    issued = client.ask()
    assert issued.status_code == 200, issued.text
    ca = x509.load_pem_x509_certificate(issued.json()["enrollment_ca_pem"].encode())
    x509.load_pem_x509_certificate(issued.json()["enrollment_cert_pem"].encode()).verify_directly_issued_by(
        ca
    )
    assert remote_hsm.hsm.tool("--list-objects").count("Private Key Object") == 1
    assert list((service.directory / "ca").glob("itl-*")) == []
    (issuer,) = client.operator.call("GET", "/ca")["issuers"]
    assert "pin-source" not in str(issuer)
    before = service.pid

    remote_hsm.kill()
    refused = [client.ask() for _ in range(6)]
    assert {(each.status_code, code(each)) for each in refused} == {(503, "signer-unavailable")}
    assert all(each.headers["retry-after"] for each in refused)
    assert client.http.get("/healthz").status_code == 200

    remote_hsm.start()
    until = time.monotonic() + 120
    while (answer := client.ask()).status_code != 200:
        assert code(answer) == "signer-unavailable"
        assert time.monotonic() < until
        time.sleep(0.2)
    again = x509.load_pem_x509_certificate(answer.json()["enrollment_cert_pem"].encode())
    again.verify_directly_issued_by(ca)
    assert service.pid == before
    assert Path(f"/proc/{before}").exists()
    # What was refused left nothing behind: two certificates, and the serials of the others are void.
    rows = client.operator.pages("/ca/certificates")
    states = [each["state"] for each in rows if each["profile"] != "ocsp-signing"]
    assert states.count("issued") == 2
    assert set(states) <= {"issued", "void"}
    client.close()
    assert PIN not in service.log_file.read_text()


@pytest.mark.threat("T124", "T145")
def test_a_worker_dies_while_the_hsm_is_away(remote_hsm: RemoteHSM, tmp_path: Path) -> None:
    """Who takes its place starts without the CA's key, serves, and issues when the HSM is back; so does a new start."""
    service = on_the_token(remote_hsm, tmp_path, workers=2)
    service.start()
    try:
        client = Client(service)
        first = client.ask()
        assert first.status_code == 200, first.text
        served = client.http.get("/pki/crl").content
        remote_hsm.kill()
        for stopped in (False, True):
            if stopped:
                assert service.stop() == 0
                service.start()  # and ready, although nothing is there to sign with
            else:
                before = service.worker_pids()
                os.kill(before[0], signal.SIGKILL)
                eventually(functools.partial(has_two_workers_without, service, before[0]))
            eventually(lambda: all("degraded" in each for each in health(service)))
            assert {client.ask().status_code for _ in range(4)} == {503}
        # Nothing was revoked: nobody is refused the list because certificates could not be made.
        assert client.http.get("/pki/crl").content == served
        remote_hsm.start()
        eventually(lambda: all(each == "ok" for each in health(service)))
        for _ in range(4):
            assert client.ask().status_code == 200
        client.close()
    finally:
        service.kill()
    # The whole log: requests push older lines out of what `log` shows.
    assert service.log_file.read_text().count("ca.away") >= 2


@pytest.mark.threat("T156", "T162")
def test_a_worker_dies_while_the_service_key_is_away(remote_hsm: RemoteHSM, tmp_path: Path) -> None:
    """Who takes its place, and a new start, wait for the key, say so, refuse machines, and serve when it is back."""
    service = ServiceProcess(
        directory=tmp_path / "service",
        workers=2,
        environment={
            "ITL_SERVICE_KEY": remote_hsm.uri("service"),
            "ITL_PKCS11_MODULES": f"remote={remote_hsm.module}",
        },
    )
    service.directory.mkdir()
    service.start()
    try:
        keys = httpx.get(f"{service.url}/api/v1/service-keys", timeout=60).json()
        node = SoftwareNode()
        remote_hsm.kill()
        before = service.worker_pids()
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: len(service.worker_pids()) == 2 and not {*before} & {*service.worker_pids()})
        eventually(lambda: not_ready(service, "failed: token-absent"))
        answer = httpx.post(f"{service.url}/api/v1/self-register", json=node.introduction(), timeout=60)
        assert (answer.status_code, code(answer)) == (503, "signer-unavailable")
        assert httpx.get(f"{service.url}/healthz", timeout=60).status_code == 200
        assert service.stop() == 0
        # A PIN that is refused: not tried again by anybody until its file says another (`attestation.keys.refusals`).
        pin = remote_hsm.hsm.pin_file.read_text()
        remote_hsm.hsm.pin_file.write_text("wrong-canary-9038")
        remote_hsm.start()
        service.start(ready=False)
        eventually(lambda: not_ready(service, "failed: pin-rejected"))
        remote_hsm.hsm.pin_file.write_text(pin)
        eventually(service.is_ready)
        for _ in range(8):  # a connection of its own each time: the kernel chooses the worker
            eventually(lambda: httpx.get(f"{service.url}/api/v1/service-keys", timeout=60).json() == keys)
        # The token is away under both workers, and comes back without the key: nobody makes another in its place.
        remote_hsm.kill()
        before = service.worker_pids()
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: len(service.worker_pids()) == 2 and not {*before} & {*service.worker_pids()})
        for kind in ("privkey", "pubkey"):
            remote_hsm.hsm.tool("--delete-object", "--type", kind, "--label", "service")
        remote_hsm.start()
        eventually(lambda: not_ready(service, "failed: key-not-found"))
    finally:
        service.kill()
    assert "Private Key Object" not in remote_hsm.hsm.tool("--list-objects")


def not_ready(service: ServiceProcess, words: str) -> bool:
    """Return True where the service says so, asked over eight connections."""
    answers = [httpx.get(f"{service.url}/readyz", timeout=60) for _ in range(8)]
    return all(a.status_code == 503 and a.json()["checks"]["service_key"].startswith(words) for a in answers)


def has_two_workers_without(service: ServiceProcess, killed: int) -> bool:
    """Return True when somebody took the place of *killed*."""
    pids = service.worker_pids()
    return len(pids) == 2 and killed not in pids


def health(service: ServiceProcess) -> list[str]:
    """Ask eight times, each time over a connection of its own: the kernel chooses the worker."""
    found = []
    for _ in range(8):
        answer = httpx.get(f"{service.url}/readyz", timeout=60)
        assert answer.status_code == 200, answer.text
        found.append(answer.json()["checks"]["ca"])
    return found


def eventually(holds: Callable[[], bool], seconds: float = 120) -> None:
    """Wait until *holds*; a connection to who is just killed may break."""
    until = time.monotonic() + seconds
    while True:
        try:
            if holds():
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < until
        time.sleep(0.2)


def test_four_workers_have_one_key(softhsm: SoftHSM, tmp_path: Path) -> None:
    """The first start of four workers: one key on the token, a session for each worker, all of them sign."""
    service = ServiceProcess(
        directory=tmp_path / "service",
        workers=4,
        environment={
            "ITL_ENROLLMENT_CA_KEY": f"pkcs11:token=hsm?module-name=softhsm&pin-source=file:{softhsm.pin_file}",
            "ITL_PKCS11_MODULES": f"softhsm={softhsm.module}",
        },
    )
    service.directory.mkdir()
    service.start()
    try:
        headers = {"Authorization": f"Bearer {service.admin_token}"}
        # A connection of its own each time: the kernel chooses the worker.
        for _ in range(12):
            checked = httpx.get(f"{service.url}/api/v1/ca/check", headers=headers, timeout=60).json()
            assert checked["ok"], checked
    finally:
        service.kill()
    assert softhsm.tool("--list-objects").count("Private Key Object") == 1
    assert PIN not in service.log_file.read_text()
