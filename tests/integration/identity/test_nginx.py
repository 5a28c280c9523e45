"""Operators' certificates and high assurance behind a real nginx, with the configuration that we ship."""

from __future__ import annotations

import base64
import ssl
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fixtures.nginx import Nginx
from tests.fixtures.operator_pki import DAY, Issued, OperatorCA
from tests.fixtures.service import ServiceProcess

pytestmark = [pytest.mark.nginx, pytest.mark.slow]

SECRET = "proxy-secret-of-more-than-32-characters"
STRICT = "max-age=31536000; includeSubDomains"


@dataclass(frozen=True, kw_only=True)
class Site:
    """A service in high assurance, and nginx before it.

    Args:
        directory: Where everything is.
        ca: CA of operators.
        crl: Its list; bob is on it.
        server: Certificate of nginx, and its CA for clients.
        people: Certificates by name.
        service: Behind nginx.
        nginx: As shipped: it checks certificates itself, and so does the service.
        lax: Likewise, but it passes on certificates of CAs that it does not know.
    """

    directory: Path
    ca: OperatorCA
    server_ca: Path
    people: dict[str, Issued]
    service: ServiceProcess
    nginx: Nginx
    lax: Nginx

    def client(self, who: str | None = None, *, lax: bool = False, **headers: str) -> httpx.Client:
        """Return a client of nginx with the certificate of *who*."""
        context = ssl.create_default_context(cafile=self.server_ca)
        if who is not None:
            context.load_cert_chain(*self.people[who].files(self.directory, who))
        url = self.lax.url if lax else self.nginx.url
        return httpx.Client(base_url=f"{url}/api/v1", verify=context, headers=headers, timeout=60)

    def ask(
        self, who: str | None, path: str = "/machines", *, lax: bool = False, **headers: str
    ) -> httpx.Response:
        """GET through nginx."""
        with self.client(who, lax=lax, **headers) as client:
            return client.get(path)

    def directly(self, **headers: str) -> httpx.Response:
        """GET at the service itself, as another program on the same computer."""
        uds = str(self.service.socket) if self.service.socket else None
        with httpx.Client(transport=httpx.HTTPTransport(uds=uds), timeout=60) as client:
            return client.get(f"{self.service.url}/api/v1/machines", headers=headers)


@pytest.fixture(scope="module", params=["unix", "tcp"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A service on a unix socket or a port, and two nginx before it."""
    directory: Path = tmp_path_factory.mktemp("nginx")
    now = datetime.now(UTC).replace(microsecond=0)
    ca, servers = OperatorCA(now), OperatorCA(now, "Servers")
    people = {
        "alice": ca.issue("alice"),
        "bob": ca.issue("bob"),
        "carol": ca.issue("carol", ("viewer",)),
        "node": ca.issue("node", ("worker",)),
        "late": ca.issue("late", begins=now - 5 * DAY, ends=now - DAY),
        "forger": OperatorCA(now).issue("forger"),
        "mallory": OperatorCA(now, "Others").issue("mallory"),
    }
    for name, data in (
        ("ca.pem", ca.pem),
        ("ca.crl", ca.revoke(people["bob"])),
        ("servers.pem", servers.pem),
        ("secret", SECRET.encode()),
    ):
        (directory / name).write_bytes(data)
    certificate, key = servers.server("attest.example.test").files(directory, "server")
    unix = request.param == "unix"
    service = ServiceProcess(
        directory=directory / "service",
        socket=directory / "s" if unix else None,
        environment={
            "ITL_HIGH_ASSURANCE": "true",
            "ITL_SERVICE_URL": "https://attest.example.test",
            "ITL_TPM_ALLOW_SIMULATOR": "false",
            "ITL_OPERATOR_CA": str(directory / "ca.pem"),
            "ITL_OPERATOR_CRL": str(directory / "ca.crl"),
            "ITL_PROXY_SECRET_FILE": str(directory / "secret"),
            **({} if unix else {"ITL_TRUSTED_PROXIES": "127.0.0.0/8"}),
        },
    )
    upstream = f"unix:{service.socket}" if unix else f"127.0.0.1:{service.port}"

    def nginx(name: str, **changed: str) -> Nginx:
        (directory / name).mkdir()
        return Nginx(
            directory / name,
            upstream=upstream,
            certificate=certificate,
            key=key,
            operator_ca=directory / "ca.pem",
            secret=SECRET,
            changed=changed,
        )

    service.directory.mkdir()
    try:
        service.start()
        with (
            nginx("shipped") as shipped,
            nginx("lax", **{"ssl_verify_client optional;": "ssl_verify_client optional_no_ca;"}) as lax,
        ):
            yield Site(
                directory=directory,
                ca=ca,
                server_ca=directory / "servers.pem",
                people=people,
                service=service,
                nginx=shipped,
                lax=lax,
            )
    finally:
        service.stop()


def code(answer: httpx.Response) -> str:
    """Return the code of a problem."""
    found: str = answer.json()["type"].removeprefix("urn:itl:problem:")
    return found


def test_an_operator_s_certificate_works_end_to_end(site: Site) -> None:
    """From the handshake to the audit: alice may, and it stands there that it was she, from her address."""
    for lax in (False, True):
        with site.client("alice", lax=lax) as alice:
            assert alice.get("/machines").status_code == 200
            body = {"role": "worker-app", "expires_in_seconds": 600}
            made = alice.post("/registration-tokens", json=body)
            assert made.status_code in (200, 201), made.text
            assert made.headers["strict-transport-security"] == STRICT
    audit = site.ask(None, "/audit", Authorization=f"Bearer {site.service.admin_token}")
    entries = audit.json()["items"]
    entry, _ = (e for e in entries if e["operator_cn"] == "alice" and e["action"] != "denied")
    assert entry["operator_sub"].startswith("spki-sha256:")
    assert entry["source_ip"] == "127.0.0.1"


def test_without_a_certificate_nobody_is_anybody(site: Site) -> None:
    """401; a bearer token still works, and beside a certificate it is the token that counts."""
    answer = site.ask(None)
    assert (answer.status_code, code(answer)) == (401, "unauthenticated")
    bearer = f"Bearer {site.service.admin_token}"
    assert site.ask(None, Authorization=bearer).status_code == 200
    assert site.ask("alice", "/audit", Authorization=bearer).status_code == 200
    assert site.ask("alice", "/audit").status_code == 403


@pytest.mark.threat("T39")
@pytest.mark.parametrize(
    ("who", "status", "said"),
    [
        ("mallory", 401, "unauthenticated"),
        ("bob", 401, "unauthenticated"),
        ("node", 403, "forbidden"),
    ],
)
def test_the_service_refuses_what_nginx_passes_on(site: Site, who: str, status: int, said: str) -> None:
    """Another CA, revoked, OU=worker: the service does not rely on nginx to judge."""
    answer = site.ask(who, lax=True)
    assert (answer.status_code, code(answer)) == (status, said), answer.text


@pytest.mark.parametrize("who", ["mallory", "forger", "late"])
def test_nginx_as_shipped_refuses_early_and_the_service_would_too(site: Site, who: str) -> None:
    """Another CA, one of the same name, an expired certificate: 400 of nginx, and 401 to a proxy that let it by."""
    answer = site.ask(who)
    assert answer.status_code == 400
    assert "certificate" in answer.text
    asserted = {
        "Itl-Proxy-Secret": SECRET,
        "X-Forwarded-Proto": "https",
        "X-TLS-Version": "TLSv1.3",
        "X-TLS-Cipher": "TLS_AES_256_GCM_SHA384",
        "X-Client-Cert": site.people[who].escaped,
    }
    answer = site.directly(**asserted)
    assert (answer.status_code, code(answer)) == (401, "unauthenticated")


def test_revoked_and_others_of_the_ca_reach_the_service(site: Site) -> None:
    """Nginx as shipped passes them on: the list and the OU are the service's to judge."""
    assert site.ask("bob").status_code == 401
    assert site.ask("node").status_code == 403


def test_a_viewer_reads(site: Site) -> None:
    """And does not act."""
    with site.client("carol") as carol:
        assert carol.get("/machines").status_code == 200
        assert carol.post("/registration-tokens", json={}).status_code == 403


def rfc9440(issued: Issued) -> str:
    """Return the certificate as RFC 9440 puts it into a header."""
    return f":{base64.b64encode(issued.der).decode()}:"


@pytest.mark.threat("T38")
@pytest.mark.parametrize("lax", [False, True])
def test_what_a_client_says_of_itself_is_overwritten(site: Site, lax: bool) -> None:
    """Copies of every header that the service believes from nginx, sent through nginx, change nothing."""
    alice = site.people["alice"]
    claims = {
        "X-Client-Cert": alice.escaped,
        "Client-Cert": rfc9440(alice),
        "Client-Cert-Chain": rfc9440(alice),
        "X-Forwarded-For": "203.0.113.77",
        "X-Forwarded-Proto": "https",
        "X-TLS-Version": "TLSv1.3",
        "X-TLS-Cipher": "TLS_AES_256_GCM_SHA384",
        "Forwarded": "for=203.0.113.77;proto=https",
        "Itl-Proxy-Secret": "x",
    }
    answer = site.ask(None, lax=lax, **claims)
    assert (answer.status_code, code(answer)) == (401, "unauthenticated")
    with site.client("carol", lax=lax, **claims) as carol:
        assert carol.get("/machines").status_code == 200
        refused = carol.post("/registration-tokens", json={})
    assert refused.status_code == 403
    assert "carol" in refused.json()["detail"]
    audit = site.ask(None, "/audit", Authorization=f"Bearer {site.service.admin_token}").text
    assert "203.0.113.77" not in audit


def test_two_copies_are_overwritten_too(site: Site) -> None:
    """However often, and in whichever case of letters."""
    alice = site.people["alice"]
    headers = [("X-Client-Cert", alice.escaped), ("x-client-cert", alice.escaped), ("X_Client_Cert", "x")]
    with site.client() as client:
        answer = client.get("/machines", headers=headers)
    assert (answer.status_code, code(answer)) == (401, "unauthenticated")


@pytest.mark.threat("T38")
@pytest.mark.parametrize(
    "headers",
    [
        lambda alice: {"X-Client-Cert": alice.escaped},
        lambda alice: {"Client-Cert": rfc9440(alice)},
        lambda alice: {"X-Client-Cert": alice.escaped, "Itl-Proxy-Secret": SECRET + "x"},
        lambda alice: {"X-Client-Cert": alice.escaped, "Itl-Proxy-Secret": ""},
    ],
)
def test_who_passes_nginx_by_is_refused(site: Site, headers: Callable[[Issued], dict[str, str]]) -> None:
    """At the service itself, from the very address or socket of nginx, but without the secret: loudly."""
    answer = site.directly(**headers(site.people["alice"]))
    assert (answer.status_code, code(answer)) == (403, "client-cert-untrusted")
    assert "client_certificate.untrusted" in site.service.log()


def test_plain_http_is_refused_behind_nginx(site: Site) -> None:
    """High assurance: without what only nginx can say, not even the right token helps."""
    bearer = f"Bearer {site.service.admin_token}"
    answer = site.directly(
        Authorization=bearer,
        **{
            "X-Forwarded-Proto": "https",
            "X-TLS-Version": "TLSv1.3",
            "X-TLS-Cipher": "TLS_AES_256_GCM_SHA384",
        },
    )
    assert (answer.status_code, code(answer)) == (403, "high-assurance-required")
    assert answer.headers["strict-transport-security"] == STRICT


def test_older_tls_cannot_connect(site: Site) -> None:
    """TLS 1.2 does not get beyond the handshake."""
    context = ssl.create_default_context(cafile=site.server_ca)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        pytest.raises(httpx.ConnectError, match=r"(?i)alert|protocol|eof"),
        httpx.Client(verify=context, timeout=60) as client,
    ):
        client.get(f"{site.nginx.url}/healthz")


@pytest.mark.parametrize(
    ("suite", "connects"),
    [
        ("TLS_AES_256_GCM_SHA384", True),
        ("TLS_AES_128_GCM_SHA256", False),
        ("TLS_CHACHA20_POLY1305_SHA256", False),
    ],
)
def test_other_suites_cannot_connect(site: Site, suite: str, connects: bool) -> None:
    """OpenSSL, offering one suite of TLS 1.3."""
    done = subprocess.run(
        [
            "openssl", "s_client", "-connect", f"127.0.0.1:{site.nginx.port}", "-tls1_3",
            "-ciphersuites", suite, "-CAfile", str(site.server_ca), "-brief",
        ],
        input=b"", capture_output=True, timeout=240, check=False,
    )  # fmt: skip
    assert (b"CONNECTION ESTABLISHED" in done.stderr) is connects, done.stderr


def test_no_log_holds_a_secret(site: Site) -> None:
    """Neither nginx nor the service writes the shared secret or a config token."""
    site.ask(None, "/config/canary-config-token")
    site.ask(None, "/config/canary-config-token?mac=00:00:00:00:00:01")
    for text in (site.nginx.log(), site.service.log()):
        assert "/api/v1/config/***" in text
        assert "canary-config-token" not in text
        assert SECRET not in text


@pytest.mark.threat("T40")
def test_a_renewed_list_counts_at_the_next_request(site: Site) -> None:
    """Alice is revoked while everything runs, and restored."""
    path = site.directory / "ca.crl"
    before = path.read_bytes()
    now = datetime.now(UTC).replace(microsecond=0)
    try:
        with site.client("alice") as alice:
            assert alice.get("/machines").status_code == 200
            site.ca.at = now
            path.write_bytes(site.ca.revoke(site.people["alice"], made=now - timedelta(seconds=5)))
            answer = alice.get("/machines")
            assert (answer.status_code, code(answer)) == (401, "unauthenticated")
            path.write_bytes(b"rubbish")
            answer = alice.get("/machines")
            assert (answer.status_code, code(answer)) == (503, "revocation-unknown")
    finally:
        path.write_bytes(before)
    assert site.ask("alice").status_code == 200


def test_a_wrong_secret_is_not_believed(site: Site, tmp_path: Path) -> None:
    """Nginx with another secret is anybody: nothing that it says counts."""
    upstream = f"unix:{site.service.socket}" if site.service.socket else f"127.0.0.1:{site.service.port}"
    files: dict[str, Any] = {
        "certificate": site.directory / "server.pem",
        "key": site.directory / "server-key.pem",
        "operator_ca": site.directory / "ca.pem",
    }
    for secret in ("another-secret-of-more-than-32-characters", None):
        directory = tmp_path / str(secret)
        directory.mkdir()
        with Nginx(directory, upstream=upstream, secret=secret, **files) as wrong:
            context = ssl.create_default_context(cafile=site.server_ca)
            with httpx.Client(verify=context, timeout=60) as nobody:
                answer = nobody.get(f"{wrong.url}/api/v1/machines")
            assert (answer.status_code, code(answer)) == (403, "high-assurance-required")
            context.load_cert_chain(*site.people["alice"].files(site.directory, "alice"))
            with httpx.Client(verify=context, timeout=60) as alice:
                answer = alice.get(f"{wrong.url}/api/v1/machines")
            assert (answer.status_code, code(answer)) == (403, "client-cert-untrusted")
