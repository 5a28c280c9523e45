"""Each import contract of pyproject.toml is broken by what it forbids."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

LAYERS = "the layers of the SDK"
MEMBERS = (
    "agent, service, CLI, extensions, operator, dashboard and the test kit stand on the SDK and never on "
    "one another"
)
PURE = "the heart is pure: no network, no database, no clock, no environment, no async"
STORE = "only the service and extensions see the store"
CONTRACT = "extensions see the contract, its errors and keys by URI, all else only through it"
HTTPX = "only the service asks others over httpx: what runs on machines and laptops is installed without it"
KINDS = "kinds of evidence are independent of each other"
WEB_LAYERS = "the layers of the dashboard"
WEB_PAGES = "areas of pages are independent of each other"
SERVICE_LAYERS = "the layers of the service; its features are independent of each other"

SDK = "sdk/attestation"
SERVICE = "service/attestation_service"

BREACHES = [
    (LAYERS, f"{SDK}/tpm/hashes.py", "import attestation.evidence.tpm_quote"),
    (LAYERS, f"{SDK}/utils.py", "# A module that chose no layer."),
    (LAYERS, f"{SDK}/machines/machine.py", "import attestation.audit"),
    (MEMBERS, "agent/attestation_agent/main.py", "import attestation_cli.render"),
    (MEMBERS, f"{SDK}/keys/__init__.py", "import attestation_service.border.limits"),
    (MEMBERS, f"{SDK}/device/node.py", "import attestation_testing"),
    (MEMBERS, f"{SERVICE}/attest/handlers.py", "import attestation_testing"),
    (MEMBERS, "web/attestation_web/app.py", "import attestation_cli.login.current"),
    (WEB_LAYERS, "web/attestation_web/login/current.py", "import attestation_web.page.table"),
    (WEB_LAYERS, "web/attestation_web/utils.py", "# A module that chose no layer."),
    (WEB_PAGES, "web/attestation_web/pages/overview.py", "import attestation_web.pages.account"),
    (STORE, "web/attestation_web/app.py", "import attestation.store"),
    (HTTPX, "web/attestation_web/app.py", "import httpx"),
    (PURE, f"{SDK}/evidence/tpm_quote.py", "import time"),
    (PURE, f"{SDK}/appraisal/appraise.py", "import os"),
    (PURE, f"{SDK}/reference/policy.py", "import pydantic"),
    (PURE, f"{SDK}/wire.py", "import socket"),
    (STORE, "cli/attestation_cli/main.py", "import attestation.store"),
    (STORE, f"{SDK}/client/node.py", "import sqlalchemy"),
    (CONTRACT, "extensions/attestation_extensions/metrics/__init__.py", "import attestation.store"),
    (CONTRACT, "extensions/attestation_extensions/metrics/__init__.py", "import attestation.machines"),
    (
        MEMBERS,
        "extensions/attestation_extensions/metrics/__init__.py",
        "import attestation_service.border.limits",
    ),
    (HTTPX, f"{SDK}/client/plain.py", "import httpx"),
    (HTTPX, "cli/attestation_cli/session.py", "import httpx"),
    (KINDS, f"{SDK}/evidence/tpm_quote.py", "import attestation.evidence.ek_certificate"),
    (SERVICE_LAYERS, f"{SERVICE}/attest/handlers.py", "import attestation_service.machines.handlers"),
    (SERVICE_LAYERS, f"{SERVICE}/ca/handlers.py", "import attestation_service.pki.lists"),
    (SERVICE_LAYERS, f"{SERVICE}/operators/dual_control.py", "import attestation_service.approvals.handlers"),
    (SERVICE_LAYERS, f"{SERVICE}/border/limits.py", "import attestation_service.operators.acts"),
    (SERVICE_LAYERS, f"{SERVICE}/context/request.py", "import attestation_service.resources"),
    (SERVICE_LAYERS, f"{SERVICE}/utils.py", "# A module that chose no layer."),
]


def _lint(directory: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter over the members in *directory*, with the contracts of this project."""
    members = [str(path) for path in sorted((directory / "src").iterdir())]
    return subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache", "--no-logo"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(members), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of the members and of the contracts."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_contracts_hold(copy: Path) -> None:
    """Unchanged, the copy is accepted: what the other tests see is their breach."""
    assert _lint(copy).returncode == 0


@pytest.mark.parametrize(("contract", "where", "line"), BREACHES, ids=lambda value: value.rsplit(" ", 1)[-1])
def test_a_breach_is_found(copy: Path, contract: str, where: str, line: str) -> None:
    """One forbidden import breaks exactly the contract that forbids it, if no other as well."""
    path = copy / "src" / where
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    path.write_text(f"{before}\n{line}\n", encoding="utf-8")
    linted = _lint(copy)
    assert linted.returncode != 0
    assert f"{contract} BROKEN" in linted.stdout, linted.stdout
