"""TLS in the service itself: what a client sees, with a certificate and without."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from tests.fixtures.operator_pki import DAY, Issued, OperatorCA
from tests.fixtures.service import ServiceProcess

pytestmark = pytest.mark.slow


@dataclass(frozen=True, kw_only=True)
class Site:
    """Two workers that end TLS themselves, in high assurance."""

    directory: Path
    ca: OperatorCA
    servers: OperatorCA
    people: dict[str, Issued]
    service: ServiceProcess

    def context(self, who: str | None = None) -> ssl.SSLContext:
        """Return a client's context with the certificate of *who*."""
        context = ssl.create_default_context(cafile=self.directory / "servers.pem")
        if who is not None:
            context.load_cert_chain(*self.people[who].files(self.directory, who))
        return context

    def client(self, who: str | None = None, **headers: str) -> httpx.Client:
        """Return a client with the certificate of *who*."""
        return httpx.Client(
            base_url=f"{self.service.url}/api/v1", verify=self.context(who), headers=headers, timeout=20
        )

    def ask(self, who: str | None, path: str = "/machines", **headers: str) -> httpx.Response:
        """GET on a connection of its own."""
        with self.client(who, **headers) as client:
            return client.get(path)

    def certificate_shown(self, name: str | None = None) -> bytes:
        """Return the DER that the server shows to a new connection, which asks for *name* or for none."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with (
            socket.create_connection(("127.0.0.1", self.service.port), timeout=60) as plain,
            context.wrap_socket(plain, server_hostname=name) as connection,
        ):
            found = connection.getpeercert(binary_form=True)
            assert found is not None
            return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Start the service; it ends with the module."""
    directory: Path = tmp_path_factory.mktemp("tls")
    now = datetime.now(UTC).replace(microsecond=0)
    ca, servers = OperatorCA(now), OperatorCA(now, "Servers")
    people = {
        "alice": ca.issue("alice"),
        "bob": ca.issue("bob"),
        "node": ca.issue("node", ("worker",)),
        "server": ca.server("not-a-client.example.test"),
        "late": ca.issue("late", begins=now - 5 * DAY, ends=now - DAY),
        "mallory": OperatorCA(now, "Others").issue("mallory"),
        "forger": OperatorCA(now).issue("forger"),
    }
    (directory / "servers.pem").write_bytes(servers.pem)
    (directory / "ca.pem").write_bytes(ca.pem)
    (directory / "ca.crl").write_bytes(ca.revoke(people["bob"]))
    certificate, key = servers.server("attest.example.test").files(directory, "tls")
    service = ServiceProcess(
        directory=directory / "service",
        workers=2,
        trust=directory / "servers.pem",
        environment={
            "ITL_HIGH_ASSURANCE": "true",
            "ITL_TPM_ALLOW_SIMULATOR": "false",
            "ITL_TLS_CERT_FILE": str(certificate),
            "ITL_TLS_KEY_FILE": str(key),
            "ITL_OPERATOR_CA": str(directory / "ca.pem"),
            "ITL_OPERATOR_CRL": str(directory / "ca.crl"),
        },
    )
    service.directory.mkdir()
    try:
        service.start()
        yield Site(directory=directory, ca=ca, servers=servers, people=people, service=service)
    finally:
        service.stop()


def code(answer: httpx.Response) -> str:
    """Return the code of a problem."""
    found: str = answer.json()["type"].removeprefix("urn:itl:problem:")
    return found


def test_an_operator_s_certificate_works_end_to_end(site: Site) -> None:
    """Alice acts, on one connection and on new ones, in either worker; the audit has her name and key."""
    with site.client("alice") as alice:
        for _ in range(3):
            assert alice.get("/machines").status_code == 200
        body = {"role": "worker-app", "expires_in_seconds": 600}
        assert alice.post("/registration-tokens", json=body).is_success
    assert {site.ask("alice").status_code for _ in range(8)} == {200}
    audit = site.ask(None, "/audit", Authorization=f"Bearer {site.service.admin_token}").json()["items"]
    entry = next(e for e in audit if e["operator_cn"] == "alice")
    assert entry["operator_sub"].startswith("spki-sha256:")


def test_machines_need_no_certificate(site: Site) -> None:
    """It is asked for, not demanded: nodes are served, operators' routes say 401, every answer demands TLS."""
    answer = site.ask(None, "/attest/challenge?machine_id=7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d")
    assert (answer.status_code, code(answer)) == (404, "machine-unknown")
    assert answer.headers["strict-transport-security"] == "max-age=31536000; includeSubDomains"
    answer = site.ask(None)
    assert (answer.status_code, code(answer)) == (401, "unauthenticated")


@pytest.mark.parametrize(
    ("who", "words"),
    [
        ("mallory", "unable to get local issuer certificate"),
        ("forger", "certificate signature failure"),
        ("late", "certificate has expired"),
        ("server", "unsuitable certificate purpose"),
    ],
)
def test_a_certificate_that_proves_nothing_ends_the_connection(site: Site, who: str, words: str) -> None:
    """Another CA, a forged one, an expired one, a server's: no request is read; our log says why.

    In TLS 1.3 the client has finished its handshake by then: it sees a connection that ends without an answer.
    """
    with pytest.raises(httpx.TransportError, match=r"(?i)disconnected|reset|eof|alert|broken"):
        site.ask(who)
    refused = [line for line in site.service.log().splitlines() if "tls.certificate_refused" in line]
    assert any(words in line for line in refused), refused


@pytest.mark.parametrize(
    ("who", "status", "said"), [("bob", 401, "unauthenticated"), ("node", 403, "forbidden")]
)
def test_what_tls_lets_by_the_service_judges(site: Site, who: str, status: int, said: str) -> None:
    """A revoked certificate, and one of the same CA that is no operator's."""
    answer = site.ask(who)
    assert (answer.status_code, code(answer)) == (status, said)


@pytest.mark.parametrize("who", [None, "node", "alice"])
def test_a_header_is_no_certificate(site: Site, who: str | None) -> None:
    """Whoever names one in a header is refused, though they have a good one of their own."""
    answer = site.ask(who, **{"X-Client-Cert": site.people["alice"].escaped})
    assert (answer.status_code, code(answer)) == (403, "client-cert-untrusted")


def test_headers_about_tls_change_nothing(site: Site) -> None:
    """What the connection is, we see ourselves."""
    said = {"X-Forwarded-Proto": "http", "X-TLS-Version": "TLSv1.2", "X-TLS-Cipher": "x"}
    assert site.ask("alice", **said).status_code == 200


def test_older_tls_cannot_connect(site: Site) -> None:
    """TLS 1.2 does not get beyond the handshake."""
    context = site.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        pytest.raises(httpx.ConnectError, match=r"(?i)alert|protocol|eof"),
        httpx.Client(verify=context, timeout=60) as client,
    ):
        client.get(f"{site.service.url}/healthz")


@pytest.mark.threat("T41")
@pytest.mark.parametrize(
    ("suites", "served"),
    [
        ("TLS_AES_256_GCM_SHA384", True),
        ("TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384", True),
        ("TLS_AES_128_GCM_SHA256", False),
        ("TLS_CHACHA20_POLY1305_SHA256", False),
    ],
)
def test_another_suite_is_not_served(site: Site, suites: str, served: bool) -> None:
    """We choose AES-256-GCM of what is offered; without it, the connection ends unanswered, probes included."""
    done = subprocess.run(
        [
            "openssl", "s_client", "-connect", f"127.0.0.1:{site.service.port}", "-tls1_3", "-quiet",
            "-ciphersuites", suites, "-CAfile", str(site.directory / "servers.pem"),
        ],
        input=b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        capture_output=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.stdout.startswith(b"HTTP/1.1 200") is served
    if not served:
        assert done.stdout == b""


def test_plain_http_is_not_answered(site: Site) -> None:
    """There is no second, unprotected way in at this port."""
    with (
        pytest.raises(httpx.TransportError),
        httpx.Client(timeout=60) as client,
    ):
        client.get(f"http://127.0.0.1:{site.service.port}/healthz")


@pytest.mark.threat("T40")
def test_no_session_is_resumed(site: Site) -> None:
    """Each connection proves anew whose it is."""
    context = site.context("alice")
    with (
        socket.create_connection(("127.0.0.1", site.service.port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 200"
        assert connection.session is None or not connection.session.has_ticket


def test_a_stuck_handshake_does_not_hold_others_up(site: Site) -> None:
    """Connections that send nothing, or half a handshake, cost the others nothing."""
    held = [socket.create_connection(("127.0.0.1", site.service.port), timeout=60) for _ in range(20)]
    try:
        for connection in held[10:]:
            connection.sendall(b"\x16\x03\x01\x02\x00")
        # One after another they would take ten seconds each.
        assert site.ask("alice").status_code == 200
    finally:
        for connection in held:
            with closing(connection):
                pass


def attestation(site: Site, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the real command line against the service."""
    return subprocess.run(
        [
            str(Path(sys.executable).with_name("attestation")),
            *("--api-url", site.service.url, "--ca-file", str(site.directory / "servers.pem")), *arguments,
        ],
        env={"PATH": os.environ["PATH"], "HOME": str(site.directory)} | environ,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def test_the_command_line_comes_with_a_certificate(site: Site) -> None:
    """By option or by environment, key beside it or in one file, and no token is sent although there is one."""
    certificate, key = site.people["alice"].files(site.directory, "alice")
    both = site.directory / "both.pem"
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    token = {"ITL_ADMIN_TOKEN": site.service.admin_token}
    for arguments, environ in (
        (["--client-cert", str(certificate), "--client-key", str(key)], token),
        (["--client-cert", str(both)], {}),
        ([], {"ITL_API_CLIENT_CERT": str(certificate), "ITL_API_CLIENT_KEY": str(key)}),
    ):
        listed = attestation(site, *arguments, "machine", "list", **environ)
        assert listed.returncode == 0, listed.stderr
        # The auditor's right is not the operator's: had the token been sent, this would do.
        denied = attestation(site, *arguments, "audit", "list", **environ)
        assert denied.returncode == 4, denied.stdout
        assert "alice" in denied.stderr


@pytest.mark.parametrize(("who", "exits"), [("bob", 4), ("node", 4), ("mallory", 6)])
def test_the_command_line_says_why_not(site: Site, who: str, exits: int) -> None:
    """Revoked, of no duty, or refused in the handshake: an exit code and a sentence, no trace."""
    certificate, key = site.people[who].files(site.directory, who)
    done = attestation(site, "--client-cert", str(certificate), "--client-key", str(key), "machine", "list")
    assert done.returncode == exits, done.stderr
    assert "Traceback" not in done.stderr
    if who == "mallory":
        assert "client certificate" in done.stderr


def test_files_that_change_are_taken_up_without_a_restart(site: Site) -> None:
    """A renewed certificate and an exchanged CA count from the next handshake on, in both workers.

    Half a change, or a broken file, changes nothing; a standing connection goes on.
    """
    certificate, key, ca = (site.directory / name for name in ("tls.pem", "tls-key.pem", "ca.pem"))
    good = {path: path.read_bytes() for path in (certificate, key, ca)}
    shown = site.certificate_shown()
    renewed = site.servers.server("attest.example.test")
    others = OperatorCA(site.ca.at, "New operators")
    zoe = others.issue("zoe")
    try:
        with site.client("alice") as standing:
            assert standing.get("/machines").status_code == 200
            certificate.write_bytes(b"rubbish")
            assert site.certificate_shown() == shown
            certificate.write_bytes(renewed.pem)
            assert site.certificate_shown() == shown  # the key is still the old one
            key.write_bytes(renewed.key_pem)
            for name in (None, "attest.example.test", None, "other.example.test"):
                assert {site.certificate_shown(name) for _ in range(6)} == {renewed.der}
            assert standing.get("/machines").status_code == 200
            site.people["zoe"] = zoe
            ca.write_bytes(others.pem)
            # The list is of the old CA: TLS accepts zoe, but nobody can say whether she was revoked.
            answer = site.ask("zoe")
            assert (answer.status_code, code(answer)) == (503, "revocation-unknown")
            # Of a refused handshake OpenSSL keeps an error for the thread; Python 3.13 then tells it of the next read.
            with ThreadPoolExecutor(1) as beside, pytest.raises(httpx.TransportError):
                beside.submit(site.ask, "alice").result()
            assert standing.get("/machines").status_code == 401
    finally:
        for path, data in good.items():
            path.write_bytes(data)
    assert site.ask("alice").status_code == 200
    assert "tls.reloaded" in site.service.log()
    assert "tls.not_reloaded" in site.service.log()
