"""Whoever needs little loads little; every name is there all the same (docs/adr/0021)."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import attestation.api
import attestation.client

HEAVY = (
    "pydantic",
    "httpx",
    "joserfc",
    "cryptography",
    "ruamel",
    "sqlalchemy",
    "importlib.metadata",
    "asyncio",
)


def loaded(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"},
    )
    modules = set(done.stdout.splitlines()[-1].split())
    return {name for name in HEAVY if name in modules}


@pytest.mark.parametrize(
    "code",
    [
        "import attestation.client, attestation.api",
        "from attestation.client import OperatorClient, ServiceUnreachable, Record",
        "from attestation.client import OperatorClient; OperatorClient('http://localhost', 't').close()",
        "from attestation.client import OperatorClient; OperatorClient('https://x.example', 't').close()",
        "from attestation.client import PublicClient; PublicClient('http://localhost')",
        "import attestation.client.words",
        "import attestation_cli.commands.machine, attestation_cli.commands.stats, attestation_cli.main",
    ],
)
def test_what_a_listing_needs_loads_nothing_heavy(code: str) -> None:
    """Neither models nor another HTTP client nor cryptography of Python."""
    assert loaded(code) == set()


LISTING = """
import json, threading, http.server
class Service(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"items": [], "next_cursor": None}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Service)
threading.Thread(target=server.serve_forever, daemon=True).start()
import os
os.environ.update(ITL_API_URL=f"http://127.0.0.1:{server.server_address[1]}", ITL_ADMIN_TOKEN="t")
from attestation_cli.main import cli
try:
    cli(["machine", "list"])
except SystemExit as e:
    assert e.code == 0, e.code
print()
"""


def test_machine_list_loads_nothing_heavy() -> None:
    """The whole command, over a real connection."""
    assert loaded(LISTING) == set()


def test_every_schema_is_found_by_name() -> None:
    """A new module of `attestation.api` is one of those that are searched."""
    for info in pkgutil.iter_modules(attestation.api.__path__):
        module = importlib.import_module(f"attestation.api.{info.name}")
        for name in getattr(module, "__all__", ()):
            assert getattr(attestation.api, name) is getattr(module, name)


def test_every_name_of_the_client_is_there() -> None:
    """What `__all__` promises is what is found; anything else is an AttributeError."""
    for name in attestation.client.__all__:
        assert getattr(attestation.client, name).__name__ == name
    for package in (attestation.client, attestation.api):
        with pytest.raises(AttributeError, match="no attribute 'Nonesuch'"):
            package.Nonesuch  # noqa: B018 -- asking is the test
        assert not hasattr(package, "__wrapped__")
