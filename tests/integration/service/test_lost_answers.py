"""Lost answers, met by the real client at a real service of two workers: killed, locked, given up (docs/adr/0070)."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import psycopg
import pytest

from attestation.api import AllowListEntry, AllowListImport, RegistrationTokenRequest
from attestation.client import OperatorClient
from attestation.client.acts import Acts
from attestation.errors import AnswerNotKept, StoreBusy
from attestation.machines import Role
from attestation.store.postgres import WRITE_LOCK
from tests.fixtures.both import new_database
from tests.fixtures.postgres import libpq_url
from tests.fixtures.service import Operator, ServiceProcess, StartService, operator, start_service

__all__ = ["new_database", "operator", "start_service"]

DYING = """\
import os, pathlib, signal
from attestation_service.operators import acts

write = acts.Doing.write


async def dying(self, store, work, clock):
    value = await write(self, store, work, clock)
    if self._written and (trap := pathlib.Path({trap!r})).exists():
        trap.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return value


acts.Doing.write = dying
"""
"""Kills the worker when an act is committed and not yet answered, where somebody set the trap."""


@pytest.fixture(scope="module")
def trap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file that arms it."""
    folder = tmp_path_factory.mktemp("dying")
    (folder / "sitecustomize.py").write_text(DYING.format(trap=str(folder / "trap")))
    return folder / "trap"


@pytest.fixture(scope="module")
def service(start_service: StartService, trap: Path) -> ServiceProcess:
    """A service of two workers."""
    return start_service(workers=2, PYTHONPATH=str(trap.parent))


@contextmanager
def client(
    service: ServiceProcess, on_lost: Callable[[], object] = lambda: None
) -> Iterator[tuple[OperatorClient, list[Exception]]]:
    """Yield the client of an operator, and what it lost."""
    lost: list[Exception] = []

    def note(error: Exception) -> None:
        lost.append(error)
        on_lost()

    with OperatorClient(service.url, service.admin_token, acts=Acts(on_lost=note)) as found:
        yield found, lost


@contextmanager
def locked(service: ServiceProcess) -> Iterator[Callable[[], object]]:
    """Let another program keep the database locked; yield what ends that before."""
    if service.server_url:
        with psycopg.connect(libpq_url(service.server_url)) as session:
            session.execute(f"SELECT pg_advisory_xact_lock({WRITE_LOCK})")
            yield session.rollback
        return
    with closing(sqlite3.connect(service.database, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other.rollback


def until(holds: Callable[[], bool]) -> None:
    """Wait until *holds*."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def noticed(service: ServiceProcess) -> bool:
    """Return True where the service has closed each connection that its client closed."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return (f"{service.port:04X}", CLOSE_WAIT) not in {(line[1][-4:], line[3]) for line in lines}


CLOSE_WAIT = "08"
"""In `proc_pid_net(5)`: the other side has closed, this one not yet."""


def an_entry(number: int) -> AllowListImport:
    """Return an EK that is admitted in advance."""
    return AllowListImport(entries=[AllowListEntry(ek_fingerprint=f"{number:096x}", role=Role.WORKER_APP)])


def imports(operator: Operator, number: int) -> int:
    """Return how often the EK was imported."""
    found = operator.audit(action="allow_list_import")
    return sum(f"{number:096x}" in entry["detail"] for entry in found)


@pytest.mark.threat("T169")
def test_killed_between_commit_and_answer(service: ServiceProcess, operator: Operator, trap: Path) -> None:
    """The worker dies with the answer. The client asks another one, and has the first answer: done once."""
    trap.touch()
    with client(service) as (asking, lost):
        answer = asking.import_allow_list(an_entry(1))
    assert not trap.exists()
    assert (len(lost), answer.model_dump()) == (1, {"added": 1, "replaced": 0})
    assert imports(operator, 1) == 1


def test_a_secret_dies_with_the_worker(service: ServiceProcess, operator: Operator, trap: Path) -> None:
    """Of a token the client learns that it was made, and which: the secret is nowhere."""
    trap.touch()
    wanted = RegistrationTokenRequest(role=Role.WORKER_APP, uses=1, expires_in_seconds=600)
    with client(service) as (asking, _), pytest.raises(AnswerNotKept) as caught:
        asking.create_registration_token(wanted)
    (made,) = operator.pages("/registration-tokens")
    assert made["token_id"] in str(caught.value)
    assert len(operator.audit(action="token_issued")) == 1


def test_a_lock_that_ends(
    service: ServiceProcess, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gives up on an answer while the database is locked, asks, and gets it: done once."""
    monkeypatch.setattr("attestation.client.plain.READ_SECONDS", 1.0)
    with locked(service) as unlock, client(service, unlock) as (asking, lost):
        answer = asking.import_allow_list(an_entry(2))
    assert (len(lost), answer.model_dump()) == (1, {"added": 1, "replaced": 0})
    assert imports(operator, 2) == 1


@pytest.mark.threat("T169")
def test_who_gave_up_gets_nothing_done(service: ServiceProcess, operator: Operator) -> None:
    """A caller without a key leaves while the database is locked: their act does not happen later."""
    body = an_entry(3).model_dump(mode="json", exclude_none=True)
    with locked(service):
        with httpx.Client(timeout=0.5) as http, pytest.raises(httpx.ReadTimeout):
            http.post(
                f"{service.url}/api/v1/allow-list",
                json=body,
                headers={"Authorization": f"Bearer {service.admin_token}"},
            )
        until(lambda: noticed(service))
    until(lambda: '"deadline-exceeded"' in service.log())
    assert imports(operator, 3) == 0


def test_a_lock_that_lasts(service: ServiceProcess, operator: Operator) -> None:
    """The service says that its database is locked, before the client gives up; nothing happens later."""
    said = "another program has kept the database locked for 5 s"
    with locked(service), client(service) as (asking, lost), pytest.raises(StoreBusy, match=said):
        asking.import_allow_list(an_entry(4))
    assert lost == []
    assert imports(operator, 4) == 0
