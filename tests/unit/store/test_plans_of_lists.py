"""Lists that pages of the dashboard show are found by an index of SQLite, which has counted nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attestation.store import AuditFilter, MachineFilter, Tx, migrate, open_store
from attestation.store.sql import Executor, Prepared
from tests.contract.store_samples import by_hand


@pytest.mark.parametrize(
    ("ask", "plan"),
    [
        pytest.param(
            lambda tx: tx.machines.page(MachineFilter(ids=["a", "b", "c"]), None, 50),
            "SEARCH machines USING INDEX sqlite_autoindex_machines_1 (machine_id=? AND rowid<?)",
            id="machines by id",
        ),
        pytest.param(
            lambda tx: tx.audit.page(None, 50, AuditFilter(machine_id="a", action="b", operator_cn="c")),
            "ix_audit_log_machine_id_id (machine_id=?",
            id="entries of a machine",
        ),
        pytest.param(
            lambda tx: tx.audit.page(None, 50, AuditFilter(machine_id="a", action="b", text="c")),
            "ix_audit_log_machine_id_id (machine_id=?",
            id="a text in entries of a machine",
        ),
    ],
)
def test_a_list_begins_where_there_is_least(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Tx], Any], plan: str
) -> None:
    """However many machines, certificates and entries there are, a page reads about its own rows."""
    url = f"sqlite:///{tmp_path}/machines.db"
    migrate(url)
    store = open_store(url)
    ran: list[str] = []
    execute = Executor._execute

    def recording(self: Executor, statement: Prepared, values: Any) -> Any:
        ran.append(statement.compiled(self._dialect).text)
        return execute(self, statement, values)

    monkeypatch.setattr(Executor, "_execute", recording)
    store.read_sync(ask)
    store.close()
    asked = [text for text in ran if "\nWHERE" in text]
    assert asked
    for text in asked:
        found = [row[-1] for row in by_hand(url, f"EXPLAIN QUERY PLAN {text.replace('?', 'NULL')}")]
        assert any(plan in step for step in found), found
