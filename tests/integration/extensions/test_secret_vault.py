"""Secrets from an operator's command line to a machine's: a real service, real TPMs, every command of the vault."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from attestation.keys import create_kek
from attestation_testing import CertificateAuthority, SoftwareTPM
from tests.fixtures.service import Operator, ServiceProcess
from tests.fixtures.stores import NewDatabase
from tests.fixtures.tpm import MakeTPM

pytestmark = [
    pytest.mark.slow,
    pytest.mark.swtpm,
    pytest.mark.timeout(420),
]  # a hundred programs, one after the other

CANARY = "canary-91b7-marlin"
FORBIDDEN = b"this machine may not have this secret"


@dataclass(frozen=True, kw_only=True)
class World:
    """A service with the vault, and an operator's command line."""

    folder: Path
    service: ServiceProcess
    operator: Operator

    def operates(self, *words: str, value: str | None = None, code: int = 0) -> str:
        """Run `attestation …`; return what it printed."""
        environment = {
            "HOME": str(self.folder),
            "ITL_API_URL": self.service.url,
            "ITL_ADMIN_TOKEN_FILE": str(self.folder / "admin.token"),
        }
        done = _run(["attestation", *words], environment, value)
        assert done.returncode == code, done.stderr
        return (done.stdout if code == 0 else done.stderr).decode()

    def machine(self, tpm: SoftwareTPM, name: str, *words: str, code: int = 0) -> bytes:
        """Run `attestation-agent …` on the machine of this TPM; return what it printed."""
        environment = {
            "ITL_REG_URL": self.service.url,
            "ITL_TPM": tpm.uri,
            "ITL_STATE_DIR": str(self.folder / name),
            "ITL_CONFIG_PATH": str(self.folder / f"{name}.yaml"),
        }
        done = _run(["attestation-agent", *words], environment, None)
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    def admitted(self, tpm: SoftwareTPM, name: str) -> str:
        """Introduce, approve, attest; return its id."""
        self.machine(tpm, name, "run", "--once", code=10)
        machine_id = str(json.loads((self.folder / name / "machine.json").read_text())["machine_id"])
        self.operator.approve(machine_id, hostname=name)
        self.machine(tpm, name, "run", "--once")
        return machine_id


def _run(
    command: list[str], environment: dict[str, str], value: str | None
) -> subprocess.CompletedProcess[bytes]:
    program = str(Path(sys.executable).with_name(command[0]))
    return subprocess.run(
        [program, *command[1:]],
        env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **environment},
        input=(value or "").encode(),
        capture_output=True,
        check=False,
        timeout=240,
    )


@pytest.fixture
def world(tmp_path: Path, new_database: NewDatabase) -> Iterator[World]:
    """Two workers, a KEK in a file."""
    create_kek(f"file:{tmp_path}/vault.kek").close()
    service = ServiceProcess(
        directory=tmp_path,
        workers=2,
        environment={
            "ITL_EXTENSIONS": "secret_vault",
            "ITL_EXT_SECRET_VAULT_KEK": f"file:{tmp_path}/vault.kek",
        },
        server_url=new_database(),
    )
    service.start()
    operator = service.operator()
    token = tmp_path / "admin.token"
    token.write_text(service.admin_token)
    token.chmod(0o600)
    yield World(folder=tmp_path, service=service, operator=operator)
    operator.http.close()
    service.kill()
    assert CANARY not in service.log()


@pytest.mark.threat("T220")
def test_a_secret_goes_from_an_operator_to_exactly_one_tpm(
    world: World, make_tpm: MakeTPM, tpm_ca: CertificateAuthority
) -> None:
    """Written at one command line, opened at another; the machine beside it, and a locked one, get nothing."""
    one, two = make_tpm(), make_tpm()
    for each in (one, two):
        each.manufacture(tpm_ca)
    machine_id, _ = world.admitted(one, "w-1"), world.admitted(two, "w-2")
    # Shared: granted to one of them.
    world.operates(
        "shared-secret", "create", "registry", "--rule", 'machine.role == "worker-app"', value=f"{CANARY}\n"
    )
    assert FORBIDDEN in world.machine(two, "w-2", "secret", "get", "registry", "--shared", code=22)
    world.operates("shared-secret", "grant", "registry", "--machines", "w-1")
    assert world.machine(one, "w-1", "secret", "get", "registry", "--shared") == CANARY.encode()
    assert FORBIDDEN in world.machine(two, "w-2", "secret", "get", "registry", "--shared", code=22)
    (grant,) = _json(world.operates("-o", "json", "shared-secret", "access", "registry"))
    assert (grant["machine_id"], grant["access_count"]) == (machine_id, 1)
    # Its own: by name, to a file, to a program.
    world.operates("secret", "create", "w-1", "-n", "database", value=CANARY)
    assert world.machine(one, "w-1", "secret", "get", "database", "--exec", "sha256sum").startswith(
        b"%s " % _sha256(CANARY)
    )
    world.machine(one, "w-1", "secret", "get", "database", "--to", str(world.folder / "password"))
    password = world.folder / "password"
    assert (password.read_text(), password.stat().st_mode & 0o777) == (CANARY, 0o600)
    assert b"no such secret" in world.machine(two, "w-2", "secret", "get", "database", code=22)
    # Operators see names.
    for words in (
        ("list", "w-1"),
        ("get", "w-1/database"),
        ("get", "w-1", "database"),
        ("versions", "w-1/database"),
    ):
        assert CANARY not in world.operates("-o", "json", "secret", *words)
    world.operates("secret", "rotate", "w-1/database", value="another")
    assert world.machine(one, "w-1", "secret", "get", "database") == b"another"
    world.operates("secret", "restore", "w-1/database", "1")
    assert world.machine(one, "w-1", "secret", "get", "database") == CANARY.encode()
    previewed = _json(world.operates("-o", "json", "shared-secret", "preview", "registry"))
    assert [each["released"] for each in previewed if each["hostname"] == "w-1"] == [True]
    world.operates("shared-secret", "change", "registry", "--rule", 'machine.role == "controlplane"')
    assert FORBIDDEN in world.machine(one, "w-1", "secret", "get", "registry", "--shared", code=22)
    world.operates("shared-secret", "change", "registry", "--rule", "")
    assert '"rule": null' in world.operates("-o", "json", "shared-secret", "get", "registry")
    assert "0 data keys" in world.operates("secret", "rewrap")
    world.operator.act(machine_id, "lock", reason="stolen")
    world.machine(one, "w-1", "secret", "get", "database", code=22)
    world.operates("shared-secret", "revoke", "registry", "--machines", "w-1")
    world.operates("shared-secret", "delete", "registry", "--yes")
    assert "there is no shared secret registry" in world.operates("shared-secret", "get", "registry", code=3)
    assert world.operator.audit_is_valid()


def _json(text: str) -> list[dict[str, Any]]:
    found = json.loads(text)
    return found if isinstance(found, list) else [found]


def _sha256(text: str) -> bytes:
    return hashlib.sha256(text.encode()).hexdigest().encode()
