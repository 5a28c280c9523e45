"""When the database fails: groups are repeated, then refused; nothing is answered that is not stored."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from attestation.errors import StoreBusy, StoreUnavailable
from attestation.store import MachineFilter, StoreSettings, migrate, open_store, sqlite
from attestation.store.queues import Queue, Unit
from tests.contract.store_samples import a_machine

SETTINGS = StoreSettings(busy_timeout_seconds=0.2, commit_attempts=3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An empty migrated database file."""
    migrate(f"sqlite:///{tmp_path}/store.db")
    return tmp_path / "store.db"


class FailingCommits:
    """A cursor whose first COMMITs fail before they reach the database."""

    def __init__(self, cursor: sqlite3.Cursor, failures: int) -> None:
        self._cursor = cursor
        self.failures = failures

    def execute(self, sql: str, *parameters: Any) -> Any:
        """Run *sql*, or fail."""
        if sql == "COMMIT" and self.failures:
            self.failures -= 1
            raise sqlite3.OperationalError("disk I/O error")
        return self._cursor.execute(sql, *parameters)


@pytest.mark.parametrize(("failures", "stored"), [(2, 1), (3, 0)])
def test_a_group_is_repeated_and_then_refused(
    path: Path, failures: int, stored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two failed commits are repeated; after the third the caller learns that nothing was stored."""

    class Failing(sqlite._Writer):
        def __init__(self, *parts: Any) -> None:
            super().__init__(*parts)
            self._cursor = FailingCommits(self._cursor, failures)  # type: ignore[assignment]

    monkeypatch.setattr(sqlite, "_Writer", Failing)
    store = open_store(f"sqlite:///{path}", SETTINGS)
    runs = []

    def work(tx: Any) -> str:
        runs.append(1)
        tx.machines.add(a_machine())
        return "done"

    if stored:
        assert store.write_sync(work) == "done"
    else:
        with pytest.raises(StoreUnavailable):
            store.write_sync(work)
    assert len(runs) == 3
    assert len(store.read_sync(lambda tx: tx.machines.page(MachineFilter(), None, 9)).items) == stored
    assert store.write_sync(lambda tx: tx.machines.pending().rows) == stored
    store.close()


def test_a_writer_that_holds_the_lock_is_waited_for_and_then_given_up(path: Path) -> None:
    """Another process in its transaction delays us by the busy timeout, not for ever; reads go on."""
    store = open_store(f"sqlite:///{path}", SETTINGS)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        with pytest.raises(StoreBusy):
            store.write_sync(lambda tx: None)
        assert time.monotonic() - started >= 0.2
        assert store.read_sync(lambda tx: tx.machines.pending().rows) == 0
        other.execute("ROLLBACK")
    store.write_sync(lambda tx: tx.machines.add(a_machine()))
    store.close()


def test_a_database_without_tables_is_unavailable(tmp_path: Path) -> None:
    """A store that was not migrated says so at the first use, and fails nobody else."""
    store = open_store(f"sqlite:///{tmp_path}/empty.db", SETTINGS)
    for use in (store.read_sync, store.write_sync):
        with pytest.raises(StoreUnavailable):
            use(lambda tx: tx.machines.pending().rows)
        assert use(lambda tx: 1) == 1
    store.close()


def test_a_worker_that_raises_refuses_its_group_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    """It must not; but a thread that ended would leave everybody who comes waiting for ever."""

    class Broken:
        def serve(self, group: list[Unit]) -> None:
            raise LookupError("a fault of ours")

        def close(self) -> None:
            """Nothing is open."""

    queue = Queue("broken", [Broken()], SETTINGS)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            queue.ask_sync(lambda _: None)
    queue.close()
    assert "LookupError: a fault of ours" in capsys.readouterr().err
