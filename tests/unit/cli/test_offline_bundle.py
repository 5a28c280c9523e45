"""`attestation machine offline-bundle`: a file for its owner alone, whole or not at all."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from attestation_cli.main import cli
from attestation_cli.session import Session
from tests.unit.cli.stub import HASH, NOW, Stub, machine, pending, problem

A = "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"


def envelope() -> dict[str, Any]:
    """Return a ConfigEnvelope as JSON."""
    return {
        "format": "ek-aes256gcm-v2",
        "machine_id": A,
        "token_id": "0" * 16,
        **dict.fromkeys(("credential_blob", "encrypted_secret", "iv", "ciphertext"), "AA=="),
        "config_sha256": HASH,
    }


def bundle() -> dict[str, Any]:
    """Return an OfflineBundle as JSON."""
    return {
        "machine_id": A,
        "role": "controlplane",
        "status": "attested",
        "ek_fingerprint": "ab" * 48,
        "hostname": "cp-1",
        "assigned_ip": None,
        "iso_url": None,
        "config_url": "https://service.example/api/v1/config/t0ken",
        "config_token": "t0ken",
        "machineconfig": envelope(),
        "machineconfig_signature": "a.b.c",
        "enrollment_cert_pem": "x",
        "enrollment_ca_pem": "x",
        "enrollment_key_pem": envelope(),
        "enrollment_key_signature": "a.b.c",
        "serial": "3f" * 20,
        "not_after": NOW,
        "built_at": NOW,
    }


class Bundles(Stub):
    """A service that makes bundles."""

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer *request*."""
        if not request.url.path.endswith("/offline-bundle"):
            return super().__call__(request)
        if self.voters:
            return httpx.Response(202, json=pending(self.voters, machine_id=A, action="offline_bundle"))
        if self.results:
            return problem(422, "request-invalid", "offline bundles are switched off")
        return httpx.Response(200, json=bundle())


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")


def run(service: Stub, file: Path, *more: str) -> Result:
    """Run the command."""
    arguments = ["machine", "offline-bundle", "cp-1", "--output-file", str(file), *more]
    return CliRunner().invoke(cli, arguments, obj=Session(carrier=service.carrier))


@pytest.fixture
def service() -> Bundles:
    """A service with one machine."""
    return Bundles(machines=[machine(A, hostname="cp-1")])


def test_the_file_is_for_its_owner_alone(service: Bundles, tmp_path: Path) -> None:
    """Mode 0600, everything that came; the screen has the serial number and no secret."""
    file = tmp_path / "cp-1.json"
    done = run(service, file)
    assert done.exit_code == 0, done.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = json.loads(file.read_text())
    assert found["serial"] == "3f" * 20
    assert found["machineconfig"] == envelope()
    assert "3f" * 20 in done.stdout
    assert "t0ken" not in done.output


def test_for_programs(service: Bundles, tmp_path: Path) -> None:
    """What was done, as JSON, and not what is in the file."""
    file = tmp_path / "cp-1.json"
    found = json.loads(run(service, file, "-o", "json").stdout)
    assert found == {"machine_id": A, "serial": "3f" * 20, "file": str(file)}


def test_a_vote_leaves_no_file(service: Bundles, tmp_path: Path) -> None:
    """The others are told how to agree; the last one gets the file."""
    service.voters = ("anna",)
    file = tmp_path / "cp-1.json"
    done = run(service, file)
    assert done.exit_code == 0
    assert f"attestation approval approve {HASH[:16]}" in done.stdout
    assert not file.exists()


def test_a_refusal_leaves_no_file(service: Bundles, tmp_path: Path) -> None:
    """Whatever the service says."""
    service.results = [{}]
    file = tmp_path / "cp-1.json"
    assert run(service, file).exit_code != 0
    assert not file.exists()


def test_nothing_is_overwritten(service: Bundles, tmp_path: Path) -> None:
    """A file that exists, or a link to one, stays, and the service is not even asked."""
    there, link = tmp_path / "there.json", tmp_path / "link.json"
    there.write_text("precious")
    link.symlink_to(tmp_path / "elsewhere")
    for file in (there, link, tmp_path / "no" / "such" / "folder"):
        assert run(service, file).exit_code == 2, file
    assert there.read_text() == "precious"
    assert not any(request.url.path.endswith("/offline-bundle") for request in service.requests)
