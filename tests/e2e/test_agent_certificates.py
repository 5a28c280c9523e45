"""A node's certificates from its TPM to mutual TLS: real service, resident agent, software TPM, nginx, OpenSSL.

The agent, nginx and OpenSSL use the same TPM at the same time through a resource manager, as by /dev/tpmrm0.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from attestation_testing import CertificateAuthority, SoftwareTPM
from tests.fixtures.nginx import Nginx
from tests.fixtures.operator_pki import OperatorCA
from tests.fixtures.resource_manager import ResourceManager
from tests.fixtures.service import Operator, ServiceProcess, StartService
from tools.nginx import TEMPORARY, nginx_program
from tools.ports import free_port

pytestmark = [pytest.mark.swtpm, pytest.mark.nginx, pytest.mark.slow]

AGENT = Path(sys.executable).with_name("attestation-agent")
SECONDS = 240
PAGE = (Path(__file__).parents[2] / "docs/operate/agent-certificates.md").read_text(encoding="utf-8")
OPENSSL_CONF = PAGE.partition("```ini\n")[2].partition("```")[0]
"""As documented."""
PROPERTIES = OPENSSL_CONF.partition("default_properties = ")[2].partition("\n")[0]


class Site(Nginx):
    """nginx with TLS 1.3 that demands certificates of nodes, and says who came.

    Args:
        directory: Its prefix.
        certificate: Its own certificate, PEM.
        key: Its key.
        trust: CAs of nodes.
        crl: Their revocation lists, PEM.
        environment: Beside the usual one.
    """

    def __init__(
        self, directory: Path, *, certificate: Path, key: Path, trust: Path, crl: Path, **environment: str
    ) -> None:
        directory.mkdir()
        self.directory = directory
        self.port = free_port()
        self.configuration = directory / "nginx.conf"
        self.configuration.write_text(
            f"""\
worker_processes 1;
pid {directory}/nginx.pid;
error_log {directory}/error.log info;
env TPM2OPENSSL_TCTI;
events {{}}
http {{
    access_log off;
    {"".join(f"{kind}_temp_path {directory}/temp_{kind};" for kind in TEMPORARY)}
    server {{
        listen 127.0.0.1:{self.port} ssl;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        ssl_protocols TLSv1.3;
        ssl_ecdh_curve X25519;
        ssl_client_certificate {trust};
        ssl_crl {crl};
        ssl_verify_client on;
        location / {{ return 200 "$ssl_client_verify $ssl_protocol $ssl_client_s_dn $ssl_client_serial\\n"; }}
    }}
}}
"""
        )
        user = "user root;" if os.geteuid() == 0 else ""
        program = nginx_program()
        self._command = [
            "env", *(f"{name}={value}" for name, value in environment.items()),
            program, "-p", str(directory), "-c", str(self.configuration),
            "-e", str(directory / "error.log"), "-g", f"daemon off; {user}",
        ]  # fmt: skip
        self._process = None

    def reload(self) -> None:
        """Have it read its files again, and wait until new workers serve."""
        assert self._process is not None
        before = self._workers()
        self._process.send_signal(signal.SIGHUP)
        eventually(lambda: (found := self._workers()) and not found & before)

    def _workers(self) -> set[str]:
        assert self._process is not None
        pid = self._process.pid
        return set(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


@dataclass(kw_only=True)
class Node:
    """A computer on which the agent lives."""

    service: ServiceProcess
    manager: ResourceManager
    directory: Path
    machine_id: str = ""

    @property
    def tls(self) -> Path:
        """Where certificates are offered."""
        return self.directory / "state" / "tls"

    @property
    def signer(self) -> Path:
        """The socket of the signer."""
        return self.directory / "signer" / "sock"

    def environment(self, **more: str) -> dict[str, str]:
        """Settings of the agent, and where OpenSSL finds the TPM."""
        outside = {k: v for k, v in os.environ.items() if not k.startswith(("ITL_", "COVERAGE_"))}
        return outside | {
            "ITL_REG_URL": self.service.url,
            "ITL_TPM": self.manager.uri,
            "ITL_STATE_DIR": str(self.directory / "state"),
            "ITL_CONFIG_PATH": str(self.directory / "config.yaml"),
            "ITL_SYSFS": str(self.directory / "sys"),
            "ITL_SPLAY_SECONDS": "0",
            "ITL_AGENT_CERTIFICATES": "client,server",
            "ITL_AGENT_CERTIFICATE_COMMAND": f"sh -c 'echo \"$0\" >> {self.directory}/told'",
            "ITL_AGENT_SIGNER_SOCKET": str(self.signer),
            "TPM2OPENSSL_TCTI": self.manager.tcti,
            **more,
        }

    def run(self, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the node."""
        return subprocess.run(
            command,
            env=self.environment(**more),
            input="GET / HTTP/1.0\r\n\r\n",
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def cert(self, *flags: str) -> dict[str, dict[str, Any]]:
        """What `attestation-agent cert --json` says, by kind."""
        done = self.run(str(AGENT), "cert", "--json", *flags)
        return {found["kind"]: found for found in json.loads(done.stdout)["certificates"]}

    def log(self) -> str:
        """The last of what the agent wrote."""
        return (self.directory / "agent.log").read_text()[-5000:]

    def leaf(self, kind: str) -> x509.Certificate:
        """The certificate that is offered."""
        return x509.load_pem_x509_certificate((self.tls / kind / "cert.pem").read_bytes())

    def s_client(self, site: Nginx, *, version: str = "-tls1_3") -> subprocess.CompletedProcess[str]:
        """Ask *site*, with the certificate and the key in the TPM, by OpenSSL."""
        client = self.tls / "client"
        return self.run(
            "openssl", "s_client", "-connect", f"127.0.0.1:{site.port}", version, "-quiet", "-ign_eof",
            "-provider", "default", "-provider", "tpm2", "-propquery", PROPERTIES,
            "-cert", str(client / "cert.pem"), "-key", str(client / "key.pem"),
            "-verify_return_error", "-CAfile", str(self.directory / "site.pem"),
        )  # fmt: skip


def eventually(found: Callable[[], object], what: str | Callable[[], str] = "nothing came of it") -> None:
    """Wait until *found* is true."""
    deadline = time.monotonic() + SECONDS
    while not found():
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(0.05)


@pytest.fixture(scope="module")
def service(start_service: StartService) -> ServiceProcess:
    """A service with a CA."""
    return start_service(ITL_ENROLLMENT_CA_UNENCRYPTED="true", ITL_REATTEST_SECONDS="1")


@pytest.fixture(scope="module")
def operator(service: ServiceProcess) -> Iterator[Operator]:
    """Its operator."""
    found = service.operator()
    yield found
    found.http.close()


@contextmanager
def agent(node: Node) -> Iterator[subprocess.Popen[bytes]]:
    """The resident agent; what it logs goes to `agent.log`."""
    with (node.directory / "agent.log").open("ab") as log:
        process = subprocess.Popen(
            [str(AGENT), "run"], env=node.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.terminate()
        assert process.wait(SECONDS) == 0


@pytest.fixture(scope="module")
def node(
    service: ServiceProcess, operator: Operator, tmp_path_factory: pytest.TempPathFactory,
    tpm_ca: CertificateAuthority,
) -> Iterator[Node]:  # fmt: skip
    """An admitted node that has its certificates, its agent running."""
    known = {machine["machine_id"] for machine in operator.machines()}

    def new() -> set[str]:
        return {machine["machine_id"] for machine in operator.machines()} - known

    directory = tmp_path_factory.mktemp("n")
    with SoftwareTPM(directory / "tpm") as tpm:
        tpm.manufacture(tpm_ca)
        with ResourceManager(tpm.uri, directory / "rm") as manager:
            node = Node(service=service, manager=manager, directory=directory)
            with agent(node):
                eventually(new, "never introduced")
                (node.machine_id,) = new()
                operator.approve(node.machine_id, hostname="w-7", assigned_ip="127.0.0.2/8")
                eventually(
                    lambda: all((node.tls / kind / "cert.pem").exists() for kind in ("client", "server")),
                    lambda: f"no certificate:\n{node.log()}",
                )
                yield node


@pytest.fixture
def crl(node: Node, tmp_path: Path) -> Callable[[], Path]:
    """Fetch the revocation lists of all CA keys, in PEM, where nginx reads them."""

    def fetch() -> Path:
        operator = node.service.operator()
        with operator.http as http:
            issuers = operator.call("GET", "/ca")["issuers"]
            lists = [http.get(f"/pki/crl/{issuer['issuer_id']}").content for issuer in issuers]
        pems = [x509.load_der_x509_crl(der).public_bytes(Encoding.PEM) for der in lists]
        (tmp_path / "crl.pem").write_bytes(b"".join(pems))
        return tmp_path / "crl.pem"

    return fetch


@pytest.fixture
def site(node: Node, crl: Callable[[], Path], tmp_path: Path) -> Iterator[Site]:
    """Nginx with a certificate of somebody else, that lets nodes in."""
    ca = OperatorCA(datetime.now(UTC).replace(microsecond=0), "Site")
    certificate, key = ca.server("site.example.test").files(tmp_path, "site")
    (node.directory / "site.pem").write_bytes(ca.pem)
    with Site(
        tmp_path / "nginx",
        certificate=certificate,
        key=key,
        trust=node.tls / "client" / "bundle.pem",
        crl=crl(),
    ) as found:
        yield found


@pytest.mark.threat("T112")
def test_mutual_tls_with_a_key_that_never_left_the_tpm(node: Node, site: Site) -> None:
    """OpenSSL with the provider tpm2, and curl, are let in as this machine, while the agent goes on attesting."""
    done = node.s_client(site)
    assert "SUCCESS TLSv1.3" in done.stdout, done.stderr + site.log()
    assert f"CN={node.machine_id}" in done.stdout
    serial = node.leaf("client").serial_number
    assert f"{serial:040X}" in done.stdout
    conf = node.directory / "openssl.cnf"
    conf.write_text(OPENSSL_CONF)
    client = node.tls / "client"
    curl = node.run(
        "curl", "-sS", "--cacert", str(node.directory / "site.pem"), "--connect-to", f"::127.0.0.1:{site.port}",
        "--curves", "X25519", "--cert", str(client / "all.pem"), "--key", str(client / "key.pem"),
        "https://site.example.test/", OPENSSL_CONF=str(conf),
    )  # fmt: skip
    assert "SUCCESS TLSv1.3" in curl.stdout, curl.stderr + site.log()
    # Nothing on disk is a key by itself.
    for path in node.directory.rglob("*.pem"):
        assert b"BEGIN PRIVATE KEY" not in path.read_bytes()
        assert b"BEGIN EC PRIVATE KEY" not in path.read_bytes()


def test_a_locked_machine_is_refused_when_the_list_is_fetched_again(
    node: Node, operator: Operator, site: Site, crl: Callable[[], Path]
) -> None:
    """certificateHold: refused with the next list, let in again with the one after the unlock (R6)."""
    assert "SUCCESS" in node.s_client(site).stdout
    operator.act(node.machine_id, "lock", reason="seen elsewhere")
    try:
        crl()
        site.reload()
        assert "400 Bad Request" in node.s_client(site).stdout
        assert "certificate revoked" in site.log()
        # The agent neither drops what it has nor asks for more.
        assert node.leaf("client").not_valid_after_utc > datetime.now(UTC)
    finally:
        operator.act(node.machine_id, "unlock")
    crl()
    site.reload()
    assert "SUCCESS" in node.s_client(site).stdout


def test_nginx_serves_with_a_key_of_the_tpm(node: Node, crl: Callable[[], Path], tmp_path: Path) -> None:
    """Nginx itself, with the server certificate: its name, its address, its CA; both ends may have TPM keys."""
    conf = tmp_path / "openssl.cnf"
    conf.write_text(OPENSSL_CONF)
    server, bundle = node.tls / "server", node.tls / "client" / "bundle.pem"
    with Site(
        tmp_path / "nginx",
        certificate=server / "all.pem",
        key=server / "all.pem",
        trust=bundle,
        crl=crl(),
        OPENSSL_CONF=str(conf),
        TPM2OPENSSL_TCTI=node.manager.tcti,
    ) as site:
        signed = node.manager.commands.get(0x15D, 0)
        for address in (f"w-7:{site.port}", f"127.0.0.2:{site.port}"):
            curl = node.run(
                "curl", "-sS", "--cacert", str(bundle), "--connect-to", f"::127.0.0.1:{site.port}",
                f"https://{address}/",
            )  # fmt: skip
            # Without a certificate of our own: TLS succeeded, and nginx says what it misses.
            assert "No required SSL certificate was sent" in curl.stdout, curl.stderr + site.log()
        assert node.manager.commands[0x15D] >= signed + 2, "TPM2_Sign made the server's signatures"
        (node.directory / "site.pem").write_bytes(bundle.read_bytes())
        done = node.s_client(site)
        assert "SUCCESS TLSv1.3" in done.stdout, done.stderr + site.log()


def test_a_renewal_interrupts_nobody(node: Node, site: Site) -> None:
    """Old certificate or new one: every connection of others succeeds, and key and certificate always fit."""
    before = node.leaf("client")
    told = (node.directory / "told").read_text().splitlines()
    node.cert("--renew")

    def renewed() -> bool:
        directory = (node.tls / "client").resolve()
        assert (directory / "all.pem").exists()
        done = node.s_client(site)
        assert "SUCCESS" in done.stdout, done.stderr
        return done.stdout.split()[-1] != f"{before.serial_number:040X}"

    eventually(renewed, lambda: f"not renewed: {node.cert()}\n{node.log()}")
    after = node.leaf("client")
    assert after.serial_number != before.serial_number
    assert after.public_key() == before.public_key(), "the same key, unless told otherwise"
    eventually(lambda: len((node.directory / "told").read_text().splitlines()) >= len(told) + 2)
    assert (node.directory / "told").read_text().splitlines()[-1].startswith(str(node.tls))
    shown = node.cert()["client"]
    assert shown["certificate"]["serial"] == f"{after.serial_number:040x}"
    assert (shown["valid"], shown["renewal_asked"], shown["last_error"]) == (True, False, None)


def test_the_signer_signs_for_other_programs(node: Node, tmp_path: Path) -> None:
    """What `attestation-agent sign` returns is verified by OpenSSL with the certificate."""
    (tmp_path / "data").write_text("to be signed")
    done = node.run(str(AGENT), "sign", str(tmp_path / "data"))
    assert done.returncode == 0, done.stderr
    (tmp_path / "signature").write_bytes(base64.b64decode(done.stdout))
    public = node.run("openssl", "x509", "-in", str(node.tls / "client" / "cert.pem"), "-noout", "-pubkey")
    (tmp_path / "key.pem").write_text(public.stdout)
    verified = node.run(
        "openssl", "dgst", "-sha384", "-verify", str(tmp_path / "key.pem"), "-signature",
        str(tmp_path / "signature"), str(tmp_path / "data"),
    )  # fmt: skip
    assert verified.stdout == "Verified OK\n", verified.stderr
    assert stat.S_IMODE(node.signer.stat().st_mode) == 0o600


def test_once_and_then_the_tpm_is_free(
    service: ServiceProcess, operator: Operator, tmp_path: Path, software_tpm: SoftwareTPM
) -> None:
    """An agent that ends leaves certificate and key; OpenSSL uses the key in the TPM without any of us."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("ITL_", "COVERAGE_"))} | {
        "ITL_REG_URL": service.url,
        "ITL_TPM": software_tpm.uri,
        "ITL_STATE_DIR": str(tmp_path / "state"),
        "ITL_CONFIG_PATH": str(tmp_path / "config.yaml"),
        "ITL_SYSFS": str(tmp_path / "sys"),
        "ITL_AGENT_CERTIFICATES": "client",
        "TPM2OPENSSL_TCTI": software_tpm.tcti,
    }

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            cwd=tmp_path,
        )

    known = {machine["machine_id"] for machine in operator.machines()}
    assert run(str(AGENT), "run", "--once").returncode == 10
    (machine_id,) = {machine["machine_id"] for machine in operator.machines()} - known
    operator.approve(machine_id)
    assert run(str(AGENT), "run", "--once").returncode == 0
    assert run(str(AGENT), "cert").returncode == 0
    (tmp_path / "data").write_text("to be signed")
    key = str(tmp_path / "state" / "tls" / "client" / "key.pem")
    providers = ("-provider", "default", "-provider", "tpm2", "-propquery", PROPERTIES)
    signed = run("openssl", "dgst", *providers, "-sha384", "-sign", key, "-out", "signature", "data")
    assert signed.returncode == 0, signed.stderr
    certificate = str(tmp_path / "state" / "tls" / "client" / "cert.pem")
    run("openssl", "x509", "-in", certificate, "-noout", "-pubkey", "-out", "public.pem")
    verified = run("openssl", "dgst", "-sha384", "-verify", "public.pem", "-signature", "signature", "data")
    assert verified.stdout == "Verified OK\n", verified.stderr


def test_a_rotation_of_the_ca_interrupts_nobody(
    node: Node, operator: Operator, site: Site, crl: Callable[[], Path]
) -> None:
    """Whoever has the bundle from before the switch lets in the certificates of both keys (R25)."""

    def step(name: str) -> None:
        operator.call("POST", "/ca/rotation", json={"step": name, "reason": "test", "force": True})

    def renewed() -> x509.Certificate:
        before = node.leaf("client").serial_number
        node.cert("--renew")
        eventually(
            lambda: node.leaf("client").serial_number != before,
            lambda: f"not renewed: {node.cert()}\n{node.log()}",
        )
        return node.leaf("client")

    first = node.leaf("client").issuer
    bundle = node.tls / "client" / "bundle.pem"
    before = bundle.read_bytes()
    step("prepare")
    prepared = renewed()
    assert prepared.issuer == first, "the next key does not sign yet"
    assert len(bundle.read_bytes()) > len(before), "but is trusted already"
    crl()
    site.reload()
    assert "SUCCESS" in node.s_client(site).stdout
    # From here on nginx is not told of anything any more.
    step("activate")
    assert "SUCCESS" in node.s_client(site).stdout
    assert renewed().issuer != first
    done = node.s_client(site)
    assert "SUCCESS" in done.stdout, done.stdout + done.stderr + site.log()
