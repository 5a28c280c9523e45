"""The running service and strangers who cost as much as they can: raw sockets, no proof of anything."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socket
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from tests.fixtures.operator_pki import OperatorCA
from tests.fixtures.service import ServiceProcess, StartService, service, start_service
from tests.unit.service.node import SoftwareNode

__all__ = ["service", "start_service"]


def cpu_seconds(pid: int) -> float:
    """Return what process *pid* has used of a processor."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mib(pid: int) -> int:
    """Return the most memory that process *pid* has had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) >> 10


def problem(answer: httpx.Response) -> str:
    """Return the code of a problem."""
    return str(answer.json()["type"]).rpartition(":")[2]


UNKNOWN = json.dumps({f"m{i:07}": 0 for i in range(250_000)}).encode()
"""4 MB of members that no route knows."""


@pytest.mark.threat("T123")
@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/api/v1/attest", "body-too-complex"),
        ("/api/v1/self-register", "body-too-large"),
        ("/api/v1/machines/x/approve", "body-too-large"),
    ],
)
def test_unknown_members_cost_nothing(service: ServiceProcess, path: str, code: str) -> None:
    """A quarter of a million of them took five seconds of the loop and a gigabyte."""
    before, memory = cpu_seconds(service.pid), peak_mib(service.pid)
    answer = httpx.post(
        service.url + path, content=UNKNOWN, headers={"Content-Type": "application/json"}, timeout=60
    )
    assert problem(answer) == code
    assert cpu_seconds(service.pid) - before < 0.7
    assert peak_mib(service.pid) - memory < 32


def test_an_operators_route_parses_within_bounds_before_it_asks_who(service: ServiceProcess) -> None:
    """What is parsed before a credential is looked at is bounded like anybody's."""
    body = json.dumps({f"m{i}": 0 for i in range(20_000)}).encode()
    answer = httpx.post(
        f"{service.url}/api/v1/policies/learn",
        content=body,
        headers={"Content-Type": "application/json"},
        timeout=60,
    )
    assert problem(answer) == "body-too-complex"


def test_a_machine_with_a_long_honest_body_is_served(service: ServiceProcess) -> None:
    """Beyond 16 KiB it is parsed elsewhere, to the same effect."""
    body = SoftwareNode().introduction()
    body["ek_chain"] = ["A" * 20_000]
    assert httpx.post(f"{service.url}/api/v1/self-register", json=body, timeout=60).status_code == 200
    body["ek_chain"] = ["A" * 20_000, 7]
    answer = httpx.post(f"{service.url}/api/v1/self-register", json=body, timeout=60)
    assert [e["field"] for e in answer.json()["errors"]] == ["body.ek_chain.1"]


# ---------------------------------------------------------------- heads


def answers(service: ServiceProcess, *pieces: bytes) -> bytes:
    """Send *pieces* on one connection and return everything that comes back until it ends."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection:
        try:
            for piece in pieces:
                connection.sendall(piece)
        except OSError:
            pass  # it ended meanwhile: what was said before is still to be read
        found = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(65536):
                found += piece
        return found


def head(
    *fields: bytes, target: bytes = b"/healthz", version: bytes = b"HTTP/1.1", host: bytes = b"Host: x"
) -> bytes:
    """Return the head of a request that ends its connection."""
    lines = [b"GET " + target + b" " + version, host, b"Connection: close", *fields]
    return b"\r\n".join(line for line in lines if line) + b"\r\n\r\n"


NO_REQUESTS = {
    "long field": (431, head(b"X: " + b"x" * 8_193)),
    "long certificate": (431, head(b"X-Client-Cert: " + b"x" * (8_193 - len("X-Client-Cert")))),
    "long target": (431, head(target=b"/" + b"x" * 8_193)),
    "long head": (431, head(*(b"X%d: " % i + b"x" * 1_000 for i in range(17)))),
    "many fields": (431, head(*(b"X%d: x" % i for i in range(100)))),
    "no host": (400, head(host=b"")),
    "two hosts": (400, head(b"Host: y")),
    "HTTP/0.9": (400, b"GET /healthz\r\n\r\n"),
    "HTTP/0.9 by name": (400, head(version=b"HTTP/0.9")),
    "HTTP/2 over HTTP/1": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "no HTTP": (400, b"\x16\x03\x01 what TLS begins with, sent to a port without it\r\n\r\n"),
    "two lengths": (400, head(b"Content-Length: 1", b"Content-Length: 2")),
    "length and pieces": (400, head(b"Content-Length: 1", b"Transfer-Encoding: chunked")),
}


@pytest.mark.threat("T139")
@pytest.mark.parametrize("which", NO_REQUESTS)
def test_what_is_no_request_is_a_problem(service: ServiceProcess, which: str) -> None:
    """A form, a code and an id like every other refusal, the connection ends, and nobody else notices."""
    status, sent = NO_REQUESTS[which]
    first, _, body = answers(service, sent).partition(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 %d " % status), first
    assert b"content-type: application/problem+json" in first.lower()
    assert b"connection: close" in first.lower()
    found = json.loads(body)
    assert found["type"] == f"urn:itl:problem:{'head-too-large' if status == 431 else 'malformed-request'}"
    assert found["instance"].startswith("connection-")
    assert f"x-request-id: {found['instance']}".encode() in first.lower()
    assert httpx.get(f"{service.url}/healthz", timeout=60).status_code == 200


def test_what_is_a_request_passes(service: ServiceProcess) -> None:
    """Right below the limits; also in HTTP/1.0, as old proxies speak."""
    fields = [b"X%d: " % i + b"x" * 100 for i in range(97)]
    for sent in (head(*fields), head(b"X: " + b"x" * 8_000), head(version=b"HTTP/1.0")):
        assert answers(service, sent).startswith(b"HTTP/1.1 200 ")


@pytest.mark.threat("T139")
@pytest.mark.parametrize(
    "begins", [b"GET / HTTP/1.1\r\nX: ", b"GET /", b"\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n"]
)
def test_a_head_without_end_fills_no_memory(service: ServiceProcess, begins: bytes) -> None:
    """Half a gigabyte of it was read once, and answered with 200."""
    memory = peak_mib(service.pid)
    filler = begins if begins == b"\r\n" else b"X: y\r\n" if begins.endswith(b"x\r\n") else b"x"
    with (
        socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection,
        contextlib.suppress(OSError),
    ):
        connection.sendall(begins)
        for _ in range(64):
            connection.sendall(filler * (1 << 20))
        pytest.fail("64 MiB of head were read")
    assert peak_mib(service.pid) - memory < 16


@pytest.mark.threat("T139")
def test_fields_behind_a_body_are_no_fields(service: ServiceProcess) -> None:
    """A trailer comes when everything about a request was decided: it adds nothing, and is bounded too."""
    start = b"POST /api/v1/attest HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    answer = answers(service, start + b"X-Request-Id: from-a-trailer\r\n\r\n" + head())
    assert answer.count(b"HTTP/1.1 ") == 2
    assert b"from-a-trailer" not in answer
    with (
        socket.create_connection(("127.0.0.1", service.port), timeout=60) as connection,
        contextlib.suppress(OSError),
    ):
        connection.sendall(start)
        for _ in range(64):
            connection.sendall(b"X: y\r\n" * (1 << 17))
        pytest.fail("64 MiB of trailers were read")


@pytest.mark.threat("T139")
def test_requests_in_a_row_are_bounded(service: ServiceProcess) -> None:
    """A few are answered in order; thousands at once end the connection."""
    few = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 5 + head()
    assert answers(service, few).count(b"HTTP/1.1 200 ") == 6
    before = cpu_seconds(service.pid)
    many = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 20_000
    assert answers(service, many).count(b"HTTP/1.1 200 ") <= 64
    assert cpu_seconds(service.pid) - before < 1


@pytest.mark.threat("T139")
def test_a_body_in_tiny_pieces_is_given_up(service: ServiceProcess) -> None:
    """Two million callbacks for four megabytes are work that no limit of size bounds."""
    start = b"POST /api/v1/attest HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    before = cpu_seconds(service.pid)
    assert b" 200 " not in answers(service, start, b"1\r\nx\r\n" * 500_000)
    assert cpu_seconds(service.pid) - before < 1


def test_who_is_refused_unread_gets_to_know_why(service: ServiceProcess) -> None:
    """Ending a connection with bytes unread would take the answer back from under the client."""
    for _ in range(3):
        answer = httpx.post(f"{service.url}/api/v1/self-register", content=b"x" * 900_000, timeout=60)
        assert problem(answer) == "body-too-large"


# ---------------------------------------------------------------- time


@contextlib.contextmanager
def connections(
    service: ServiceProcess, many: int, sent: bytes, source: str = "127.0.0.1"
) -> Iterator[list[socket.socket]]:
    """Hold *many* connections from *source*, on each of which *sent* was sent and no more."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(many):
            with contextlib.suppress(OSError):
                connection = socket.create_connection(
                    ("127.0.0.1", service.port), 20, source_address=(source, 0)
                )
                found.append(stack.enter_context(connection))
                connection.sendall(sent)
        yield found


def ended(connection: socket.socket) -> bool:
    """Return True if the other side has ended *connection*."""
    connection.setblocking(False)
    try:
        while connection.recv(65536):
            pass  # what was said before
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


HALVES = {
    "nothing": b"",
    "half a head": b"GET /healthz HTTP/1.1\r\nHost: ",
    "half a body": b"POST /api/v1/attest HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n{",
}


@pytest.fixture(scope="module")
def hasty(start_service: StartService) -> ServiceProcess:
    """A service that waits a second or two for everything."""
    return start_service(
        ITL_HEAD_SECONDS="1",
        ITL_BODY_SECONDS="1",
    )


@pytest.mark.threat("T140")
@pytest.mark.parametrize("half", HALVES)
def test_slow_connections_starve_nobody(hasty: ServiceProcess, half: str) -> None:
    """1,100 from one address, which once starved `/readyz`; all are gone soon, however they dawdle."""
    with connections(hasty, 1_100, HALVES[half], "127.0.0.2") as held:
        for _ in range(3):
            assert httpx.get(f"{hasty.url}/readyz", timeout=60).status_code == 200
        deadline = time.monotonic() + 120
        while not all(map(ended, held)):
            assert time.monotonic() < deadline, "connections that say nothing are kept"
            time.sleep(0.2)
        assert httpx.get(f"{hasty.url}/readyz", timeout=60).status_code == 200


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """As `hasty`, with TLS of its own."""
    directory = tmp_path_factory.mktemp("secured")
    servers = OperatorCA(datetime.now(UTC).replace(microsecond=0), "Servers")
    (directory / "servers.pem").write_bytes(servers.pem)
    certificate, key = servers.server("attest.example.test").files(directory, "tls")
    environment = {
        "ITL_TLS_CERT_FILE": str(certificate),
        "ITL_TLS_KEY_FILE": str(key),
        "ITL_HEAD_SECONDS": "2",
        "ITL_BODY_SECONDS": "1",
    }
    service = ServiceProcess(directory=directory, trust=directory / "servers.pem", environment=environment)
    try:
        service.start()
        yield service
    finally:
        service.kill()


def context(service: ServiceProcess) -> ssl.SSLContext:
    """Return what a client needs to trust *service*."""
    return ssl.create_default_context(cafile=service.trust)


@contextlib.contextmanager
def within_tls(service: ServiceProcess) -> Iterator[ssl.SSLSocket]:
    """Yield a connection whose handshake is over."""
    with (
        socket.create_connection(("127.0.0.1", service.port), 60) as plain,
        context(service).wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        yield connection


@pytest.mark.threat("T140")
@pytest.mark.parametrize("half", [b"", b"\x16\x03\x01\x02\x00\x01", b"no TLS at all, but HTTP\r\n\r\n"])
def test_slow_handshakes_starve_nobody(secured: ServiceProcess, half: bytes) -> None:
    """Before a handshake is over there is no request that could be limited: it is counted and timed all the same."""
    with connections(secured, 1_100, half, "127.0.0.2") as held:
        assert httpx.get(f"{secured.url}/readyz", timeout=60, verify=context(secured)).status_code == 200
        deadline = time.monotonic() + 120
        while not all(map(ended, held)):
            assert time.monotonic() < deadline, "handshakes that do not go on are kept"
            time.sleep(0.2)
    assert httpx.get(f"{secured.url}/readyz", timeout=60, verify=context(secured)).status_code == 200


@pytest.mark.threat("T139")
def test_heads_behind_tls_have_the_same_limits(secured: ServiceProcess) -> None:
    """What is refused on the plain port is refused here, in the same form; what is right passes, in any pieces."""
    with within_tls(secured) as connection:
        connection.sendall(head(b"X: " + b"x" * 8_193))
        assert connection.recv(65536).startswith(b"HTTP/1.1 431 ")
    with within_tls(secured) as connection:
        for byte in head():
            connection.sendall(bytes([byte]))
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    with within_tls(secured) as connection:
        connection.sendall(HALVES["half a head"])
        assert connection.recv(65536) == b""  # after two seconds


@pytest.mark.threat("T140")
def test_a_head_drop_by_drop_is_given_up(hasty: ServiceProcess) -> None:
    """Each byte is a sign of life, and none of them buys more time."""
    with connections(hasty, 1, b"GET /healthz HTTP/1.1\r\nX: ") as (connection,):
        deadline = time.monotonic() + 120
        while not ended(connection):
            assert time.monotonic() < deadline
            with contextlib.suppress(OSError):
                connection.setblocking(True)
                connection.sendall(b"x")
            time.sleep(0.1)


@pytest.mark.threat("T140")
def test_half_sent_bodies_hold_bounded_memory(start_service: StartService) -> None:
    """A hundred times almost four megabytes held them all; here neither time nor bytes ends them, but memory does."""
    service = start_service(
        ITL_BODY_SECONDS="600",
        ITL_BODY_KIB_PER_SECOND=str(1 << 20),
        ITL_BODY_MEMORY_MIB="8",
        ITL_BODY_MEMORY_MIB_PER_ADDRESS="4",
    )
    memory = peak_mib(service.pid)
    half = b"POST /api/v1/attest HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n" + b"x" * 3_900_000
    with connections(service, 60, b"") as held:
        for connection in held:
            with contextlib.suppress(OSError):
                connection.settimeout(5)
                connection.sendall(half)
        # There is room for one: the others are told so, and then nothing of them is kept.
        told, _, _ = select.select(held, [], [], 5)
        deadline = time.monotonic() + 120
        while len(told) < len(held) - 1:
            assert time.monotonic() < deadline, f"{len(held) - len(told)} bodies are waited for"
            time.sleep(0.1)
            told, _, _ = select.select(held, [], [], 0)
        assert {connection.recv(13) for connection in told} == {b"HTTP/1.1 429 "}
        assert peak_mib(service.pid) - memory < 100
        machine = httpx.post(
            f"{service.url}/api/v1/self-register", json=SoftwareNode().introduction(), timeout=20
        )
        assert machine.status_code == 200


@pytest.mark.threat("T140")
def test_an_answer_that_nobody_reads_is_given_up(start_service: StartService) -> None:
    """It holds memory of ours as a half-sent body does; what comes behind it, byte by byte, buys no time."""
    service = start_service(ITL_WRITE_SECONDS="1", ITL_HEAD_SECONDS="60")
    with connections(service, 1, b"") as (connection,):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        # Fewer than may wait for their answers, and more than fits between us.
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 6 + b"GET /")
        deadline = time.monotonic() + 120
        with contextlib.suppress(OSError):
            while True:
                assert time.monotonic() < deadline, "it is still being written to"
                connection.sendall(b"x")
                time.sleep(0.1)


@pytest.mark.threat("T140")
def test_all_connections_taken_the_longest_waiting_makes_room(start_service: StartService) -> None:
    """From many addresses, no address has too many; who comes with a request is served all the same."""
    service = start_service(ITL_CONNECTIONS="40", ITL_CONNECTIONS_PER_ADDRESS="10", ITL_HEAD_SECONDS="600")
    with contextlib.ExitStack() as stack:
        for i in range(2, 12):
            stack.enter_context(connections(service, 10, HALVES["half a head"], f"127.0.0.{i}"))
        assert httpx.get(f"{service.url}/readyz", timeout=60).status_code == 200


@pytest.mark.threat("T140")
def test_so_many_requests_at_once_and_probes_beside_them(start_service: StartService) -> None:
    """What would only wait is told to come back; probes are answered."""
    service = start_service(ITL_REQUESTS_AT_ONCE="1")
    url = f"{service.url}/api/v1/attest/challenge?machine_id=7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"
    codes: set[str] = set()
    deadline = time.monotonic() + 120
    sent = f"GET {url} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
    while "service-busy" not in codes and time.monotonic() < deadline:
        with connections(service, 20, sent) as held:
            assert httpx.get(f"{service.url}/healthz", timeout=60).status_code == 200
            for connection in held:
                codes |= set(re.findall(r"urn:itl:problem:([a-z-]+)", connection.recv(65536).decode()))
    assert codes == {"machine-unknown", "service-busy"}
