"""The service as a process: it starts once however many start, and finishes what it accepted."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.fixtures.service import ServiceProcess, start_service
from tests.unit.service.node import SoftwareNode
from tools.ports import free_port

__all__ = ["start_service"]

BIN = Path(sys.executable).parent


def environment(directory: Path, **more: str) -> dict[str, str]:
    """Return the environment of a service that lives in *directory*."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("ITL_", "COVERAGE_"))}
    ours = {
        "ITL_DB_URL": f"sqlite:///{directory / 'machines.db'}",
        "ITL_ENROLLMENT_CA_DIR": str(directory / "ca"),
        "ITL_CONFIG_CACHE_DIR": str(directory),
        "ITL_ADMIN_TOKEN": "t" * 40,
        "ITL_SERVICE_URL": "http://127.0.0.1:8080",
    }
    return clean | ours | more


def request_head(body: bytes, more: str = "") -> bytes:
    """Return the head of an introduction whose body follows, with *more* fields."""
    return (
        b"POST /api/v1/self-register HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        + more.encode()
        + b"Connection: close\r\nContent-Length: "
        + str(len(body)).encode()
        + b"\r\n\r\n"
    )


def accepts_connections(port: int) -> bool:
    """Return True if somebody listens on *port*."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def listens_on(path: Path) -> bool:
    """Return True if somebody listens on the unix socket *path*."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """Where a service manager would listen, as sd_notify(3) says."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as listening:
        listening.bind(str(tmp_path / "notify"))
        yield listening


def test_sigterm_finishes_what_was_accepted(tmp_path: Path, manager: socket.socket) -> None:
    """A request whose body is still coming when the signal arrives is answered; then the process ends with 0."""
    service = ServiceProcess(directory=tmp_path, environment={"NOTIFY_SOCKET": str(tmp_path / "notify")})
    service.start()
    try:
        body = json.dumps(SoftwareNode().introduction()).encode()
        with socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection:
            connection.sendall(request_head(body, "Expect: 100-continue\r\n"))
            # Somebody waits for the body: the request was accepted.
            assert connection.recv(1024) == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.sendall(body[:100])
            os.kill(service.pid, signal.SIGTERM)
            until(lambda: not accepts_connections(service.port))
            connection.sendall(body[100:])
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
        assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
        assert b'"activation"' in answer
        assert service._process is not None
        assert service._process.wait(60) == 0
        events = [json.loads(line)["event"] for line in service.log_file.read_text().splitlines()]
        assert "service.stopped" in events
        assert "service.stopped_early" not in events
        assert [manager.recv(100), manager.recv(100)] == [b"READY=1", b"STOPPING=1"]
    finally:
        service.kill()


def test_every_line_of_the_log_is_json_without_secrets(tmp_path: Path) -> None:
    """Ours, the server's and the libraries' lines: one form, no token, no plain path of a config."""
    service = ServiceProcess(directory=tmp_path, workers=2)
    service.start()
    try:
        with httpx.Client(base_url=service.url, timeout=60) as http:
            http.get("/api/v1/config/canary-in-path")
            http.get("/api/v1/machines", headers={"Authorization": "Bearer canary-in-header"})
            operator = service.operator()
            operator.machines()
            operator.http.close()
    finally:
        service.kill()
    lines = service.log_file.read_text().splitlines()
    assert all(json.loads(line)["level"] for line in lines)
    text = "\n".join(lines)
    assert "canary" not in text
    assert service.admin_token not in text
    assert "settings.weakened" in text


def test_workers_share_everything(tmp_path: Path) -> None:
    """First start with four workers: one key, one schema; a challenge works whichever worker answers."""
    service = ServiceProcess(directory=tmp_path, workers=4)
    service.start()
    try:
        node = SoftwareNode()

        def post(path: str, body: object) -> httpx.Response:
            # A connection of its own each time: the kernel chooses the worker.
            return httpx.post(service.url + path, json=body, timeout=60)

        keys = {httpx.get(f"{service.url}/api/v1/service-keys", timeout=60).text for _ in range(12)}
        assert len(keys) == 1
        introduced = post("/api/v1/self-register", node.introduction())
        assert introduced.status_code == 200, introduced.text
        body = node.activation(introduced.json())
        with ThreadPoolExecutor(8) as pool:
            answers = list(
                pool.map(lambda _: post(f"/api/v1/machines/{node.machine_id}/ak-activate", body), range(16))
            )
        assert sorted(answer.status_code for answer in answers) == [200] + [409] * 15
        operator = service.operator()
        assert operator.audit_is_valid()
        assert len(operator.machines()) == 1
        operator.http.close()
    finally:
        service.kill()


@pytest.mark.threat("T124", "T161")
def test_one_worker_that_fails_never_ends_the_others(tmp_path: Path, manager: socket.socket) -> None:
    """Killed: it is back. It cannot start: it is tried again, with words, while the other one serves, until it can."""
    service = ServiceProcess(
        directory=tmp_path,
        workers=2,
        environment={"ITL_ENROLLMENT_CA_UNENCRYPTED": "true", "NOTIFY_SOCKET": str(tmp_path / "notify")},
    )
    service.start()
    try:
        until(lambda: len(serving(service)) == 2)
        first = service.worker_pids()
        os.kill(first[0], signal.SIGKILL)
        until(lambda: len(serving(service) - {first[0]}) == 2)
        (key,) = (tmp_path / "ca").glob("itl-enrollment-ca-*.pem")
        kept = key.rename(tmp_path / "kept.pem")
        os.kill(first[1], signal.SIGKILL)
        until(lambda: ended(service, how="exit code 3") >= 2)
        assert '"service.unusable"' in service.log()
        assert "Traceback" not in service.log()
        for _ in range(8):
            assert httpx.get(f"{service.url}/healthz", timeout=60).status_code == 200
        kept.rename(key)
        until(lambda: len(serving(service)) == 2)
        started = service.pid
        workers = service.worker_pids()
        assert service.stop() == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in (started, *workers))
        # Whoever started it hears of the service, and of no worker.
        assert [manager.recv(100), manager.recv(100)] == [b"READY=1", b"STOPPING=1"]
        with pytest.raises(BlockingIOError):
            manager.recv(100)
        # Whose supervisor is gone does not stay behind on the port.
        service.start()
        workers = service.worker_pids()
        os.kill(service.pid, signal.SIGKILL)
        until(lambda: not any(running(pid) for pid in workers))
    finally:
        service.kill()
    assert ended(service, how="signal SIGKILL", served=True) == 2


def ended(service: ServiceProcess, **members: object) -> int:
    """Return how many workers the log says ended like that."""
    lines = map(json.loads, service.log_file.read_text().splitlines())
    found = [line for line in lines if line["event"] == "worker.ended"]
    return sum(all(line[name] == value for name, value in members.items()) for line in found)


def serving(service: ServiceProcess) -> set[int]:
    """Return which workers of now have said that they started."""
    lines = map(json.loads, service.log_file.read_text().splitlines())
    started = {line["pid"] for line in lines if line["event"] == "service.started"}
    return started & set(service.worker_pids())


def running(pid: int) -> bool:
    """Return True unless the process is gone, or waits to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def until(holds: Callable[[], bool]) -> None:
    """Wait until *holds*."""
    deadline = time.monotonic() + 240
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.threat("T130")
def test_a_full_disk_is_not_ready(tmp_path: Path) -> None:
    """Nothing more fits into the database's files: /readyz says so, and says when it fits again."""
    service = ServiceProcess(directory=tmp_path)
    service.start()
    try:
        wal = tmp_path / "machines.db-wal"
        assert service.log_file.stat().st_size < wal.stat().st_size // 2  # what it logs still fits
        before = resource.prlimit(service.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (wal.stat().st_size, before[1]))
        until(lambda: readiness(service) == (503, "failed: StoreUnavailable"))
        assert httpx.get(f"{service.url}/healthz", timeout=60).status_code == 200
        resource.prlimit(service.pid, resource.RLIMIT_FSIZE, before)
        until(lambda: readiness(service) == (200, "ok"))
    finally:
        service.kill()


def readiness(service: ServiceProcess) -> tuple[int, str]:
    """Ask whether it is ready, and return what it says of the database."""
    answer = httpx.get(f"{service.url}/readyz", timeout=60)
    return answer.status_code, answer.json()["checks"]["database"]


def test_the_factory_runs_under_any_server(tmp_path: Path) -> None:
    """`uvicorn --factory` with two workers needs no entry point of ours, and prints no token either."""
    port = free_port()
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [
                str(BIN / "uvicorn"), "--factory", "attestation_service.app:create_app",
                "--host", "127.0.0.1", "--port", str(port), "--workers", "2",
            ],
            cwd=tmp_path, env=environment(tmp_path), stdout=out, stderr=out,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 240
        while not accepts_connections(port):
            assert time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.2)
        answer = httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=60)
        assert answer.json()["status"] == "ok"
        httpx.get(f"http://127.0.0.1:{port}/api/v1/config/canary-in-path", timeout=60)
    finally:
        process.terminate()
        process.wait(60)
    assert "canary" not in log.read_text()


def test_a_unix_socket(tmp_path: Path) -> None:
    """Behind a socket, X-Forwarded-For of the proxy names the client."""
    path = tmp_path / "s"
    process = subprocess.Popen(
        [str(BIN / "attestation-service"), "--uds", str(path)],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + 240
        while not listens_on(path):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://x", timeout=60) as http:
            assert http.get("/healthz").status_code == 200
            node = SoftwareNode()
            headers = {"X-Forwarded-For": "203.0.113.9"}
            introduced = http.post("/api/v1/self-register", json=node.introduction(), headers=headers).json()
            body = node.activation(introduced)
            http.post(f"/api/v1/machines/{node.machine_id}/ak-activate", json=body, headers=headers)
            seen = http.get(
                f"/api/v1/machines/{node.machine_id}", headers={"Authorization": "Bearer " + "t" * 40}
            ).json()
            assert seen["registered_from"] == "203.0.113.9"
    finally:
        process.terminate()
        assert process.stderr is not None
        process.stderr.close()
        process.wait(60)


@pytest.mark.parametrize(
    ("more", "status", "words"),
    [
        ({}, 0, "A start would serve"),
        ({"ITL_TPM_ALLOW_SIMULATOR": "true"}, 0, "ITL_TPM_ALLOW_SIMULATOR"),
        ({"ITL_TPM_ALOW_SIMULATOR": "true"}, 2, "did you mean ITL_TPM_ALLOW_SIMULATOR"),
        ({"ITL_DB_URL": "sqlite:////nowhere/at/all/machines.db"}, 1, "FAILED   database"),
        ({"ITL_DB_URL": "mysql://x"}, 1, "FAILED   database"),
        ({"ITL_SERVICE_KEY": "pkcs11:object=x"}, 1, "FAILED   service key"),
    ],
    ids=str,
)
def test_check(tmp_path: Path, more: dict[str, str], status: int, words: str) -> None:
    """`--check` says whether the service would start, and what is weakened."""
    done = subprocess.run(
        [str(BIN / "attestation-service"), "--check", "--port", "0"],
        cwd=tmp_path,
        env=environment(tmp_path, **more),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert words in done.stdout + done.stderr
    assert not re.search("t{40}", done.stdout + done.stderr)
    assert list(tmp_path.iterdir()) == []
