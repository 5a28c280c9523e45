"""The parts of the demo: the real service and real agents as processes, with software TPMs."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import httpx

from attestation.device import NodeTPM
from attestation_testing import CertificateAuthority, SoftwareTPM
from tools.demo_people import Account, load_people, write_private
from tools.keycloak_realm import OPENID, Realm
from tools.nginx import NginxMissing, configure

START_SECONDS: Final = 120.0
STOP_SECONDS: Final = 10.0
AGENT_SECONDS: Final = 120.0
REATTEST_SECONDS: Final = 10
BIN: Final = Path(sys.executable).parent
ROOT: Final = Path(__file__).resolve().parents[1]

PENDING_APPROVAL: Final = 10
"""Exit code of the agent: proven, waits for an operator (docs/operate/agent.md)."""

BASE_CONFIG: Final = """\
# The configuration of every {role}; the service writes the machine's own values into it.
version: v1alpha1
machine:
  type: {kind}
  token: {secret}
  install:
    disk: /dev/sda
  network: {{}}
cluster:
  clusterName: demo
  controlPlane:
    endpoint: https://10.0.0.10:6443
  secret: {secret}
"""


class Failed(Exception):
    """The demo cannot go on; the text says why and where to look."""


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a child: the caller's without `ITL_*` and Python's paths, and *more*."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ITL_", "PYTHON", "COVERAGE_"))}
    return {**kept, **more}


@dataclass
class Process:
    """A child of ours in a session of its own, so that Ctrl-C reaches us alone."""

    command: list[str]
    log: Path
    variables: dict[str, str]
    cwd: Path
    _child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; what it prints goes to the log."""
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                self.command,
                cwd=self.cwd,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        """True while it has not ended."""
        return self._child is not None and self._child.poll() is None

    def wait(self, seconds: float) -> int:
        """Return its exit code."""
        assert self._child is not None
        return self._child.wait(seconds)

    def ask_to_stop(self) -> None:
        """Send SIGTERM."""
        if self.running and self._child is not None:
            self._child.terminate()

    def stop(self) -> None:
        """End it, by force where it does not obey; its own children with it."""
        self.ask_to_stop()
        if self._child is None:
            return
        try:
            self._child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()


def wait_for(url: str, process: Process, what: str) -> None:
    """Return as soon as *url* answers with a success.

    Raises:
        Failed: The process ended, or is not ready in time.
    """
    give_up_at = time.monotonic() + START_SECONDS
    while time.monotonic() < give_up_at and process.running:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2):
            return
        time.sleep(0.05)
    last = process.log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
    raise Failed("\n".join([f"{what} did not start; the end of {process.log}:", *last]))


class IdentityProvider:
    """The identity provider of the demo, as a process; its people and its key are kept in *directory*.

    Args:
        directory: Where.
        port: Of its address.
        dashboard: Address of the dashboard, whose client has a secret there; empty for none.
    """

    def __init__(self, directory: Path, port: int, dashboard: str = "") -> None:
        self.issuer = f"http://127.0.0.1:{port}/realms/{Realm.load().name}"
        self.log = directory / "identity.log"
        self._directory = directory
        self._process = Process(
            [
                *(sys.executable, "-m", "tools.demo_identity"),
                *("--directory", str(directory), "--port", str(port)),
                *(("--dashboard", dashboard) if dashboard else ()),
            ],
            self.log,
            environment(PYTHONPATH=str(ROOT)),
            directory,
        )

    def start(self) -> None:
        """Start; it needs about a second until `wait`."""
        # Made here: whoever asks for the people must not race with the process.
        load_people(self._directory)
        self._process.start()

    def wait(self) -> None:
        """Wait until it answers.

        Raises:
            Failed: It ended, or is not ready in time.
        """
        wait_for(f"{self.issuer}/.well-known/openid-configuration", self._process, "the identity provider")

    @property
    def people(self) -> dict[str, Account]:
        """Everybody who can log in, by name."""
        return {account.person.username: account for account in load_people(self._directory)}

    def sign_in(self, username: str) -> str:
        """Do what a person with a browser does: the code flow with PKCE; return the access token.

        Raises:
            Failed: The provider did not let them in.
        """
        verifier, state = secrets.token_urlsafe(48), secrets.token_urlsafe(16)
        digest = hashlib.sha256(verifier.encode("ascii")).digest()
        client = {"client_id": "attestation-cli", "redirect_uri": "http://127.0.0.1:9/callback"}
        question = {
            **client,
            "response_type": "code",
            "scope": "openid profile",
            "state": state,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii"),
            "code_challenge_method": "S256",
        }
        password = self.people[username].password
        with httpx.Client(base_url=self.issuer + OPENID, timeout=10, trust_env=False) as browser:
            sent = browser.post("/auth", params=question, data={"username": username, "password": password})
            answer = parse_qs(urlsplit(sent.headers.get("location", "")).query)
            if answer.get("state") != [state] or "code" not in answer:
                raise Failed(
                    f"{username} could not log in: the identity provider answered {sent.status_code}"
                )
            form = {"grant_type": "authorization_code", "code": answer["code"][0], "code_verifier": verifier}
            given = browser.post("/token", data=client | form)
        if given.status_code != httpx.codes.OK:
            raise Failed(f"{username} got no token: {given.text[:200]}")
        return str(given.json()["access_token"])

    @property
    def running(self) -> bool:
        """True while it serves."""
        return self._process.running

    def stop(self) -> None:
        """Stop it."""
        self._process.stop()


class Service:
    """The attestation service with keys and role configurations in *directory*.

    Args:
        directory: Where.
        port: Of its address.
        issuer: Its identity provider.
        database: URL of its database; a file in *directory* where it is empty.
        replicas: Ports of as many processes, behind nginx at *port*; none: one process, which listens there itself.
        more: Settings beside those of each demo.
    """

    def __init__(
        self,
        directory: Path,
        port: int,
        issuer: str,
        *,
        database: str = "",
        replicas: Sequence[int] = (),
        more: Mapping[str, str] | None = None,
    ) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.token_file = directory / "admin-token"
        self.passphrase_file = directory / "ca-passphrase"
        self.proxy_secret_file = directory / "proxy-secret"
        self.variables = {
            "ITL_DB_URL": database or f"sqlite:///{directory / 'machines.db'}",
            "ITL_SERVICE_URL": self.url,
            "ITL_ENROLLMENT_CA_DIR": str(directory / "ca"),
            "ITL_ENROLLMENT_CA_PASSPHRASE_FILE": str(self.passphrase_file),
            "ITL_CONFIG_CACHE_DIR": str(directory / "configs"),
            "ITL_ADMIN_TOKEN_FILE": str(self.token_file),
            "ITL_OIDC_ISSUER": issuer,
            "ITL_DUAL_CONTROL_ROLES": "controlplane",
            "ITL_TPM_ALLOW_SIMULATOR": "true",
            "ITL_REATTEST_SECONDS": str(REATTEST_SECONDS),
            **(more or {}),
        }
        if replicas:
            self.variables["ITL_TRUSTED_PROXIES"] = "127.0.0.1/32"
            self.variables["ITL_PROXY_SECRET_FILE"] = str(self.proxy_secret_file)
        self._directory = directory
        self._port, self._begins_at = port, 0
        self._processes = {
            each: Process(
                [str(BIN / "attestation-service"), "--host", "127.0.0.1", "--port", str(each)],
                directory / (f"service-{number}.log" if replicas else "service.log"),
                environment(**self.variables),
                directory,
            )
            for number, each in enumerate(replicas or (port,), start=1)
        }
        self._proxy: Process | None = None

    @property
    def log(self) -> Path:
        """What the first of its processes that ended, or else the first one, logged."""
        ended = [each.log for each in self._all if not each.running]
        return (ended or [each.log for each in self._all])[0]

    @property
    def _all(self) -> list[Process]:
        return [*self._processes.values(), *((self._proxy,) if self._proxy is not None else ())]

    def prepare(self, roles: list[str]) -> None:
        """Make directories, secrets and a configuration for each role; keep what is there."""
        for name in ("ca", "configs"):
            (self._directory / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        for secret in (self.token_file, self.passphrase_file, self.proxy_secret_file):
            if not secret.exists():
                write_private(secret, secrets.token_urlsafe(32) + "\n")
        for role in roles:
            config = self._directory / "configs" / f"{role}-final.yaml"
            if not config.exists():
                kind = "controlplane" if role == "controlplane" else "worker"
                write_private(config, BASE_CONFIG.format(role=role, kind=kind, secret=secrets.token_hex(16)))

    @property
    def token(self) -> str:
        """The break-glass token."""
        return self.token_file.read_text(encoding="utf-8").strip()

    def start(self) -> None:
        """Start, and wait until the service can decide.

        Raises:
            Failed: It ended, or is not ready in time.
        """
        log = self.log
        self._begins_at = log.stat().st_size if log.exists() else 0
        for process in self._processes.values():
            process.start()
        for port, process in self._processes.items():
            wait_for(f"http://127.0.0.1:{port}/readyz", process, "the service")
        if self._port not in self._processes:
            self._proxy = self._make_proxy()
            self._proxy.start()
            wait_for(f"{self.url}/readyz", self._proxy, "nginx")

    def _make_proxy(self) -> Process:
        """Write the configuration that we ship, for this address without TLS and for these processes."""
        folder = self._directory / "nginx"
        folder.mkdir(mode=0o700, exist_ok=True)
        secret = folder / "proxy-secret.conf"
        write_private(
            secret, f'proxy_set_header Itl-Proxy-Secret "{self.proxy_secret_file.read_text().strip()}";\n'
        )
        certificates = "/etc/nginx/attestation"
        without_tls = {
            f"ssl_certificate {certificates}/server.pem;": "",
            f"ssl_certificate_key {certificates}/server-key.pem;": "",
            "ssl_protocols TLSv1.3;": "",
            "ssl_conf_command Ciphersuites TLS_AES_256_GCM_SHA384;": "",
            "ssl_session_tickets off;": "",
            f"ssl_client_certificate {certificates}/operator-ca.pem;": "",
            "ssl_verify_client optional;": "",
        }
        try:
            command = configure(
                folder,
                {
                    "listen 443 ssl;": f"listen 127.0.0.1:{self._port};",
                    "server unix:/run/attestation/service.sock;": " ".join(
                        f"server 127.0.0.1:{port};" for port in self._processes
                    ),
                    "proxy_set_header Host $host;": "proxy_set_header Host $http_host;",
                    f"include {certificates}/proxy-secret.conf;": f'include "{secret}";',
                    **without_tls,
                },
            )
        except NginxMissing as e:
            raise Failed(str(e)) from None
        return Process(command, folder / "error.log", environment(), folder)

    def warnings(self) -> list[str]:
        """Return what the service warned of at this start."""
        said = events(next(iter(self._processes.values())).log, begins_at=self._begins_at)
        return [str(event["warning"]) for event in said if event.get("event") == "settings.weakened"]

    @property
    def running(self) -> bool:
        """True while all of it serves."""
        return all(each.running for each in self._all)

    def stop(self) -> None:
        """Stop gracefully: whoever brings requests first."""
        for process in reversed(self._all):
            process.ask_to_stop()
        for process in reversed(self._all):
            process.stop()


@dataclass
class Machine:
    """A machine: a software TPM, firmware tables made up for it, and the agent."""

    name: str
    directory: Path
    server_url: str
    role: str
    number: int
    wishes: str = ""
    """The role that it asks for; an operator decides."""
    tpm: SoftwareTPM = field(init=False)
    _agent: Process | None = None

    def __post_init__(self) -> None:
        self.tpm = SoftwareTPM(self.directory / "tpm")

    def make(self, authority: CertificateAuthority) -> None:
        """Power on; a TPM that is new gets its EK certificate, and a boot is measured into its registers."""
        new = not (self.directory / "tpm" / "tpm2-00.permall").exists()
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.tpm.start()
        if new:
            self.tpm.manufacture(authority)
        for index, what in (
            (0, "firmware"),
            (4, "boot loader"),
            (7, "secure boot keys"),
            (11, "kernel and initrd"),
        ):
            self.tpm.measure(index, f"demo {what} 1.0".encode())
        dmi = self.directory / "sys/class/dmi/id"
        dmi.mkdir(parents=True, exist_ok=True)
        (dmi / "product_name").write_text("Demo Server 1U", encoding="ascii")
        (dmi / "product_serial").write_text(self.serial, encoding="ascii")
        (dmi / "product_uuid").write_text(f"00000000-0000-4000-8000-{self.number:012}", encoding="ascii")

    @property
    def serial(self) -> str:
        """What it says that its serial number is."""
        return f"DEMO-{self.number:04}"

    @property
    def config_path(self) -> Path:
        """Where the agent writes the opened configuration."""
        return self.directory / "machineconfig.yaml"

    @property
    def certificate_path(self) -> Path:
        """Where the agent offers the certificate of the machine."""
        return self.directory / "state/tls/client/cert.pem"

    @property
    def log(self) -> Path:
        """What the agent logged."""
        return self.directory / "agent.log"

    def node(self) -> NodeTPM:
        """Open the TPM as the agent does; swtpm serves one client at a time."""
        return self.tpm.node()

    def start_agent(self, *, once: bool) -> None:
        """Start `itl-tpm-register`, for one round or to stay."""
        command = [
            str(BIN / "itl-tpm-register"),
            *(["--once"] if once else []),
            *(
                "--server-url",
                self.server_url,
                "--tpm",
                self.tpm.uri,
                "--state-dir",
                str(self.directory / "state"),
            ),
            *("--config-path", str(self.config_path), "--apply-command", "true"),
            *("--certificates", "client"),
            *("--lock-command", "true", "--wipe-command", "true"),
            *("--sysfs", str(self.directory / "sys"), "--event-log", str(self.directory / "eventlog")),
            *(("--desired-role", self.wishes) if self.wishes else ()),
        ]
        self._agent = Process(command, self.log, environment(), self.directory)
        self._agent.start()

    def wait_for_agent(self) -> int:
        """Wait for the end of one round.

        Returns:
            The exit code: 0 or `PENDING_APPROVAL`.

        Raises:
            Failed: Any other end.
        """
        assert self._agent is not None
        code = self._agent.wait(AGENT_SECONDS)
        if code not in (0, PENDING_APPROVAL):
            last = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-3:]
            raise Failed(
                "\n".join([f"the agent of {self.name} ended with {code}; the end of {self.log}:", *last])
            )
        return code

    @property
    def agent_running(self) -> bool:
        """True while the resident agent runs."""
        return self._agent is not None and self._agent.running

    def ask_agent_to_stop(self) -> None:
        """Send SIGTERM to the agent."""
        if self._agent is not None:
            self._agent.ask_to_stop()

    def stop(self) -> None:
        """Stop the agent, then the TPM."""
        if self._agent is not None:
            self._agent.stop()
        self.tpm.close()


def events(log: Path, *, begins_at: int = 0) -> list[dict[str, Any]]:
    """Return the lines of a log that are JSON objects, from byte *begins_at* on."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for line in log.read_bytes()[begins_at:].decode("utf-8", "replace").splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    found.append(event)
    return found
