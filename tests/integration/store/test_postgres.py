"""When PostgreSQL goes away, comes back, is slow, or says no: nothing is done twice, all that is answered is stored."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import psycopg
import pytest
from psycopg import errors

from attestation.errors import MachineUnknown, StoreBusy, StoreUnavailable
from attestation.store import Store, StoreSettings, open_store, postgres
from attestation.store.queues import Unit
from tests.contract.store_samples import a_challenge, a_machine, by_hand
from tests.fixtures.postgres import Server

SETTINGS = StoreSettings(busy_timeout_seconds=0.3)


@pytest.fixture
def url(postgres_server: Server) -> Iterator[str]:
    """The URL of an empty migrated database."""
    yield postgres_server.create("failing", template="empty")
    postgres_server.drop("failing")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """An open store that does not wait long."""
    opened = open_store(url, SETTINGS)
    yield opened
    opened.close()


def pending(store: Store) -> int:
    """Return how many machines are stored."""
    return store.read_sync(lambda tx: tx.machines.pending().rows)


def add(store: Store, number: int) -> None:
    """Store a machine."""
    store.write_sync(lambda tx: tx.machines.add(a_machine(number)))


def test_a_server_that_returns_is_used_again(store: Store, postgres_server: Server) -> None:
    """While it is away everybody learns that at once; afterwards nobody has to do anything."""
    add(store, 1)
    postgres_server.stop()
    try:
        started = time.monotonic()
        for use in (lambda: add(store, 2), lambda: pending(store)):
            with pytest.raises(StoreUnavailable, match="does not answer"):
                use()
        assert time.monotonic() - started < 5
    finally:
        postgres_server.start()
    add(store, 3)
    assert pending(store) == 2


def test_a_restart_in_between_is_not_noticed(store: Store, postgres_server: Server) -> None:
    """What waits is run on new connections."""
    add(store, 1)
    postgres_server.stop()
    postgres_server.start()
    assert pending(store) == 1
    add(store, 2)
    assert pending(store) == 2


def test_a_server_that_crashes_loses_nothing_acknowledged(store: Store, postgres_server: Server) -> None:
    """Also where it is set to answer before it wrote, as this one is."""
    for number in range(1, 20):
        store.write_sync(lambda tx, n=number: tx.challenges.issue(a_challenge(n)))  # type: ignore[misc]
    postgres_server.stop(signal.SIGQUIT)  # an immediate shutdown, as after a crash
    postgres_server.start()
    found = store.read_sync(lambda tx: [tx.challenges.get(a_challenge(n).challenge_id) for n in range(1, 20)])
    assert None not in found


def test_who_keeps_the_lock_is_waited_for_and_then_given_up(store: Store, url: str) -> None:
    """By the busy timeout, not for ever; reads go on, and the next write does."""
    with psycopg.connect(url) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", (postgres.WRITE_LOCK,))
        started = time.monotonic()
        with pytest.raises(StoreBusy):
            add(store, 1)
        assert time.monotonic() - started >= 0.3
        assert pending(store) == 0
    add(store, 1)
    assert pending(store) == 1


def test_who_stops_with_the_lock_loses_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server takes it away; the one who stopped begins anew, so its unit is done once."""
    monkeypatch.setattr(postgres, "_STALLED_SECONDS", 0.2)
    slow, quick = open_store(url, SETTINGS), open_store(url, StoreSettings(busy_timeout_seconds=30))
    began, runs = threading.Event(), []

    def stall(tx: Any) -> None:
        tx.machines.add(a_machine(1))
        began.set()
        runs.append(1)
        if len(runs) == 1:
            time.sleep(1)

    thread = threading.Thread(target=slow.write_sync, args=(stall,))
    thread.start()
    began.wait(30)
    started = time.monotonic()
    add(quick, 2)
    assert time.monotonic() - started < 0.9
    thread.join()
    assert len(runs) == 2
    assert pending(quick) == 2
    for store in (slow, quick):
        store.close()


class Losing(postgres._Writer):
    """A writer that loses its connection at its first COMMIT: before it reaches the server, or after."""

    before = True
    back = True
    lost = 0

    def _execute(self, statements: str) -> None:
        if statements != "COMMIT" or type(self).lost:
            super()._execute(statements)
            return
        type(self).lost += 1
        if not self.before:
            super()._execute(statements)
        if not self.back:
            self._url = "postgresql://itl@/nowhere?host=/nowhere"
        self._connection.close()
        raise errors.OperationalError("lost")


@pytest.mark.threat("T27")
@pytest.mark.parametrize("before", [True, False])
def test_a_lost_answer_is_asked_for(url: str, before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was committed is not done again, what was not is; the caller learns that it is stored."""
    monkeypatch.setattr(postgres, "_Writer", type("Losing", (Losing,), {"before": before}))
    store = open_store(url, SETTINGS)
    runs = []

    def work(tx: Any) -> str:
        runs.append(1)
        tx.machines.add(a_machine())
        return "done"

    assert store.write_sync(work) == "done"
    assert len(runs) == (2 if before else 1)
    assert pending(store) == 1
    store.close()


def test_a_lost_answer_that_nobody_knows_is_told_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is repeated blindly: it may have been done."""
    monkeypatch.setattr(postgres, "_Writer", type("Losing", (Losing,), {"before": False, "back": False}))
    store = open_store(url, SETTINGS)
    runs: list[int] = []

    def work(tx: Any) -> None:
        runs.append(1)
        tx.machines.add(a_machine())

    with pytest.raises(StoreUnavailable, match="is not known"):
        store.write_sync(work)
    assert len(runs) == 1
    assert pending(store) == 1
    store.close()


@pytest.mark.threat("T27")
@pytest.mark.parametrize("whole", [True, False])
def test_a_number_that_was_given_away_again_proves_nothing(
    url: str, postgres_server: Server, whole: bool
) -> None:
    """A server that crashed, or one session of it, forgets what was not written: then another has the number."""
    writer = postgres._Writer(url, SETTINGS)
    number = writer._begin()
    writer._tx.challenges.issue(a_challenge())
    if whole:
        postgres_server.stop(signal.SIGQUIT)
        postgres_server.start()
    else:
        os.kill(writer._connection.info.backend_pid, signal.SIGKILL)
    last = 0
    while last < int(number):
        with contextlib.suppress(psycopg.OperationalError):  # it recovers
            last = by_hand(url, "SELECT pg_current_xact_id()::text::bigint")[0][0]
    writer._connection.close()
    with pytest.raises(StoreUnavailable, match="is not known"):
        writer._was_committed(number)
    writer.close()


def test_a_number_that_the_server_never_heard_of_was_not_committed(url: str) -> None:
    """It crashed, and lost what it had not written."""
    writer = postgres._Writer(url, SETTINGS)
    writer._connection.close()
    assert not writer._was_committed(str((1 << 40) + 5))
    writer.close()


@pytest.mark.parametrize("conflict", [errors.DeadlockDetected, errors.SerializationFailure])
def test_a_conflict_with_a_stranger_is_repeated(store: Store, conflict: type[psycopg.Error]) -> None:
    """Twice; after the third the caller learns that nothing was stored."""
    runs: list[int] = []

    def work(tx: Any, times: int) -> None:
        runs.append(1)
        tx.machines.add(a_machine(times))
        if len(runs) <= times:
            raise conflict

    store.write_sync(lambda tx: work(tx, 2))
    assert len(runs) == 3
    runs.clear()
    with pytest.raises(StoreUnavailable):
        store.write_sync(lambda tx: work(tx, 3))
    assert len(runs) == 3
    assert pending(store) == 1


def test_a_unit_that_passes_over_a_failed_statement_fails(store: Store) -> None:
    """PostgreSQL has ended the transaction: what the unit did is not stored, and nobody is told that it is."""

    def work(tx: Any) -> None:
        for _ in range(2):
            with contextlib.suppress(psycopg.Error):
                tx.challenges.issue(a_challenge())

    for use in (store.write_sync, store.read_sync):
        with pytest.raises(StoreUnavailable, match="went on"):
            use(work)
    assert store.read_sync(lambda tx: tx.challenges.get(a_challenge().challenge_id)) is None


def test_what_a_read_raises_leaves_the_others_theirs(url: str) -> None:
    """Those that are answered with it, also where a statement failed."""

    def none(tx: Any) -> None:
        tx.machines.require("nobody")

    def written(tx: Any) -> None:
        tx.machines.add(a_machine())

    group = [Unit(work, Future(), None) for work in (none, written, lambda tx: tx.machines.pending().rows)]
    reader = postgres._Reader(url, SETTINGS)
    reader.serve(group)
    assert [type(unit.error) for unit in group] == [MachineUnknown, StoreUnavailable, type(None)]
    assert group[2].value == 0
    reader.close()


def test_a_database_without_tables_is_unavailable(postgres_server: Server) -> None:
    """A store that was not migrated says so at the first use, and fails nobody else."""
    store = open_store(postgres_server.create("bare"), SETTINGS)
    for use in (store.read_sync, store.write_sync):
        with pytest.raises(StoreUnavailable):
            use(lambda tx: tx.machines.pending().rows)
        assert use(lambda tx: 1) == 1
    store.close()
    postgres_server.drop("bare")


def test_who_may_not_come_in_learns_no_password(postgres_server: Server) -> None:
    """Neither from a server nor from a URL that is none."""
    for wrong in (
        f"postgresql://itl:hunter2@/absent?host={postgres_server.folder}",
        "postgresql://itl:hunter2@[::1]:1/absent",
        "postgresql://itl:hunter2@host:port/absent",
        "postgresql://itl:hunter2@host",
        "postgresql://itl:hunter2@/x?sslmode=hunter3",
    ):
        with pytest.raises((StoreUnavailable, ValueError)) as refused:
            open_store(wrong)
        assert not re.search("hunter2", f"{refused.value!r} {refused.value.__cause__!r}")


def test_what_a_failed_statement_quotes_is_not_told(store: Store, url: str) -> None:
    """Only the first line of what the database says: the others quote rows."""
    by_hand(url, "ALTER TABLE challenges ADD CONSTRAINT c EXCLUDE (nonce WITH =)")
    store.write_sync(lambda tx: tx.challenges.issue(a_challenge(1)))
    with pytest.raises(Exception, match="c") as refused:
        store.write_sync(lambda tx: tx.challenges.issue(a_challenge(2, nonce=a_challenge(1).nonce)))
    assert a_challenge(1).nonce.hex() not in str(refused.value)  # type: ignore[union-attr]
