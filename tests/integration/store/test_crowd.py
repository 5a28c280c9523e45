"""What the benches write in bulk is what the service would have written: the log follows from its hashes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from attestation.audit import AuditEvent
from attestation.audit.merkle import root
from attestation.store import migrate, open_store
from attestation_service.transparency.walk import Walk, page
from tests.bench import crowd

ENTRIES = 1_100
"""More than four tiles, and some of a fifth."""


def test_entries_written_in_bulk_verify(tmp_path: Path) -> None:
    """Chain, leaves and tiles, behind an entry that the store wrote; the table refuses changes as before."""
    path = tmp_path / "machines.db"
    url = f"sqlite:///{path}"
    migrate(url)
    at = datetime.now(UTC)
    with closing(open_store(url)) as store:
        store.write_sync(lambda tx: tx.audit.append(AuditEvent(operator_cn="alice", action="lock"), at))
    crowd.lengthen(path, ENTRIES, at)
    with closing(open_store(url)) as store:
        # What is appended now stands behind the last of them.
        store.write_sync(lambda tx: tx.audit.append(AuditEvent(operator_cn="alice", action="unlock"), at))
        walk = Walk()
        while (found := store.read_sync(lambda tx: page(tx, walk.size))).entries:
            walk.feed(found)
        assert walk.size == ENTRIES + 1
        assert store.read_sync(lambda tx: root(tx.audit.tree, ENTRIES + 1)) == walk.root()
    with closing(sqlite3.connect(path)) as file:
        for refused in ("UPDATE audit_log SET action = 'x'", "DELETE FROM audit_nodes"):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                file.execute(refused)
