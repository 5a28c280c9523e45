"""The proxy of kubelet with a real nginx, OpenSSL's provider tpm2 and a software TPM, before a server of TLS.

The server stands in for the API server: it demands a certificate of a node and says whom it saw.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_public_key,
)

from attestation.clock import SystemClock
from attestation_agent.exits import UsageError
from attestation_agent.kubelet import proxy
from attestation_agent.kubelet.kept import BUNDLE
from attestation_agent.kubelet.keys import ResidentKey, subject_of
from attestation_agent.kubelet.kubeconfig import Cluster, load
from attestation_agent.kubelet.settings import Listen
from attestation_testing import SoftwareTPM
from tests.fixtures.resource_manager import ResourceManager
from tests.fixtures.tpm import MakeTPM
from tools.nginx import nginx_program
from tools.ports import free_port

pytestmark = [pytest.mark.swtpm, pytest.mark.nginx, pytest.mark.slow]

SECONDS = 60
DAY = timedelta(days=1)
PEM = Encoding.PEM


class Authority:
    """A CA for a test: of the API server and of nodes."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC).replace(microsecond=0)
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name.from_rfc4514_string("CN=cluster")
        self.pem = self.issue(self.name, self.key.public_key(), ca=True)

    def issue(self, subject: x509.Name, public: Any, *names: x509.GeneralName, ca: bool = False) -> bytes:
        """Return a certificate, PEM."""
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.now - DAY)
            .not_valid_after(self.now + DAY)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(PEM)


class Server(ThreadingHTTPServer):
    """A server that demands certificates of nodes."""

    daemon_threads = True

    def __init__(self, authority: Authority, directory: Path, name: str = "kubernetes.default.svc") -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        key = ec.generate_private_key(ec.SECP256R1())
        pem = key.private_bytes(PEM, PrivateFormat.PKCS8, NoEncryption())
        subject = x509.Name.from_rfc4514_string("CN=kube-apiserver")
        (directory / "server.pem").write_bytes(
            pem + authority.issue(subject, key.public_key(), x509.DNSName(name))
        )
        self.context = ssl.create_default_context(
            ssl.Purpose.CLIENT_AUTH, cadata=authority.pem.decode("ascii")
        )
        self.context.verify_mode = ssl.CERT_REQUIRED
        self.context.load_cert_chain(directory / "server.pem")
        self.more = threading.Event()

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self.server_address[1]
        return port

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Do the handshake in the thread of the connection."""
        with self.context.wrap_socket(request, server_side=True) as encrypted:
            super().finish_request(encrypted, client_address)

    def handle_error(self, *_: Any) -> None:
        """A refused handshake is no news."""


class Handler(BaseHTTPRequestHandler):
    """Says whom it saw; streams; upgrades."""

    protocol_version = "HTTP/1.1"
    server: Server
    timeout = SECONDS

    def do_GET(self) -> None:
        """Answer, stream or upgrade."""
        if "watch" in self.path:
            self._watch()
        elif self.headers.get("Upgrade"):
            self._upgrade()
        else:
            certificate = self.connection.getpeercert()
            self._answer(
                {"subject": certificate["subject"], "headers": dict(self.headers), "path": self.path}
            )

    def do_POST(self) -> None:
        """Say how much came."""
        self._answer({"length": len(self.rfile.read(int(self.headers["Content-Length"])))})

    def _answer(self, content: object) -> None:
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _watch(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b'7\r\n{"a":1}\r\n')
        self.wfile.flush()
        self.server.more.wait(SECONDS)
        self.wfile.write(b'7\r\n{"b":2}\r\n0\r\n\r\n')

    def _upgrade(self) -> None:
        self.send_response(101, "Switching Protocols")
        self.send_header("Connection", "Upgrade")
        self.send_header("Upgrade", self.headers["Upgrade"])
        self.end_headers()
        while data := self.connection.recv(4096):
            self.connection.sendall(data.upper())
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class Nginx:
    """nginx, with the configuration that the agent wrote."""

    def __init__(self, directory: Path, manager: ResourceManager, port: int) -> None:
        self.log = directory.parent / "nginx.log"
        environment = os.environ | {
            "OPENSSL_CONF": str(directory / proxy.OPENSSL),
            "TPM2OPENSSL_TCTI": manager.tcti,
        }
        user = " user root;" if os.geteuid() == 0 else ""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    nginx_program(), "-p", str(directory), "-c", str(directory / proxy.NGINX), "-e", "stderr",
                    "-g", f"daemon off;{user}",
                ],
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        eventually(lambda: self.listens(port) or self.process.poll() is not None, self.log.read_text)
        assert self.process.poll() is None, self.log.read_text()

    @staticmethod
    def listens(port: int) -> bool:
        """True where somebody listens."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(SECONDS)


def eventually(found: Callable[[], object], what: Callable[[], str] = lambda: "nothing came of it") -> None:
    """Wait until *found* is true."""
    deadline = time.monotonic() + SECONDS
    while not found():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


class Site:
    """A node with its proxy before a server."""

    def __init__(self, directory: Path, manager: ResourceManager, tpm_key: ResidentKey) -> None:
        self.directory = directory / "node"
        self.directory.mkdir(mode=0o700)
        self.authority = Authority()
        self.server = Server(self.authority, directory)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.listen = Listen(address="127.0.0.1", port=free_port())
        self.key = tpm_key
        self.manager = manager
        self.cluster = Cluster(server=f"https://127.0.0.1:{self.server.port}", ca_pem=self.authority.pem)
        local = proxy.make_local(self.listen, SystemClock().now())
        self.local = self.directory / proxy.LOCAL
        self.local.write_bytes(local)
        (self.directory / proxy.OPENSSL).write_text(proxy.OPENSSL_CONF)
        (self.directory / proxy.AUTHORITIES).write_bytes(self.authority.pem)
        (self.directory / proxy.NGINX).write_text(proxy.nginx_conf(self.directory, self.cluster, self.listen))
        (self.directory / "kubelet.conf").write_bytes(proxy.kubeconfig(self.directory, local, self.listen))
        self.certify("w-1")
        self.nginx = Nginx(self.directory, manager, self.listen.port)

    def certify(self, name: str) -> None:
        """Write key and certificate, as after a renewal."""
        issued = self.authority.issue(subject_of(name), load_der_public_key(self.key.spki))
        temporary = self.directory / "new"
        temporary.write_bytes(self.key.file() + issued)
        temporary.replace(self.directory / BUNDLE)

    def connect(self, *, certified: bool = True) -> http.client.HTTPSConnection:
        """Connect as kubelet does, by the kubeconfig."""
        found = load(self.directory / "kubelet.conf")
        context = ssl.create_default_context(cadata=found.cluster.ca_pem.decode("ascii"))
        if certified:
            context.load_cert_chain(self.local)
        return http.client.HTTPSConnection("127.0.0.1", self.listen.port, timeout=SECONDS, context=context)

    def ask(self, path: str, **headers: str) -> Any:
        """Ask once; return what the server says."""
        connection = self.connect()
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            data = answer.read()
            assert answer.status == 200, (data, self.nginx.log.read_text())
            return json.loads(data)
        finally:
            connection.close()

    def restart(self) -> None:
        """Restart nginx."""
        self.nginx.stop()
        self.nginx = Nginx(self.directory, self.manager, self.listen.port)

    def close(self) -> None:
        """End everything."""
        self.server.more.set()
        self.nginx.stop()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def site(make_tpm: MakeTPM, tmp_path: Path) -> Iterator[Site]:
    """A node whose key is in its TPM."""
    tpm: SoftwareTPM = make_tpm()
    with tpm.node() as node:
        key = ResidentKey.make(node)
    with ResourceManager(tpm.uri, tmp_path / "rm") as manager:
        found = Site(tmp_path, manager, key)
        try:
            yield found
        finally:
            found.close()


def common_name(seen: Any) -> str:
    """Return the CN that the server saw."""
    return str(dict(pair for rdn in seen["subject"] for pair in rdn)["commonName"])


@pytest.mark.threat("T112")
def test_the_proxy_speaks_as_the_node(site: Site) -> None:
    """With a key of the TPM, to a server whose address is a number; nothing on disk is that key."""
    signed = site.manager.commands.get(0x15D, 0)
    seen = site.ask("/api/v1/nodes/w-1?x=%2F", Authorization="Bearer canary", Connection="close")
    assert common_name(seen) == "system:node:w-1"
    assert site.manager.commands[0x15D] > signed
    assert seen["path"] == "/api/v1/nodes/w-1?x=%2F"
    assert "Authorization" not in seen["headers"]
    assert b"PRIVATE KEY" not in (site.directory / BUNDLE).read_bytes().replace(b"TSS2 PRIVATE KEY", b"")


def test_nobody_else_on_this_node_is_let_in(site: Site) -> None:
    """Without the certificate in local.pem, or with one of one's own: 400 of nginx, and the server is not asked."""
    connection = site.connect(certified=False)
    connection.request("GET", "/who")
    answer = connection.getresponse()
    assert (answer.status, b"No required SSL certificate" in answer.read()) == (400, True)
    connection.close()
    other = proxy.make_local(site.listen, SystemClock().now())
    site.local.with_name("other.pem").write_bytes(other)
    found = load(site.directory / "kubelet.conf")
    context = ssl.create_default_context(cadata=found.cluster.ca_pem.decode("ascii"))
    context.load_cert_chain(site.local.with_name("other.pem"))
    stranger = http.client.HTTPSConnection("127.0.0.1", site.listen.port, timeout=SECONDS, context=context)
    stranger.request("GET", "/who")
    answer = stranger.getresponse()
    assert (answer.status, b"SSL certificate error" in answer.read()) == (400, True)
    stranger.close()


def test_a_watch_passes_as_it_comes(site: Site) -> None:
    """The first event arrives before the second is sent."""
    connection = site.connect()
    connection.request("GET", "/api/v1/pods?watch=1")
    answer = connection.getresponse()
    assert answer.read1() == b'{"a":1}'
    site.server.more.set()
    assert answer.read() == b'{"b":2}'
    connection.close()


@pytest.mark.parametrize("protocol", ["SPDY/3.1", "websocket"])
def test_an_upgrade_passes(site: Site, protocol: str) -> None:
    """As `exec`, `attach` and `port-forward` need it: bytes in both directions afterwards."""
    connection = site.connect()
    connection.connect()
    with connection.sock as stream:
        stream.sendall(
            f"POST /exec HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n"
            "Content-Length: 0\r\n\r\n".replace("POST", "GET").encode()
        )
        head = b""
        while b"\r\n\r\n" not in head:
            head += stream.recv(4096)
        assert head.startswith(b"HTTP/1.1 101"), head
        assert f"Upgrade: {protocol}".encode() in head
        for word in (b"hello", b"again"):
            stream.sendall(word)
            assert stream.recv(4096) == word.upper()


def test_a_large_body_passes(site: Site) -> None:
    """The limit of nginx itself would be one megabyte."""
    connection = site.connect()
    connection.request("POST", "/api/v1/x", body=bytes(3 << 20))
    assert json.loads(connection.getresponse().read()) == {"length": 3 << 20}
    connection.close()


def test_a_renewal_is_followed_by_a_restart(site: Site) -> None:
    """A watch ends, as kubelet ends its own when its certificate changes; what is asked next is asked anew."""
    watch = site.connect()
    watch.request("GET", "/api/v1/pods?watch=1")
    answer = watch.getresponse()
    assert answer.read1() == b'{"a":1}'
    site.certify("w-1-renewed")
    assert common_name(site.ask("/who")) == "system:node:w-1"
    site.restart()
    with pytest.raises((http.client.HTTPException, OSError)):
        answer.read()
    watch.close()
    for _ in range(3):
        assert common_name(site.ask("/who", Connection="close")) == "system:node:w-1-renewed"


def test_another_server_is_not_believed(site: Site, tmp_path: Path) -> None:
    """Another CA, or another name: 502, and the server never sees the node."""
    for number, (authority, name) in enumerate(
        ((Authority(), "kubernetes.default.svc"), (site.authority, "elsewhere.example"))
    ):
        directory = tmp_path / str(number)
        directory.mkdir()
        server = Server(authority, directory, name)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        cluster = Cluster(server=f"https://127.0.0.1:{server.port}", ca_pem=site.authority.pem)
        (site.directory / proxy.NGINX).write_text(proxy.nginx_conf(site.directory, cluster, site.listen))
        site.restart()
        try:
            connection = site.connect()
            connection.request("GET", "/who")
            assert connection.getresponse().status == 502
            connection.close()
        finally:
            server.shutdown()
            server.server_close()


@pytest.mark.parametrize(
    ("directory", "cluster", "said"),
    [
        ("/run/x y", {}, "letters"),
        ("/run/x;", {}, "letters"),
        ("/run/x", {"server": "https://a.example/prefix"}, "path"),
        ("/run/x", {"proxy_url": "http://p.example:1"}, "proxy-url"),
    ],
)
def test_what_cannot_stand_behind_nginx(directory: str, cluster: dict[str, str], said: str) -> None:
    """Said before a certificate is asked for."""
    found = Cluster(**{"server": "https://a.example:6443", "ca_pem": b"", **cluster})  # type: ignore[arg-type]  # words
    with pytest.raises(UsageError, match=said):
        proxy.nginx_conf(Path(directory), found, Listen(address="127.0.0.1", port=6440))
