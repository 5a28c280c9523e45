"""What a start loads, once for all workers, and what it leaves for those who need it (docs/adr/0064)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LEFT = (
    "alembic",
    "attestation.client",
    "attestation.device",
    "attestation.keys.pkcs11.thread",
    "attestation.keys.tpm2",
    "attestation_testing",
    "attestation_service.auth.oidc",
    "attestation_service.auth.provider_keys",
    "attestation_service.configs.files",
    "attestation_service.configs.rendering",
    "attestation_service.configurations.judging",
    "httpx",
    "joserfc.jwe",
    "joserfc.jwt",
    "jsonschema",
    "keyring",
    "pkcs11",
    "rfc3161_client",
    "ruamel",
    "sqlalchemy.ext",
)
"""What only some services need, or only some requests; each loads it where it is used, beside the loop."""

BUILD = """
from attestation_service.main import collector_at_rest
with collector_at_rest():
    from attestation_service.app import create_app
    from attestation_service.settings import Settings
    app = create_app(Settings())
"""


def run(code: str, directory: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ITL_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**clean, "ITL_DB_URL": f"sqlite:///{directory}/machines.db"},
        cwd=directory,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what is there once the application is built."""
    code = f"""
import gc, json, sys
from attestation_service.main import collector_at_rest
looked = []
gc.callbacks.append(lambda phase, info: looked.append(phase))
{BUILD}
gc.callbacks.clear()
from attestation_service.routers import ROUTERS
served = set(map(id, app.router.routes))
print(json.dumps({{
    "modules": list(sys.modules),
    "looked": len(looked),
    "enabled": gc.isenabled(),
    "passed_over": gc.get_freeze_count(),
    "routes": [id(route) in served for router in ROUTERS for route in router.routes],
}}))
"""
    found: dict[str, Any] = json.loads(run(code, tmp_path_factory.mktemp("start")))
    return found


def test_what_few_need_is_not_loaded_at_the_start(built: dict[str, Any]) -> None:
    """Neither for the supervisor, nor for any worker."""
    assert "attestation_service.attest.handlers" in built["modules"]
    assert [name for name in LEFT if name in built["modules"]] == []


def test_no_garbage_is_looked_for_among_what_is_imported(built: dict[str, Any]) -> None:
    """The collector rests while the application comes, passes over it afterwards, and works from then on."""
    assert built["looked"] == 0
    assert built["passed_over"] > 100_000
    assert built["enabled"]


def test_routes_are_built_once(built: dict[str, Any]) -> None:
    """The application serves the routes that its features made, not copies of them."""
    assert len(built["routes"]) > 80
    assert all(built["routes"])


def test_what_is_left_can_be_loaded() -> None:
    """The list names modules that exist, but for those of extras: a misspelt one would never be found loaded."""
    extras = {"jsonschema", "keyring", "pkcs11", "rfc3161_client"}
    assert {name for name in LEFT if importlib.util.find_spec(name) is None} <= extras


FORKED = """
import os, sys
from attestation_service import main
from attestation_service.process import preparation
from attestation_service.settings import Settings
here = os.getpid()
def prepare(settings):
    sys.stdout.write(f"{os.getppid() == here} {'attestation_service.app' in sys.modules} ")
    sys.stdout.flush()
    return answer
preparation.prepare = prepare
for answer in True, False:
    sys.stdout.write(f"{main._prepared_elsewhere(Settings())} ")
    sys.stdout.flush()
"""


def test_who_tries_the_keys_is_forked_from_what_was_imported(tmp_path: Path) -> None:
    """A second interpreter would import all of it again. What it finds is what is told."""
    assert run(FORKED, tmp_path).split() == ["True", "True", "True", "True", "True", "False"]
