"""The commands of backup.md, run: everything is lost, restored into another folder, and machines attest on."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from attestation_testing import SoftwareNode
from tests.docs.pages import text
from tests.fixtures.machine import Machine
from tests.fixtures.service import ServiceProcess

BLOCKS = re.findall(r"^```\n(.*?)^```", text("docs/operate/backup.md"), flags=re.MULTILINE | re.DOTALL)
BACK_UP, PROVE, RESTORE = BLOCKS[:3]
BIN = Path(sys.executable).parent

SQLITE3 = f"""#!{sys.executable}
import shlex, sqlite3, sys
database, command = sys.argv[1:]
word, copy = shlex.split(command)
assert word == ".backup"
with sqlite3.connect(database) as source, sqlite3.connect(copy) as target:
    source.backup(target)
"""
"""What the page says, where Debian's own tool is not installed."""


def run(block: str, home: Path, backup: Path, tools: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the lines of the page, with other folders and the user who runs the test."""
    for name, here in (
        ("/var/lib/itl-reg", home),
        ("/backup", backup),
        ("/tmp/proof", backup / "proof"),
        ("/etc/itl-attestation", backup.parent),
    ):
        block = re.sub(rf"(?<![\w/.]){re.escape(name)}\b", str(here), block)
    block = block.replace("chown -R itl:", f"chown -R {pwd.getpwuid(os.geteuid()).pw_name}:")
    path = f"{tools}:{BIN}:{os.environ['PATH']}"
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ITL_")}
    return subprocess.run(
        ["/bin/bash", "-euc", block],
        env=clean | {"PATH": path, "HOME": str(tools)} | more,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def service_in(home: Path, passphrase: Path, like: ServiceProcess | None = None) -> ServiceProcess:
    """Return a service that lives in *home*, as the page has it; at the address of *like*."""
    found = ServiceProcess(
        directory=home,
        environment={
            "ITL_DB_URL": f"sqlite:///{home}/db/machines.db",
            "ITL_ENROLLMENT_CA_PASSPHRASE_FILE": str(passphrase),
            "ITL_AUDIT_CHECKPOINT_SECONDS": "2",
        },
    )
    if like is not None:
        found.port, found.admin_token, found.canary = like.port, like.admin_token, like.canary
    return found


def until(holds: Callable[[], bool]) -> None:
    """Wait until *holds*."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def signed(http: httpx.Client) -> int:
    """Return how many entries are signed for."""
    newest = http.get("/api/v1/audit/checkpoint")
    return int(newest.text.splitlines()[1]) if newest.is_success else 0


def entries(database: Path) -> int:
    """Return how many there are: asked of the service, that would be one more."""
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as opened:
        return int(opened.execute("SELECT count(*) FROM audit_log").fetchone()[0])


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder with `sqlite3`, where the system has none."""
    folder = tmp_path / "tools"
    folder.mkdir()
    if shutil.which("sqlite3") is None:
        (folder / "sqlite3").write_text(SQLITE3)
        (folder / "sqlite3").chmod(0o755)
    return folder


def test_all_is_lost_and_comes_back_elsewhere(tmp_path: Path, tools: Path) -> None:
    """As the page says: the copy is proven, and what was restored serves the same machines with the same keys."""
    old, new, backup, passphrase = (tmp_path / name for name in ("old", "new", "backup", "ca-passphrase"))
    (old / "db").mkdir(parents=True)
    backup.mkdir()
    passphrase.write_text("correct horse\n")
    passphrase.chmod(0o600)
    service = service_in(old, passphrase)
    service.start()
    with httpx.Client(base_url=service.url, timeout=60) as http:
        machine = Machine(SoftwareNode(1), http)
        operator = service.operator()
        machine.admitted(operator)
        certificate = machine.certificate(machine.keys.create_signing_key())
        keys = http.get("/api/v1/service-keys").json()
        # Every act is signed for: no checkpoint comes between the two halves of the backup.
        until(lambda: signed(http) == entries(old / "db/machines.db"))
        # 1. Backed up while it runs; the copy is proven, though its files belong to somebody else.
        done = run(BACK_UP, old, backup, tools)
        assert done.returncode == 0, done.stderr
        prove = PROVE
        if os.geteuid() == 0:
            prove = PROVE.replace("\nattestation ca", f"\nchown -R 4711 {backup}/proof/ca\nattestation ca")
        proven = run(prove, old, backup, tools, ITL_API_URL=service.url, ITL_ADMIN_TOKEN=service.admin_token)
        assert proven.returncode == 0, proven.stderr + proven.stdout
        assert "proven" in proven.stdout
        operator.http.close()
    # 2. All is lost.
    service.kill()
    shutil.rmtree(old)
    # 3. It comes back elsewhere; a start would serve, and does.
    restored = run(RESTORE, new, backup, tools)
    assert restored.returncode == 0, restored.stderr
    again = service_in(new, passphrase, like=service)
    again.start()
    try:
        with httpx.Client(base_url=again.url, timeout=60) as http:
            machine.http = http
            machine.next_challenge = None
            assert http.get("/api/v1/service-keys").json() == keys
            assert machine.attest()["status"] == "attested"
            later = machine.certificate(machine.keys.create_signing_key())
            assert later["enrollment_ca_pem"] == certificate["enrollment_ca_pem"]
            operator = again.operator()
            assert operator.audit_is_valid()
            (key,) = operator.call("GET", "/ca")["issuers"]
            assert key["key_uri"].startswith(f"file:{new}/ca/")
            assert operator.call("GET", "/ca/check")["ok"]
            operator.http.close()
    finally:
        again.kill()
    for word in ("checkpoint_refused", "service_key.made", "Traceback"):
        assert word not in again.log()


def test_without_its_keys_a_restored_database_does_not_start(tmp_path: Path, tools: Path) -> None:
    """Nothing is made in their place, and what is said names the folder, not an intruder. A newer one: likewise."""
    home, passphrase = tmp_path / "home", tmp_path / "ca-passphrase"
    (home / "db").mkdir(parents=True)
    passphrase.write_text("correct horse\n")
    service = service_in(home, passphrase)
    service.start()
    service.stop()
    shutil.rmtree(home / "ca")
    for spoil, words in (
        (None, "restore the folder of the keys"),
        ("9999", "revision 9999, which this version"),
    ):
        if spoil is not None:
            change = f"UPDATE alembic_version SET version_num = '{spoil}'; DELETE FROM schema_support"
            subprocess.run([sys.executable, "-c", CHANGE, str(home / "db/machines.db"), change], check=True)
        service.log_file.unlink()
        service.start(ready=False)
        assert service._process is not None
        assert service._process.wait(60) == 1
        assert words in service.log()
        assert "Traceback" not in service.log()
        assert list((home / "ca").glob("*.pem")) == []


CHANGE = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as db:
    db.executescript(sys.argv[2])
"""
