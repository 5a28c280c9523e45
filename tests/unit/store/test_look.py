"""A database is looked at without a trace: no byte of it changes, no file appears beside it."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest

from attestation.errors import StoreUnavailable
from attestation.store import migrate, open_store
from attestation.store.look import look_at
from attestation.store.migrate import HEAD

LEFT = """
import os, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA wal_autocheckpoint=0")
db.execute("CREATE TABLE left_behind (a)")
sys.stdout.write("ready\\n"); sys.stdout.flush()
if sys.argv[2] == "waits":
    sys.stdin.read()
os._exit(0)
"""


def traces(folder: Path) -> dict[str, tuple[int, str]]:
    """Return name, instant of the last change and digest of each file."""
    return {
        path.name: (path.stat().st_mtime_ns, sha256(path.read_bytes()).hexdigest())
        for path in folder.iterdir()
    }


@pytest.mark.threat("T175")
@pytest.mark.parametrize("how", ["closed", "in use", "left by a crash"])
def test_it_is_read_and_left_as_it_was(tmp_path: Path, how: str) -> None:
    """Closed, while a service has it open, or as a crash left it; what is only in the write-ahead log is seen."""
    path = tmp_path / "m.db"
    migrate(f"sqlite:///{path}")
    somebody = None
    if how != "closed":
        somebody = subprocess.Popen(
            [sys.executable, "-c", LEFT, str(path), "waits" if how == "in use" else "dies"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert somebody.stdout is not None
        assert somebody.stdout.readline() == b"ready\n"
        if how != "in use":
            somebody.wait(60)
    before = traces(tmp_path)
    assert (len(before) > 2) is (
        how != "closed"
    )  # the database and the lock of its migration; then WAL and index
    with look_at(path) as found:
        assert found.revision == HEAD
        assert ("left_behind" in found.tables) is (how != "closed")
        assert found.tx.audit.tree.size() == 0
        assert found.whole
    assert traces(tmp_path) == before
    if somebody is not None:
        somebody.communicate(timeout=240)


def test_a_copy_without_its_index_is_told(tmp_path: Path) -> None:
    """`cp` of a database with its log, but without what SQLite reads it by: what is there is not all."""
    path = tmp_path / "m.db"
    migrate(f"sqlite:///{path}")
    path.with_name("m.db-wal").write_bytes(b"x")
    with look_at(path) as found:
        assert not found.whole
    assert not path.with_name("m.db-shm").exists()


def test_it_cannot_write_even_if_asked(tmp_path: Path) -> None:
    """A unit that changes something fails."""
    path = tmp_path / "m.db"
    migrate(f"sqlite:///{path}")
    open_store(f"sqlite:///{path}").close()
    with pytest.raises(StoreUnavailable, match="cannot be written"), look_at(path) as found:
        found.tx.identity.bind(datetime(2026, 11, 22, tzinfo=UTC))
    with look_at(path) as found:
        identity = found.tx.identity.get()
        assert identity is not None
        assert identity.bound_at is None
