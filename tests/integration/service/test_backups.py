"""Backups are tried by losing everything: the database, the folder of the keys, the process."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from attestation_service.transparency.memory import FILE, MemoryFile
from attestation_testing import SoftwareNode
from tests.fixtures.machine import Machine
from tests.fixtures.postgres import Server
from tests.fixtures.service import ServiceProcess


def command(service: ServiceProcess, *words: str, most_bytes: int = -1) -> subprocess.CompletedProcess[str]:
    """Run a command with the settings of *service*; no file may be longer than *most_bytes*."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

    return subprocess.run(
        [Path(sys.executable).with_name("attestation-service"), *words],
        env=service.settings(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=limit if most_bytes >= 0 else None,
    )


@pytest.fixture
def server(postgres_server: Server) -> Iterator[Server]:
    """A server whose databases of this test go with it."""
    yield postgres_server
    for name in ("restored_1", "restored_2"):
        postgres_server.admin("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)


def test_all_is_lost_and_comes_back_in_either_database(tmp_path: Path, server: Server) -> None:
    """Machines attest on, the log continues; from SQLite, into SQLite and PostgreSQL, and from there."""
    urls = [
        f"sqlite:///{tmp_path}/home/db.sqlite",
        f"sqlite:///{tmp_path}/home/other.sqlite",
        server.create("restored_1").replace("postgresql:", "postgresql+psycopg:", 1),
        server.create("restored_2").replace("postgresql:", "postgresql+psycopg:", 1),
    ]
    service = ServiceProcess(
        directory=tmp_path / "home",
        environment={
            "ITL_DB_URL": urls[0],
            "ITL_ENROLLMENT_CA_UNENCRYPTED": "true",
            "ITL_AUDIT_CHECKPOINT_SECONDS": "3600",
        },
    )
    service.start()
    http = httpx.Client(base_url=service.url, timeout=60)
    machine, operator = Machine(SoftwareNode(1), http), service.operator()
    machine.admitted(operator)
    keys = http.get("/api/v1/service-keys").json()
    try:
        for n, (old, new) in enumerate(pairwise(urls)):
            # 1. Backed up while it serves, and told.
            backup = tmp_path / f"backup-{n}"
            before = operator.audit()
            done = command(service, "backup", "--to", str(backup), "--keys")
            assert done.returncode == 0, done.stderr
            assert "with the keys: whoever has it can sign as this service" in done.stdout
            assert operator.audit()[0]["action"] == "database_backed_up"
            assert [each for each in (backup, *backup.rglob("*")) if each.stat().st_mode & 0o077] == []
            # 2. All is lost.
            service.kill()
            shutil.rmtree(tmp_path / "home")
            (tmp_path / "home").mkdir()
            if old == urls[2]:
                server.drop("restored_1")
            # 3. It comes back, and goes on.
            service.environment = {**service.environment, "ITL_DB_URL": new}
            done = command(service, "restore", "--from", str(backup), "--keys")
            assert done.returncode == 0, done.stderr
            assert "The keys know it: start the service." in done.stdout
            again = command(service, "restore", "--from", str(backup))
            assert again.returncode == 1
            assert "was left as it is" in again.stderr
            service.start()
            machine.next_challenge = None
            assert http.get("/api/v1/service-keys").json() == keys
            assert machine.attest()["status"] == "attested"
            assert operator.audit()[-len(before) :] == before
            assert operator.audit_is_valid()
            assert "Traceback" not in service.log()
    finally:
        service.kill()
        http.close()
        operator.http.close()


def test_what_is_not_whole_is_neither_made_nor_restored(tmp_path: Path) -> None:
    """A full disk leaves nothing under the final name; a file that was changed is named, and nothing is made."""
    home = tmp_path / "home"
    home.mkdir()
    service = ServiceProcess(directory=home, environment={"ITL_ENROLLMENT_CA_UNENCRYPTED": "true"})
    assert command(service, "--prepare").returncode == 0
    to = tmp_path / "backup"
    full = command(service, "backup", "--to", str(to), most_bytes=20_000)
    assert full.returncode == 1
    assert "Traceback" not in full.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["home"]
    # What was killed is in nobody's way.
    (tmp_path / ".backup.part").mkdir()
    (tmp_path / ".backup.part/database.sqlite").write_text("half")
    assert command(service, "backup", "--to", str(to)).returncode == 0
    assert sorted(each.name for each in to.iterdir()) == ["database.sqlite", "manifest.json"]
    assert "is there already" in command(service, "backup", "--to", str(to)).stderr
    nowhere = command(service, "backup", "--to", str(tmp_path / "nowhere/b")).stderr
    assert f"install -d -m 0700 -o {os.geteuid()} {tmp_path}/nowhere" in nowhere

    # What is older than the keys remember is not backed up in place of what they know.
    keys = MemoryFile(home / "ca" / FILE)
    now = keys.read()
    assert now is not None
    keys.write(replace(now, last=replace(now.last, size=9)))
    older = command(service, "backup", "--to", str(tmp_path / "older"))
    assert older.returncode == 1
    assert "an older copy of the database" in older.stderr
    keys.write(now)

    # What others put there is neither emptied nor filled.
    (precious := tmp_path / "precious").mkdir()
    (precious / "kept").touch()
    (tmp_path / ".another.part").symlink_to(precious)
    (tmp_path / ".open.part").mkdir()
    (tmp_path / ".open.part").chmod(0o777)
    for name in ("another", "open"):
        refused = command(service, "backup", "--to", str(tmp_path / name))
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "only you can write to, and was left as it is" in refused.stderr
    assert [each.name for each in precious.iterdir()] == ["kept"]

    shutil.rmtree(home)
    home.mkdir()
    manifest = (to / "manifest.json").read_text()
    content = (to / "database.sqlite").read_bytes()
    told = json.loads(manifest)
    other = json.dumps(told | {"entries": told["entries"] + 1})
    obeyed = json.dumps(told | {"files": told["files"] | {"\x1b[2J": ""}})
    for file, spoilt, words in (
        ("database.sqlite", content.replace(b"ca_created", b"ca_creates"), "is not what was backed up"),
        ("manifest.json", other.encode(), "another database than its manifest.json says"),
        ("manifest.json", b"{}", "cannot be read"),
        ("manifest.json", obeyed.encode(), "\ufffd[2J is missing"),
    ):
        (to / file).write_bytes(spoilt)
        refused = command(service, "restore", "--from", str(to))
        assert (refused.returncode, refused.stdout) == (1, ""), words
        assert words in refused.stderr
        (to / "manifest.json").write_text(manifest)
        (to / "database.sqlite").write_bytes(content)
    assert "made without --keys" in command(service, "restore", "--from", str(to), "--keys").stderr
    assert list(home.iterdir()) == []
    assert command(service, "restore", "--from", str(to)).returncode == 0
