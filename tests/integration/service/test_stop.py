"""How a service ends: not ready first, what was accepted finished, nobody waited for who asks nothing, and in time."""

from __future__ import annotations

import json
import select
import signal
import socket
import sqlite3
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.fixtures.operator_pki import OperatorCA
from tests.fixtures.service import ServiceProcess
from tests.unit.service.node import SoftwareNode

GET = b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n"


@contextmanager
def running(directory: Path, *, workers: int = 1, **environment: str) -> Iterator[ServiceProcess]:
    """Run a service."""
    service = ServiceProcess(directory=directory, workers=workers, environment=environment)
    service.start()
    try:
        yield service
    finally:
        service.kill()


def connect(service: ServiceProcess) -> socket.socket:
    """Open a connection to it."""
    if service.socket is None:
        return socket.create_connection(("127.0.0.1", service.port), timeout=60)
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(60)
    connection.connect(str(service.socket))
    return connection


def ask(connection: socket.socket, path: str) -> bytes:
    """Ask on an open connection, and return the answer."""
    connection.sendall(GET % path.encode())
    return answer(connection)


def answer(connection: socket.socket) -> bytes:
    """Read one answer whole."""
    read = b""
    while b"\r\n\r\n" not in read:
        read += (piece := connection.recv(65536))
        assert piece, read
    head, _, body = read.partition(b"\r\n\r\n")
    (length,) = (int(line[15:]) for line in head.lower().splitlines() if line.startswith(b"content-length:"))
    while len(body) < length:
        body += (piece := connection.recv(65536))
        assert piece, body
    return head + b"\r\n\r\n" + body


def begun(service: ServiceProcess, body: bytes, *, announced: int | None = None) -> socket.socket:
    """Return a connection whose introduction was accepted, and whose body is not there yet."""
    connection = connect(service)
    head = (
        "POST /api/v1/self-register HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Expect: 100-continue\r\nContent-Length: {announced or len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode())
    # Somebody waits for the body: the request was accepted.
    assert connection.recv(1024) == b"HTTP/1.1 100 Continue\r\n\r\n"
    return connection


def tell(service: ServiceProcess, number: signal.Signals = signal.SIGTERM) -> None:
    """Send a signal to the process that was started."""
    assert service._process is not None
    service._process.send_signal(number)


def ended(service: ServiceProcess, seconds: float) -> int:
    """Wait for its end; who takes longer fails the test."""
    assert service._process is not None
    return service._process.wait(seconds)


def until(holds: Callable[[], bool]) -> None:
    """Wait until *holds*."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def events(service: ServiceProcess) -> list[str]:
    """Return what it logged."""
    return [json.loads(line)["event"] for line in service.log_file.read_text().splitlines()]


KINDS = pytest.mark.parametrize(
    ("workers", "unix"), [(1, False), (2, False), (1, True)], ids=["1", "2", "unix"]
)


@KINDS
def test_it_is_not_ready_before_it_is_gone(tmp_path: Path, workers: int, unix: bool) -> None:
    """While load balancers notice: `/readyz` is 503, who comes is served, and is told to come to another one next.

    Connections that ask nothing keep nobody: it ends long before its time, which is ten minutes.
    """
    service = ServiceProcess(
        directory=tmp_path,
        workers=workers,
        socket=tmp_path / "s" if unix else None,
        environment={"ITL_SHUTDOWN_DELAY_SECONDS": "4", "ITL_SHUTDOWN_SECONDS": "600"},
    )
    service.start()
    try:
        with connect(service) as idle, connect(service) as kept:
            assert b"connection: close" not in ask(kept, "healthz")
            ask(idle, "healthz")
            tell(service)
            # Each worker says so, and before them whoever supervises them.
            until(lambda: events(service).count("service.stopping") >= workers + (workers > 1))
            with connect(service) as fresh:
                told = ask(fresh, "readyz")
            assert told.startswith(b"HTTP/1.1 503 ")
            assert b'"process":"stopping"' in told
            still = ask(kept, "healthz")
            assert still.startswith(b"HTTP/1.1 200 ")
            assert b"connection: close" in still
            assert kept.recv(1) == b""
            assert ended(service, 120) == 0
        assert "service.stopped" in events(service)
    finally:
        service.kill()


@pytest.mark.parametrize("workers", [1, 2])
def test_what_takes_too_long_is_cut_and_not_half_stored(tmp_path: Path, workers: int) -> None:
    """A body that comes byte by byte holds nobody beyond the time; of its request nothing is there."""
    with running(tmp_path, workers=workers, ITL_SHUTDOWN_SECONDS="3") as service:
        body = json.dumps(SoftwareNode().introduction()).encode()
        with begun(service, body) as slow:
            tell(service)
            began = time.monotonic()
            code = None
            for number in range(len(body)):
                if (code := service._process.poll()) is not None:  # type: ignore[union-attr]
                    break
                try:
                    slow.sendall(body[number : number + 1])
                except OSError:
                    break
                time.sleep(0.05)
            code = ended(service, 60)
        assert code == 0
        assert time.monotonic() - began < 30  # a loaded host; without a bound it were for ever
        assert "service.cut" not in events(service)
        with closing(sqlite3.connect(service.database)) as db:
            assert db.execute("SELECT count(*) FROM machines").fetchone() == (0,)
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """Nobody waits for what is in flight any more."""
    with running(tmp_path, ITL_SHUTDOWN_SECONDS="600") as service, begun(service, b"x" * 100):
        tell(service)
        until(lambda: "service.stopping" in events(service))
        tell(service)
        assert ended(service, 60) == -signal.SIGTERM
        assert "service.stopped" not in events(service)


def test_what_hangs_is_cut(tmp_path: Path) -> None:
    """Also where the database is locked by somebody, and what was accepted waits for it."""
    with running(tmp_path, ITL_SHUTDOWN_SECONDS="2", ITL_MAINTENANCE_SECONDS="0.1") as service:
        node = SoftwareNode()
        body = json.dumps(node.introduction()).encode()
        with closing(sqlite3.connect(service.database, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with begun(service, body) as connection:
                connection.sendall(body)
                tell(service)
                assert ended(service, 60) == 1
            assert "service.cut" in events(service)
            other.execute("ROLLBACK")


def test_idle_connections_with_tls_keep_nobody(tmp_path: Path) -> None:
    """Nor does whoever never says goodbye."""
    servers = OperatorCA(datetime.now(UTC), "Servers")
    certificate, key = servers.server("127.0.0.1").files(tmp_path, "server")
    tls = {"ITL_TLS_CERT_FILE": str(certificate), "ITL_TLS_KEY_FILE": str(key)}
    service = ServiceProcess(directory=tmp_path, environment={"ITL_SHUTDOWN_SECONDS": "600", **tls})
    service.trust = tmp_path / "ca.pem"
    service.trust.write_bytes(servers.pem)
    service.start()
    try:
        context = ssl.create_default_context(cafile=service.trust)
        with context.wrap_socket(connect(service), server_hostname="127.0.0.1") as idle:
            ask(idle, "healthz")
            tell(service)
            assert idle.recv(1) == b""
            end = select.poll()
            end.register(idle, select.POLLRDHUP)
            assert end.poll(4_000)  # TLS would wait five seconds for an answer to its goodbye
            assert ended(service, 120) == 0
    finally:
        service.kill()
