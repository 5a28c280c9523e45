"""Identity tokens at a consumer: OpenBao's method `jwt`, by discovery."""

from __future__ import annotations

import base64
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from attestation_testing import CertificateAuthority
from tests.fixtures.service import ServiceProcess
from tests.fixtures.tpm import MakeTPM
from tools.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.swtpm, pytest.mark.timeout(180)]

AGENT = str(Path(sys.executable).with_name("attestation-agent"))
BAO = Path(sys.executable).with_name("bao")


class OpenBao:
    """A server for development, in memory."""

    def __init__(self, folder: Path) -> None:
        self.root = secrets.token_hex(16)
        self.url = f"http://127.0.0.1:{free_port()}"
        self._log = (folder / "bao.log").open("wb")
        self._process = subprocess.Popen(
            [
                str(BAO),
                "server",
                "-dev",
                "-dev-no-store-token",
                f"-dev-root-token-id={self.root}",
                f"-dev-listen-address={self.url.removeprefix('http://')}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={"HOME": str(folder), "PATH": "/usr/bin:/bin"},
        )
        end = time.monotonic() + 60
        while True:
            try:
                if httpx.get(f"{self.url}/v1/sys/health", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            assert time.monotonic() < end, (folder / "bao.log").read_text()
            time.sleep(0.2)

    def ask(self, method: str, path: str, body: dict[str, Any]) -> httpx.Response:
        """Ask as its administrator."""
        return httpx.request(
            method, f"{self.url}/v1/{path}", json=body, headers={"X-Vault-Token": self.root}, timeout=30
        )

    def login(self, token: str) -> httpx.Response:
        """Log in as a machine."""
        return httpx.post(f"{self.url}/v1/auth/jwt/login", json={"role": "worker", "jwt": token}, timeout=30)

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(30)
        self._log.close()


@pytest.fixture
def bao(tmp_path: Path) -> Iterator[OpenBao]:
    """OpenBao."""
    found = OpenBao(tmp_path)
    yield found
    found.stop()


@contextmanager
def local_endpoint(folder: Path, environment: Mapping[str, str]) -> Iterator[Callable[[], dict[str, str]]]:
    """Run the agent's endpoint; yield what asks it for a token with curl, as any program can."""
    path = folder / "sockets/identity"
    words = ["identity", "serve", "--socket", str(path), "--audience", "openbao"]
    serving = subprocess.Popen([AGENT, *words], env=dict(environment), stderr=subprocess.PIPE)

    def ask() -> dict[str, str]:
        url = "http://localhost/token?audience=openbao"
        done = subprocess.run(
            ["curl", "-sS", "--fail-with-body", "--unix-socket", str(path), url],
            capture_output=True, text=True, check=False, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, str] = json.loads(done.stdout)
        return found

    try:
        end = time.monotonic() + 30
        while not path.exists():
            assert serving.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        yield ask
    finally:
        serving.terminate()
        _, told = serving.communicate(timeout=240)
    assert serving.returncode == 0, told
    assert not path.exists()


def test_a_machine_logs_in_by_its_token(
    tmp_path: Path, bao: OpenBao, make_tpm: MakeTPM, tpm_ca: CertificateAuthority
) -> None:
    """As docs/operate/identity/openbao.md has it; not for another audience, nor with a token that was changed."""
    port = free_port()
    issuer = f"http://127.0.0.1:{port}/api/v1/identity"
    service = ServiceProcess(
        directory=tmp_path,
        port=port,
        environment={
            "ITL_EXTENSIONS": "machine_identity",
            "ITL_EXT_MACHINE_IDENTITY_KEY": f"file:{tmp_path}/identity.pem",
            "ITL_EXT_MACHINE_IDENTITY_AUDIENCES": "openbao; other",
            "ITL_EXT_MACHINE_IDENTITY_ISSUER": issuer,
        },
    )
    service.start()
    operator = service.operator()
    tpm = make_tpm()
    tpm.manufacture(tpm_ca)

    environment = {
        "PATH": "/usr/bin:/bin",
        "ITL_REG_URL": service.url,
        "ITL_TPM": tpm.uri,
        "ITL_STATE_DIR": str(tmp_path / "state"),
        "ITL_CONFIG_PATH": str(tmp_path / "config.yaml"),
    }

    def agent(*words: str, code: int = 0) -> str:
        done = subprocess.run(
            [AGENT, *words],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == code, done.stderr
        return done.stdout.strip()

    try:
        agent("run", "--once", code=10)
        machine_id = json.loads((tmp_path / "state" / "machine.json").read_text())["machine_id"]
        operator.approve(machine_id)
        agent("run", "--once")
        assert bao.ask("POST", "sys/auth/jwt", {"type": "jwt"}).is_success
        trust = {
            "oidc_discovery_url": issuer,
            "bound_issuer": issuer,
            "jwt_supported_algs": ["ES256"],
        }
        configured = bao.ask("POST", "auth/jwt/config", trust)
        assert configured.is_success, configured.text
        role = {
            "role_type": "jwt",
            "bound_audiences": ["openbao"],
            "bound_claims": {"cluster": "default", "role": ["worker-app"]},
            "user_claim": "sub",
            "token_ttl": "10m",
            "token_policies": ["worker"],
        }
        assert bao.ask("POST", "auth/jwt/role/worker", role).is_success
        token = agent("identity", "token", "--audience", "openbao")
        accepted = bao.login(token)
        assert accepted.status_code == 200, accepted.text
        assert "worker" in accepted.json()["auth"]["policies"]
        with local_endpoint(tmp_path, environment) as ask:
            assert bao.login(ask()["token"]).status_code == 200
        # Another audience; a claim that was changed; a machine that is locked gets no new one.
        assert bao.login(agent("identity", "token", "--audience", "other")).status_code == 400
        head, body, signature = token.split(".")
        claims = json.loads(base64.urlsafe_b64decode(body + "=="))
        forged = base64.urlsafe_b64encode(json.dumps(claims | {"role": "worker-app "}).encode()).rstrip(b"=")
        assert bao.login(f"{head}.{forged.decode()}.{signature}").status_code == 400
        agent("identity", "token", "--audience", "nobody", code=22)
        operator.act(machine_id, "lock", reason="x")
        agent("identity", "token", "--audience", "openbao", code=22)
        status = httpx.get(f"{issuer}/status/{claims['jti']}", timeout=30).json()
        assert status["active"] is False
    finally:
        operator.http.close()
        service.kill()
