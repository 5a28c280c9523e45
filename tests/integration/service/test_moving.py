"""The database moves to another kind of database: the service goes on there, and the old one is not started again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from attestation_testing import SoftwareNode
from tests.fixtures.machine import Machine
from tests.fixtures.postgres import Server
from tests.fixtures.service import ServiceProcess


def command(service: ServiceProcess, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the settings of *service*."""
    return subprocess.run(
        [Path(sys.executable).with_name("attestation-service"), *words],
        env=service.settings() | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def empty(postgres_server: Server) -> Iterator[str]:
    """The URL of an empty database on a server."""
    yield postgres_server.create("moved").replace("postgresql:", "postgresql+psycopg:", 1)
    postgres_server.drop("moved")


def test_the_service_goes_on_with_the_other_database(tmp_path: Path, empty: str) -> None:
    """There and back: machines attest on, the log continues, and who was left says where to."""
    first = f"sqlite:///{tmp_path}/machines.db"
    last = f"sqlite:///{tmp_path}/back.db"
    service = ServiceProcess(
        directory=tmp_path,
        environment={"ITL_ENROLLMENT_CA_UNENCRYPTED": "true", "ITL_AUDIT_CHECKPOINT_ENTRIES": "1"},
    )
    service.start()
    try:
        http = httpx.Client(base_url=service.url, timeout=60)
        machine, operator = Machine(SoftwareNode(1), http), service.operator()
        machine.admitted(operator)
        told = operator.audit()
        for old, new in ((first, empty), (empty, last)):
            # 1. While it serves, nothing is copied; neither is anything into a database in use.
            refused = command(service, "db", "copy", "--from", old, "--to", new)
            assert (refused.returncode, refused.stdout) == (1, "")
            assert "stop the service" in refused.stderr
            service.stop()
            done = command(service, "db", "copy", "--from", old, "--to", new)
            assert done.returncode == 0, done.stderr
            assert "copied machines: 1 rows\n" in done.stderr
            assert "no service starts with it any more" in done.stdout
            # 2. Who was left is not started again, and is not copied again.
            for words in (
                ("--prepare",),
                ("db", "copy", "--from", old, "--to", f"sqlite:///{tmp_path}/x.db"),
            ):
                left = command(service, *words, ITL_DB_URL=old)
                assert left.returncode == 1
                assert "was copied to" in left.stderr
            assert not (tmp_path / "x.db").exists()
            # 3. What is there is not copied over.
            full = command(service, "db", "copy", "--from", f"sqlite:///{tmp_path}/y.db", "--to", new)
            assert "there is no database at" in full.stderr
            # 4. The keys know the new one.
            service.environment = {**service.environment, "ITL_DB_URL": new}
            service.start()
            machine.next_challenge = None
            assert machine.attest()["status"] == "attested"
            now = operator.audit()
            assert now[-len(told) :] == told
            assert operator.audit_is_valid()
            told = now
        http.close()
        operator.http.close()
    finally:
        service.kill()
    # Only who says so goes on with what was left, under another name.
    back = {"ITL_DB_URL": empty, "ITL_AUDIT_ORIGIN": "taken/2"}
    taken = command(service, "--accept-restored-database", **back)
    assert taken.returncode == 0, taken.stderr
    assert command(service, "--prepare", **back).returncode == 0
    assert "checkpoint_refused" not in service.log()
    assert "Traceback" not in service.log()


def test_a_target_that_cannot_be_is_told_in_words(tmp_path: Path, empty: str) -> None:
    """The source itself, which has the lock of who writes; a server that is away."""
    service = ServiceProcess(
        directory=tmp_path, environment={"ITL_ENROLLMENT_CA_UNENCRYPTED": "true", "ITL_DB_URL": empty}
    )
    assert command(service, "--prepare").returncode == 0
    itself = command(service, "db", "copy", "--to", empty)
    assert (itself.returncode, "is not empty" in itself.stderr) == (1, True)
    away = command(service, "db", "copy", "--to", "postgresql+psycopg://itl@127.0.0.1:1/itl")
    assert away.returncode == 1
    assert "no server of PostgreSQL answers for the database itl at 127.0.0.1" in away.stderr
    assert "Traceback" not in away.stderr
