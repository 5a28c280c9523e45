"""The proxy of this tier does what it says: else its tests would prove nothing."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from tests.fixtures.fault_proxy import Fault, FaultProxy, Trap


class Echo(socketserver.BaseRequestHandler):
    """Sends back what comes, and remembers it."""

    heard = b""

    def handle(self) -> None:
        """Serve one connection."""
        try:
            while data := self.request.recv(1 << 16):
                type(self).heard += data
                self.request.sendall(data)
        except ConnectionError:
            pass


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    """A proxy before an echo."""
    Echo.heard = b""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        with FaultProxy(server.server_address[1]) as proxy:
            yield proxy
        server.shutdown()
        thread.join()


def connected(proxy: FaultProxy) -> socket.socket:
    """Return a connection through *proxy* that works."""
    found = socket.create_connection(("127.0.0.1", proxy.port), timeout=60)
    found.sendall(b"hello")
    assert received(found, 5) == b"hello"
    return found


def received(connection: socket.socket, count: int) -> bytes:
    """Return the next *count* bytes."""
    with connection.makefile("rb", buffering=0) as file:
        found = b""
        while len(found) < count and (more := file.read(count - len(found))):
            found += more
    return found


def is_silent(connection: socket.socket) -> bool:
    """Say something, and return True where neither an answer nor an end comes."""
    connection.settimeout(0.2)
    connection.sendall(b"lost")
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    return False


def test_slow_and_in_drops_all_bytes_come(proxy: FaultProxy) -> None:
    """In order, and not before their time."""
    data = bytes(range(256)) * 4
    with connected(proxy) as connection:
        proxy.latency_seconds, proxy.drip_bytes_per_second = 0.1, 10_000
        started = time.monotonic()
        connection.sendall(data)
        assert received(connection, len(data)) == data
        assert time.monotonic() - started >= 0.2 + len(data) / 10_000


def test_cut(proxy: FaultProxy) -> None:
    """In order, or by RST, also at a byte that was chosen; new connections are served."""
    with connected(proxy) as one, connected(proxy) as other:
        assert proxy.cut(Fault.FIN) == 2
        assert (one.recv(1), other.recv(1)) == (b"", b"")
    with connected(proxy) as connection:
        assert proxy.cut(Fault.RESET) == 1
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with connected(proxy) as connection:
        Echo.heard = b""
        proxy.cut_after_bytes = 3
        connection.sendall(b"12345")
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    connected(proxy).close()
    assert Echo.heard in (b"hello", b"123hello")  # an RST may overtake what was sent before it


def test_silence(proxy: FaultProxy) -> None:
    """Open connections and new ones; one that lost bytes is never good again, the others are."""
    with connected(proxy) as lost, connected(proxy) as kept:
        proxy.silent = True
        assert is_silent(lost)
        with socket.create_connection(("127.0.0.1", proxy.port)) as new:
            assert is_silent(new)
        proxy.silent = False
        assert is_silent(lost)
        kept.sendall(b"kept")
        assert received(kept, 4) == b"kept"


@pytest.mark.parametrize("delivered", [True, False])
@pytest.mark.parametrize("fault", Fault)
def test_trap(proxy: FaultProxy, fault: Fault, delivered: bool) -> None:
    """Once, for the connection that says the words; whether the server hears them is chosen."""
    with connected(proxy) as connection, connected(proxy) as other:
        trap = proxy.trap = Trap(said=b"COMMIT", delivered=delivered, fault=fault)
        Echo.heard = b""
        if fault is Fault.SILENCE:
            connection.sendall(b"COMMIT")
            assert is_silent(connection)
        else:
            connection.sendall(b"COMMIT")
            try:
                assert connection.recv(10) in (b"", b"COMMIT" if fault is Fault.FIN else b"")
            except ConnectionResetError:
                assert fault is Fault.RESET
        assert trap.sprung.is_set()
        other.sendall(b"COMMIT")
        assert received(other, 6) == b"COMMIT"
        deadline = time.monotonic() + 60
        while Echo.heard.count(b"COMMIT") < 1 + delivered and time.monotonic() < deadline:
            time.sleep(0.01)
        assert Echo.heard.count(b"COMMIT") == 1 + delivered
