"""The table of votes: what the database itself refuses, and how a database of the first schema gets it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from attestation.machines import Role, Transition
from attestation.machines.dual_control import Vote, of_machine
from attestation.store import Store, StoreSettings, migrate, open_store
from attestation.store.sqlite import connect
from tests.contract.store_samples import (
    MINUTE,
    NOW,
    a_config_token,
    a_full_machine,
    a_machine,
    a_registration_token,
    an_allow_list_row,
)
from tests.unit.store.test_migrate import database_at_0001, log_of

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


@pytest.mark.parametrize("entries", [0, 300])
def test_a_database_of_the_first_schema_gets_votes(tmp_path: Path, entries: int) -> None:
    """Machines, tokens and the allow-list are as they were; votes can be cast at once."""
    path = tmp_path / "old.db"
    database_at_0001(path, list(enumerate(log_of(entries), start=1)))
    # Today's code writes today's columns: what the old schema has of them is copied.
    migrate(f"sqlite:///{tmp_path}/today.db")
    old = open_store(f"sqlite:///{tmp_path}/today.db")
    old.write_sync(lambda tx: tx.machines.add(a_full_machine(1)))
    old.write_sync(lambda tx: tx.machines.add(a_machine(2)))
    old.write_sync(lambda tx: tx.registration_tokens.add(a_registration_token()))
    old.write_sync(lambda tx: tx.config_tokens.issue(a_config_token(machine_id=a_machine(2).machine_id)))
    old.write_sync(lambda tx: tx.allow_list.put(an_allow_list_row()))
    old.close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("ATTACH ? AS today", (f"{tmp_path}/today.db",))
        columns = {name: [row[1] for row in db.execute(f"PRAGMA main.table_info({name})")] for name in TABLES}
        for name in set(TABLES) - {"audit_log"}:
            listed = ", ".join(columns[name])
            # What today has no column for any more was no.
            copied = listed.replace("redeliver", "0")
            db.execute(f"INSERT INTO main.{name} ({listed}) SELECT {copied} FROM today.{name}")
        db.commit()
        columns["machines"].remove("redeliver")
        read = {name: f"SELECT {', '.join(columns[name])} FROM main.{name}" for name in TABLES}
        before = {name: db.execute(sql).fetchall() for name, sql in read.items()}
        # Who waits has only its own word for its cluster; who was admitted was seen there by an operator.
        db.execute("UPDATE main.machines SET cluster_id = 'lab' WHERE id = 2")
        db.commit()
        assert before["machines"][0][5] == "cluster-x"
    migrate(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT cluster_id, desired_cluster_id FROM machines ORDER BY id").fetchall() == [
            ("cluster-x", "cluster-x"),
            ("default", "lab"),
        ]
        assert {name: db.execute(sql).fetchall() for name, sql in read.items()} == before
    store = open_store(f"sqlite:///{path}")
    assert store.read_sync(lambda tx: tx.machines.by_id(a_machine(2).machine_id)) == a_machine(
        2, desired_cluster_id="lab"
    )
    assert vote(store) == 1
    assert vote(store) is None
    store.close()


TABLES = ("machines", "registration_tokens", "config_tokens", "allow_list", "audit_log")
