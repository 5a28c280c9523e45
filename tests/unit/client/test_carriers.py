"""What carries requests, before servers that behave and servers that do not."""

from __future__ import annotations

import contextlib
import datetime as dt
import http.client
import io
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from attestation.client import AnswerInvalid, APIError, Retries, ServiceUnreachable, TLSFailed, plain
from attestation.client.carrier import READ_SECONDS
from attestation.client.connection import HTTPSender, proxy_for
from attestation.client.errors import Redirected
from attestation.errors import RequestInvalid

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: 2\r\nX-Name: v\r\n\r\n{}"
HANG = b"hang"


class Drip(NamedTuple):
    """An answer without end: *first*, then *again* and again."""

    first: bytes
    again: bytes


class Server:
    """Answers each request on loopback with the next of its raw answers, and remembers what it read."""

    def __init__(self, *answers: bytes | Drip, context: ssl.SSLContext | None = None) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._answers = iter(answers)
        self._context = context
        self._open: list[socket.socket] = []
        self.requests: list[bytes] = []
        self.connections = 0
        self.port: int = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(peer)
            threading.Thread(target=self._talk, args=(peer,), daemon=True).start()

    def _talk(self, peer: socket.socket) -> None:
        try:
            with self._context.wrap_socket(peer, server_side=True) if self._context else peer as stream:
                self._open.append(stream)
                while (request := _read(stream)) is not None:
                    self.requests.append(request)
                    answer = next(self._answers, b"")
                    if answer == HANG:
                        stream.recv(1)  # until the client has gone
                        return
                    if isinstance(answer, Drip):
                        stream.sendall(answer.first)
                        while True:
                            time.sleep(0.01)
                            stream.sendall(answer.again)
                    stream.sendall(answer)
                    if not answer.startswith(b"HTTP") or b"close" in answer or b"cut" in answer:
                        return
        except OSError:
            return

    def hang_up(self) -> None:
        """Close every connection, as a server does with idle ones."""
        for peer in self._open:
            try:
                peer.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        self._open.clear()

    def close(self) -> None:
        """End it."""
        # Closing alone leaves it open for as long as somebody waits in `accept`.
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(60)
        self.hang_up()


def _read(stream: socket.socket) -> bytes | None:
    data = b""
    while b"\r\n\r\n" not in data:
        more = stream.recv(65536)
        if not more:
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        ),
        0,
    )
    while len(body) < length:
        body += stream.recv(65536)
    return head + b"\r\n\r\n" + body


class Tunnel(Server):
    """A proxy: it connects whoever asks for any name to one port of this computer, and hands the bytes over."""

    def __init__(self, to: int) -> None:
        self._to = to
        super().__init__()

    def _talk(self, peer: socket.socket) -> None:
        self.requests.append(_read(peer) or b"")
        peer.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with peer, socket.create_connection(("127.0.0.1", self._to)) as beyond:
            self._open.append(beyond)
            threading.Thread(target=_hand_over, args=(beyond, peer), daemon=True).start()
            _hand_over(peer, beyond)


def _hand_over(giving: socket.socket, taking: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := giving.recv(65536):
            taking.sendall(data)
        taking.shutdown(socket.SHUT_WR)


StartServer = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[StartServer]:
    """Start servers; all end with the test."""
    started: list[Server] = []

    def start(*answers: bytes, **more: Any) -> Server:
        started.append(Server(*answers, **more))
        return started[-1]

    yield start
    for server in started:
        server.close()


def connect(server: Server, **more: Any) -> HTTPSender:
    return HTTPSender(f"http://127.0.0.1:{server.port}", **more)


def test_a_request_arrives_as_it_was_meant(serve: StartServer) -> None:
    """Verb, path, query, headers and body; the answer's headers are found whatever their case."""
    server = serve(OK, OK, OK)
    with connect(server, headers={"Authorization": "Bearer t"}) as connection:
        answer = connection.send("GET", "/machines", params={"q": "a b&c=ü+", "limit": 2})
        connection.send("POST", "/machines/x/approve", body={"role": "generic"})
        connection.send("POST", "/machines/x/unlock")
    assert (answer.status, answer.media_type, answer.body) == (200, "application/json", b"{}")
    assert answer.headers["x-name"] == "v"
    first, second, third = (request.decode() for request in server.requests)
    assert first.splitlines()[0] == "GET /api/v1/machines?q=a+b%26c%3D%C3%BC%2B&limit=2 HTTP/1.1"
    assert f"\r\nhost: 127.0.0.1:{server.port}\r\n" in first.lower()
    assert "\r\nAuthorization: Bearer t\r\n" in first
    assert "\r\nAccept-Encoding: identity\r\n" in first
    assert "\r\nAccept: application/json\r\n" in first
    assert second.endswith('\r\n\r\n{"role": "generic"}')
    assert "\r\nContent-Type: application/json\r\n" in second
    assert "\r\ncontent-length: 0\r\n" in third.lower()


def test_a_connection_is_kept_between_requests(serve: StartServer) -> None:
    """A listing of many pages needs one connection, an answer that says `close` another one."""
    server = serve(OK, OK, OK.replace(b"X-Name: v", b"Connection: close"), OK)
    with connect(server) as connection:
        for _ in range(4):
            connection.send("GET", "/x")
    assert server.connections == 2


def test_a_connection_in_use_is_closed_when_it_is_given_back(serve: StartServer) -> None:
    """A client may be closed while another thread reads its answer: nobody would close the connection then."""
    server = serve(OK)
    carrier = plain.PlainCarrier(f"http://127.0.0.1:{server.port}", None)
    reply = carrier.send("GET", f"http://127.0.0.1:{server.port}/", {}, None)
    connection = reply._connection
    carrier.close()
    assert b"".join(reply.chunks()) == b"{}"
    reply.close()
    assert connection.sock is None


def test_a_connection_that_the_server_closed_is_not_used_again(serve: StartServer) -> None:
    """Not even for a request that must not be repeated."""
    server = serve(OK, OK)
    with connect(server) as connection:
        connection.send("GET", "/x")
        server.hang_up()
        time.sleep(0.05)
        connection.send("POST", "/x")
    assert server.connections == 2


def test_a_connection_that_rested_too_long_is_not_used_again(
    serve: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers end what is idle; whoever uses it at that moment would lose an act that must not be repeated."""
    monkeypatch.setattr("attestation.client.plain.IDLE_SECONDS", 0.0)
    server = serve(OK, OK)
    with connect(server) as connection:
        connection.send("POST", "/x")
        connection.send("POST", "/x")
    assert server.connections == 2


def test_threads_share_a_client_and_never_a_connection(serve: StartServer) -> None:
    """Each gets the answers to its own questions."""
    server = serve(*[OK] * 80)
    failures: list[BaseException] = []
    with connect(server) as connection:

        def ask(name: str) -> None:
            try:
                for _ in range(10):
                    assert connection.send("GET", f"/{name}").body == b"{}"
            except BaseException as e:
                failures.append(e)

        threads = [threading.Thread(target=ask, args=(f"t{number}",)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert failures == []
    assert len(server.requests) == 80
    for request in server.requests:
        assert request.startswith(b"GET /api/v1/t")
        assert request.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{} \r\n1\r\n \r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}  ",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n{}  ",
    ],
)
def test_every_framing_is_read(serve: StartServer, answer: bytes) -> None:
    """Chunked, by length, to the end of the connection (RFC 9112 §6.3)."""
    with connect(serve(answer)) as connection:
        assert connection.send("GET", "/x").body == b"{}  "


def test_an_answer_without_a_body(serve: StartServer) -> None:
    """204, and the connection lives on."""
    server = serve(b"HTTP/1.1 204 No Content\r\n\r\n", OK)
    with connect(server) as connection:
        assert connection.send("DELETE", "/x").body == b""
        connection.send("GET", "/x")
    assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"cut",
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\nX: cut\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX: cut\r\n\r\n3\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX: cut\r\n\r\nzz\r\n{}",
        b"SSH-2.0-OpenSSH_9.2\r\n",
    ],
)
def test_what_is_cut_off_is_no_answer(serve: StartServer, answer: bytes) -> None:
    """Half an answer is none; and the request may have been heard, so an act is not repeated."""
    server = serve(answer, answer, answer)
    retries = Retries(sleep=lambda seconds: None)
    with connect(server, retries=retries) as connection, pytest.raises(ServiceUnreachable) as caught:
        connection.send("POST", "/x")
    assert caught.value.sent
    assert len(server.requests) == 1


def test_nobody_there(serve: StartServer) -> None:
    """Nothing was sent, so even an act is tried again; the message has the system's words."""
    server = Server()
    server.close()
    tried: list[float] = []
    retries = Retries(sleep=tried.append)
    with connect(server, retries=retries) as connection, pytest.raises(ServiceUnreachable) as caught:
        connection.send("POST", "/x")
    assert not caught.value.sent
    assert "cannot connect to" in str(caught.value)
    assert "refused" in str(caught.value)
    assert len(tried) == 2


def test_a_server_that_says_nothing(serve: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left at the time-out."""
    monkeypatch.setattr("attestation.client.plain.READ_SECONDS", 0.2)
    with connect(serve(HANG)) as connection, pytest.raises(ServiceUnreachable, match="in time"):
        connection.send("GET", "/x")


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "drip",
    [
        Drip(b"HTTP/1.1 200 OK\r\nX-Name: ", b"v"),
        Drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        Drip(CHUNKED + b"2;", b"a"),
        Drip(CHUNKED + b"2\r\n{}\r\n0\r\n", b"X: v\r\n"),
    ],
    ids=["head", "interim", "size", "trailer"],
)
def test_what_drips_without_end_is_left(
    serve: StartServer, monkeypatch: pytest.MonkeyPatch, drip: Drip
) -> None:
    """Each byte comes in time, and what they belong to never ends."""
    monkeypatch.setattr("attestation.client.plain.READ_SECONDS", 0.2)
    with connect(serve(drip)) as connection, pytest.raises(ServiceUnreachable, match="in time"):
        connection.send("GET", "/x")


def test_a_body_may_take_longer_than_a_piece_of_it(
    serve: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece has the time of its own: a long log is read to its end."""
    at = time.monotonic()
    monkeypatch.setattr("attestation.client.plain.time", SimpleNamespace(monotonic=lambda: at))
    with connect(serve(Drip(CHUNKED, b"1\r\na\r\n"))) as connection:
        pieces = connection.stream("/x", accept="*/*")
        for _ in range(3):
            assert next(pieces)
            at += READ_SECONDS - 1
        pieces.close()


def test_an_interim_answer_is_none(serve: StartServer) -> None:
    """What an act came to stands in the answer behind it, which is not taken for that of the next request."""
    server = serve(b"HTTP/1.1 103 Early Hints\r\n\r\n", OK)
    with connect(server) as connection:
        with pytest.raises(AnswerInvalid, match="103") as caught:
            connection.send("POST", "/x")
        assert not isinstance(caught.value, Redirected)
        connection.send("GET", "/x")
    assert server.connections == 2


def test_redirects_and_compression_are_refused(serve: StartServer) -> None:
    """Neither another host nor a bomb."""
    moved = b"HTTP/1.1 307 Moved\r\nLocation: https://evil.example/\r\nContent-Length: 0\r\n\r\n"
    packed = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"
    with connect(serve(moved, packed)) as connection:
        with pytest.raises(AnswerInvalid, match="redirect"):
            connection.send("GET", "/x")
        with pytest.raises(AnswerInvalid, match="compressed"):
            connection.send("GET", "/x")


def test_an_endless_answer_is_cut_off(serve: StartServer) -> None:
    """Read up to the limit, then the connection is given up."""
    server = serve(b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n" + b"x" * 100_000, OK)
    with connect(server, max_answer_bytes=1000) as connection:
        with pytest.raises(AnswerInvalid, match="longer than"):
            connection.send("GET", "/x")
        connection.send("GET", "/x")
    assert server.connections == 2


def test_a_problem_is_an_error_with_its_code(serve: StartServer) -> None:
    """The body of a refusal is read as well."""
    body = b'{"type":"urn:itl:problem:machine-unknown","title":"t","status":404,"detail":"d","instance":"r"}'
    head = b"HTTP/1.1 404 Not Found\r\nRetry-After: 7\r\nContent-Length: %d\r\n\r\n" % len(body)
    with connect(serve(head + body)) as connection, pytest.raises(APIError) as caught:
        connection.send("GET", "/x")
    assert (caught.value.code, caught.value.retry_after_seconds) == ("machine-unknown", 7)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for `localhost` and `attest.example`, with its key in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.DNSName("attest.example")]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return path


@pytest.mark.parametrize(("host", "known"), [("localhost", True), ("127.0.0.1", True), ("localhost", False)])
def test_the_peer_must_prove_who_it_is(
    serve: StartServer, certificate: Path, host: str, *, known: bool
) -> None:
    """The right name under a CA that was named, and nothing else; not one byte is sent otherwise."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    server = serve(OK, context=context)
    scheme = "https" if known else "HTTPS"
    url = f"{scheme}://{host}:{server.port}"
    with HTTPSender(url, ca_file=certificate if known else None) as connection:
        if known and host == "localhost":
            assert connection.send("GET", "/x").body == b"{}"
            return
        with pytest.raises(TLSFailed, match="could not prove"):
            connection.send("GET", "/x")
    assert server.requests == []


@pytest.fixture
def proxies(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the environment name these proxies, and no other."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)

    def named(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return named


@pytest.mark.parametrize("variable", ["http_proxy", "ALL_PROXY"])
def test_a_proxy_is_told_the_whole_address(
    serve: StartServer, proxies: Callable[..., None], variable: str
) -> None:
    """RFC 9112 §3.2.2; and it knows us by what stands in its own address."""
    server = serve(OK)
    proxies(**{variable: f"http://an%40na:s3cret@127.0.0.1:{server.port}"})
    with HTTPSender("http://attest.example:8080") as connection:
        assert connection.send("GET", "/x").body == b"{}"
    lines = server.requests[0].decode().splitlines()
    assert lines[0] == "GET http://attest.example:8080/api/v1/x HTTP/1.1"
    assert {"Host: attest.example:8080", "Proxy-Authorization: Basic YW5AbmE6czNjcmV0"} <= set(lines)


def test_a_proxy_carries_tls_that_it_cannot_read(
    serve: StartServer, certificate: Path, proxies: Callable[..., None]
) -> None:
    """It sees the name of the service; who the service is, its certificate proves; its password goes no further."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    server = serve(OK, OK, context=context)
    tunnel = Tunnel(server.port)
    try:
        proxies(HTTPS_PROXY=f"anna:s3cret@127.0.0.1:{tunnel.port}")
        with HTTPSender("https://attest.example", ca_file=certificate) as connection:
            for _ in range(2):
                assert connection.send("GET", "/x").body == b"{}"
        with HTTPSender("https://other.example", ca_file=certificate) as stranger, pytest.raises(TLSFailed):
            stranger.send("GET", "/x")
    finally:
        tunnel.close()
    first, second = tunnel.requests
    assert first.startswith(b"CONNECT attest.example:443 HTTP/1.")
    assert b"\r\nProxy-Authorization: Basic YW5uYTpzM2NyZXQ=\r\n" in first
    assert second.startswith(b"CONNECT other.example:443 HTTP/1.")
    assert [request.splitlines()[0] for request in server.requests] == [b"GET /api/v1/x HTTP/1.1"] * 2
    assert not any(b"Proxy-Authorization" in request for request in server.requests)


def test_a_proxy_that_refuses(serve: StartServer, proxies: Callable[..., None]) -> None:
    """The service was not reached, so even an act may come again."""
    server = serve(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
    proxies(https_proxy=f"http://127.0.0.1:{server.port}")
    with HTTPSender("https://attest.example") as connection, pytest.raises(ServiceUnreachable) as caught:
        connection.send("POST", "/x")
    assert not caught.value.sent


def test_a_proxy_that_refuses_keeps_no_socket(
    serve: StartServer, proxies: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where the standard library leaves its answer open, as in Python 3.11.2, while the error is held."""

    def tunnel(connection: http.client.HTTPConnection) -> None:
        connection.response_class(connection.sock, method="CONNECT").begin()
        connection.close()
        raise OSError("Tunnel connection failed: 407")

    monkeypatch.setattr(http.client.HTTPConnection, "_tunnel", tunnel)
    server = serve(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 9\r\n\r\n")
    proxies(https_proxy=f"http://127.0.0.1:{server.port}")
    made: list[io.RawIOBase] = []

    class Watched(plain._InTime):
        def __init__(self, raw: io.RawIOBase) -> None:
            super().__init__(raw)
            made.append(raw)

    monkeypatch.setattr(plain, "_InTime", Watched)
    with HTTPSender("https://attest.example") as connection, pytest.raises(ServiceUnreachable):
        connection.send("GET", "/x")
    assert [raw.closed for raw in made] == [True]


def test_a_proxy_that_drips(
    serve: StartServer, proxies: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own head ends in time as well."""
    monkeypatch.setattr("attestation.client.plain.READ_SECONDS", 0.2)
    server = serve(Drip(b"HTTP/1.1 200 OK\r\n", b"X: v\r\n"))
    proxies(https_proxy=f"http://127.0.0.1:{server.port}")
    with HTTPSender("https://attest.example") as connection, pytest.raises(ServiceUnreachable) as caught:
        connection.send("POST", "/x")
    assert "in time" in str(caught.value)
    assert not caught.value.sent


@pytest.mark.parametrize(
    "address", ["https://proxy.example", "socks5://proxy.example", "http://", "http://x:y"]
)
def test_a_proxy_that_cannot_be_one(proxies: Callable[..., None], address: str) -> None:
    """Told, and nothing is sent past it."""
    proxies(all_proxy=address)
    with pytest.raises(RequestInvalid, match="proxy"):
        HTTPSender("https://attest.example")


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:1",
        "http://127.0.0.1:1",
        "http://a.inside.example:1",
        "http://[2001:db8::1]",
        "http://[2001:db8::1]:1",
        "http://[2001:db8::2]:1",
    ],
)
def test_a_proxy_is_passed_over(proxies: Callable[..., None], url: str) -> None:
    """It cannot reach this computer, and would see what is sent; and where the environment excepts a domain."""
    proxies(http_proxy="http://proxy.example:3128", no_proxy="inside.example,2001:db8::1,[2001:db8::2]")
    assert proxy_for(url) is None
    assert proxy_for("http://outside.example") == "http://proxy.example:3128"
    assert proxy_for("https://outside.example") is None
