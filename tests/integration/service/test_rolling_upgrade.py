"""Old and new version on one database: services of today, and a version of tomorrow that upgrades it under them."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from attestation.store import migrate
from attestation.store.migrate import HEAD
from attestation_service.process.supervisor import STARTUP_FAILED, UNUSABLE
from attestation_testing import SoftwareNode
from tests.fixtures.machine import Machine
from tests.fixtures.newer import after, newer_code
from tests.fixtures.service import ServiceProcess
from tests.fixtures.stores import BACKENDS, on_server
from tests.unit.store.test_rolling_upgrade import CONTRACTS, EXPANDS, revision
from tools.ports import free_port

QUICK = {"ITL_MAINTENANCE_SECONDS": "0.2", "ITL_SERVICE_URL": "http://127.0.0.1:8080"}


@pytest.fixture(params=BACKENDS)
def server_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """URL of a database on a server; empty for a file."""
    if request.param == "sqlite":
        yield ""
        return
    with on_server(request.getfixturevalue("postgres_server")) as make:
        yield make()


def until(holds: Callable[[], bool]) -> None:
    """Wait until *holds*."""
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def told(service: ServiceProcess, event: str) -> list[dict[str, str]]:
    """Return the lines of its log with *event*."""
    lines = [json.loads(line) for line in service.log_file.read_text().splitlines()]
    return [line for line in lines if line["event"] == event]


def attest(machine: Machine, service: ServiceProcess) -> None:
    """Let it attest there, with the challenge that it got from whomever."""
    with httpx.Client(base_url=service.url, timeout=60) as http:
        machine.http = http
        assert machine.attest()["status"] == "attested"


def test_a_database_is_upgraded_under_services_that_serve(tmp_path: Path, server_url: str) -> None:
    """What expands: they attest, one starts again, they attest. What contracts: both end, and say why."""
    one = ServiceProcess(directory=tmp_path, environment=QUICK, server_url=server_url)
    two = replace(one, port=free_port(), workers=2)
    try:
        one.start()
        two.start()
        with httpx.Client(base_url=one.url, timeout=60) as http:
            machine = Machine(SoftwareNode(1), http)
            machine.activate(machine.activation(machine.introduce().json()))
            operator = one.operator()
            operator.approve(machine.machine_id)
            operator.http.close()
        attest(machine, one)
        attest(machine, two)
        with newer_code((EXPANDS, None)) as newer:
            migrate(one.db_url)
        attest(machine, one)
        attest(machine, two)
        one.stop()
        one.start()
        (warned,) = told(one, "database.newer")
        assert (warned["revision"], warned["ours"]) == (newer, HEAD)
        attest(machine, one)
        attest(machine, two)
        assert revision(one.db_url) == newer
        with newer_code((EXPANDS, None), (CONTRACTS, after(HEAD))) as newest:
            migrate(one.db_url)
        for each, code in ((one, UNUSABLE), (two, STARTUP_FAILED)):
            assert each._process is not None
            assert each._process.wait(120) == code
        reasons = [line["reason"] for line in told(one, "service.unusable")]
        assert sum("no longer serves this version" in reason for reason in reasons) >= 2
        one.start(ready=False)
        assert one._process is not None
        assert one._process.wait(120) == 1
        last = told(one, "service.unusable")[-1]["reason"]
        assert f"revision {newest}, which this version does not know" in last
        assert revision(one.db_url) == newest
    finally:
        one.kill()
        two.kill()


SLOW = """
import sys, time
from attestation.store import migrate
from tests.fixtures.newer import newer_code

body = '''op.create_table("half", sa.Column("id", sa.Text()))
    print("there", flush=True)
    __import__("time").sleep(600)'''
with newer_code((body, None)):
    migrate(sys.argv[1])
"""


def test_a_migration_that_is_ended_leaves_nothing(store_url: str) -> None:
    """SIGTERM in the middle of a revision: the database is where it was, and the next start upgrades it."""
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, store_url], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM
    assert revision(store_url) == HEAD
    assert migrate(store_url) is None
    with newer_code(('op.create_table("half", sa.Column("id", sa.Text()))', None)) as newer:
        migrate(store_url)
    assert revision(store_url) == newer


def test_who_starts_several_workers_ends_with_whom_it_asked_to_prepare(tmp_path: Path) -> None:
    """Here while that one waits for a database that somebody locked: nobody stays behind."""
    service = ServiceProcess(directory=tmp_path, workers=2)
    service.start()
    service.stop()
    other = sqlite3.connect(service.database, isolation_level=None)
    other.execute("UPDATE alembic_version SET version_num = '0027'")
    other.execute("DROP TABLE schema_support")
    other.execute("BEGIN IMMEDIATE")
    service.start(ready=False)
    try:
        until(lambda: len(service.worker_pids()) == 1 and waits(service.worker_pids()[0], service.database))
        (helper,) = service.worker_pids()
        assert service.stop() == -signal.SIGTERM
        until(lambda: not Path(f"/proc/{helper}/exe").exists())
    finally:
        service.kill()
        other.close()


def waits(pid: int, database: Path) -> bool:
    """Return True if process *pid* has the database open."""
    return any(each.exists() and each.resolve() == database for each in Path(f"/proc/{pid}/fd").iterdir())
