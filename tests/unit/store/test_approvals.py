"""The table of votes: what the database itself refuses."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from attestation.machines import Role, Transition
from attestation.machines.dual_control import Vote, of_machine
from attestation.store import Store, StoreSettings, migrate
from attestation.store.sqlite import connect
from tests.contract.store_samples import (
    MINUTE,
    NOW,
    a_full_machine,
)

PROPOSAL = of_machine(
    Transition.UNLOCK,
    a_full_machine(1),
    role=Role.CONTROLPLANE,
    hostname="cp-1",
    assigned_ip=None,
    cluster_id="default",
    measured=None,
)
ROW = {
    "proposal_digest": "'" + "ab" * 32 + "'",
    "action": "'unlock'",
    "machine_id": "NULL",
    "subject": "'s'",
    "operator_cn": "'anna'",
    "operator_sub": "'iss#anna'",
    "role": "NULL",
    "hostname": "NULL",
    "assigned_ip": "NULL",
    "proposal": "'{}'",
    "created_at": "1",
    "expires_at": "2",
    "consumed_at": "NULL",
    "withdrawn_at": "NULL",
    "lapsed_at": "NULL",
}


def insert(**changed: str) -> str:
    """Return SQL that stores a vote, past every rule of ours."""
    row = ROW | changed
    return f"INSERT INTO approvals ({', '.join(row)}) VALUES ({', '.join(row.values())})"


def vote(store: Store) -> int | None:
    """Cast a vote."""
    cast = Vote(operator_cn="anna", operator_sub="iss#anna", created_at=NOW, expires_at=NOW + MINUTE)
    return store.write_sync(lambda tx: tx.approvals.cast(PROPOSAL, cast))


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        (insert(), "UNIQUE constraint failed: approvals.proposal_digest, approvals.operator_sub"),
        (insert(operator_cn="'anna2'", expires_at="999"), "UNIQUE constraint failed"),
        (insert(operator_sub="NULL"), "NOT NULL"),
        (insert(operator_sub="''"), "ck_approvals_operator_sub"),
        (insert(proposal_digest="'ab'"), "ck_approvals_proposal_digest"),
        (insert(role="'king'"), "ck_approvals_role"),
        (insert(consumed_at="1", withdrawn_at="1"), "ck_approvals_ended_once"),
    ],
)
def test_the_database_refuses(tmp_path: Path, sql: str, why: str) -> None:
    """A second open vote of one operator, whatever code tries it; a vote of nobody; one that ended twice."""
    path = tmp_path / "store.db"
    migrate(f"sqlite:///{path}")
    with closing(connect(path, StoreSettings())) as db:
        db.execute(insert())
        with pytest.raises(sqlite3.IntegrityError, match=why):
            db.execute(sql)
        for ended in ("consumed_at", "withdrawn_at", "lapsed_at"):
            db.execute(insert(**{ended: "1"}))
