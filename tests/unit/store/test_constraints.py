"""The invariants hold in the database itself, whatever code runs against it."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from attestation.audit import AuditEvent
from attestation.store import (
    Countersignature,
    CountersignatureKind,
    Store,
    StoredCheckpoint,
    StoreSettings,
    Tx,
    migrate,
    open_store,
    sqlite_path,
)
from attestation.store.sqlite import connect
from tests.contract.store_samples import (
    NOW,
    a_challenge,
    a_config_token,
    a_machine,
    a_registration_token,
    a_result,
    by_hand,
)


@pytest.fixture
def filled(store: Store, store_url: str) -> str:
    """The URL of a database with a row in most tables."""

    def machine(tx: Tx) -> None:
        tx.machines.add(a_machine())
        tx.audit.append(AuditEvent(operator_cn="a", action="b", detail="0"), NOW)

    def token(tx: Tx) -> None:
        tx.registration_tokens.add(a_registration_token())
        tx.audit.append(AuditEvent(operator_cn="a", action="b", detail="1"), NOW)

    store.write_sync(machine)
    store.write_sync(lambda tx: tx.challenges.issue(a_challenge()))
    store.write_sync(token)
    store.write_sync(lambda tx: tx.config_tokens.issue(a_config_token()))
    store.write_sync(lambda tx: tx.results.add(a_machine().machine_id, a_result()))
    checkpoint = StoredCheckpoint(size=2, root=bytes(32), note="note", created_at=NOW)
    stamp = Countersignature(kind=CountersignatureKind.TIMESTAMP, signer="tsa", value=b"x", created_at=NOW)
    store.write_sync(lambda tx: tx.audit.tree.add_checkpoint(checkpoint))
    store.write_sync(lambda tx: tx.audit.tree.countersign(2, stamp))
    return store_url


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A connection of ours to a database with a machine in a file."""
    migrate(f"sqlite:///{tmp_path}/store.db")
    with closing(open_store(f"sqlite:///{tmp_path}/store.db")) as store:
        store.write_sync(lambda tx: tx.machines.add(a_machine()))
    with closing(connect(tmp_path / "store.db", StoreSettings())) as connection:
        yield connection


def refused(url: str, sql: str) -> str:
    """Return why the database does not do *sql*, which is written for SQLite."""
    if url.startswith("postgresql"):
        sql = re.sub(r"zeroblob\((\d+)\)", r"decode(repeat('00', \1), 'hex')", sql)
        sql = sql.replace("x'00'", r"'\x00'").replace("1, 0, 'x', 0)", "1, 0, 'x', false)")
        with pytest.raises(psycopg.IntegrityError) as refusal:
            by_hand(url, sql)
        return str(refusal.value)
    with (
        closing(connect(sqlite_path(url), StoreSettings())) as db,
        pytest.raises(sqlite3.IntegrityError) as no,
    ):
        db.execute(sql)
    return str(no.value)


COPY_AUDIT = (
    "INSERT {} INTO audit_log SELECT {}, timestamp, 'mallory', operator_sub, action, machine_id, prev_state,"
    " new_state, detail, source_ip, format, prev_hash, {} FROM audit_log WHERE id = 1"
)


PASSING = {
    "sqlite": (
        COPY_AUDIT.format("OR REPLACE", "3", "entry_hash"),
        "INSERT OR REPLACE INTO audit_nodes VALUES (0, 0, zeroblob(32))",
    ),
    "postgresql": tuple(
        f"TRUNCATE {table} CASCADE"
        for table in ("audit_log", "audit_nodes", "audit_checkpoints", "audit_countersignatures")
    ),
}


@pytest.mark.threat("T26")
@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("UPDATE audit_log SET detail = 'x' WHERE id = 1", "append-only"),
        ("DELETE FROM audit_log", "append-only"),
        (COPY_AUDIT.format("", "3", f"'{'0' * 64}'"), "unique.*audit_log.prev_hash"),
        (COPY_AUDIT.format("", "NULL", f"'{'0' * 64}'"), "no gap"),
        (COPY_AUDIT.format("", "4", f"'{'0' * 64}'"), "no gap"),
        (COPY_AUDIT.format("", "1", f"'{'0' * 64}'"), "no gap"),
        ("UPDATE audit_nodes SET hash = zeroblob(32)", "append-only"),
        ("DELETE FROM audit_nodes", "append-only"),
        ("INSERT INTO audit_nodes VALUES (0, 0, zeroblob(32))", "unique"),
        ("INSERT INTO audit_nodes VALUES (0, 9, zeroblob(31))", "ck_audit_nodes_hash"),
        ("UPDATE audit_checkpoints SET note = 'x'", "append-only"),
        ("DELETE FROM audit_checkpoints", "append-only"),
        ("INSERT INTO audit_checkpoints VALUES (-1, zeroblob(32), 'x', 0)", "ck_audit_checkpoints_size"),
        ("INSERT INTO audit_checkpoints VALUES (9, zeroblob(31), 'x', 0)", "ck_audit_checkpoints_root"),
        ("UPDATE audit_countersignatures SET value = x'00'", "append-only"),
        ("DELETE FROM audit_countersignatures", "append-only"),
        ("INSERT INTO audit_countersignatures VALUES (9, 'timestamp', 'x', x'00', 0)", "foreign key"),
        (
            "INSERT INTO audit_countersignatures VALUES (2, 'seal', 'x', x'00', 0)",
            "ck_audit_countersignatures_kind",
        ),
        ("UPDATE machines SET status = 'trusted'", "ck_machines_status"),
        ("UPDATE machines SET role = 'king'", "ck_machines_role"),
        ("UPDATE machines SET desired_role = 'king'", "ck_machines_desired_role"),
        ("UPDATE machines SET assurance = 'sure'", "ck_machines_assurance"),
        ("UPDATE machines SET last_verdict = 'verified'", "ck_machines_last_verdict"),
        ("UPDATE machines SET version = 0", "ck_machines_version"),
        ("UPDATE machines SET ek_fingerprint = NULL", "not.null"),
        ("UPDATE challenges SET purpose = 'x'", "ck_challenges_purpose"),
        ("UPDATE registration_tokens SET uses_left = -1", "ck_registration_tokens_uses_left"),
        ("UPDATE registration_tokens SET uses_left = 3", "ck_registration_tokens_uses_left"),
        ("UPDATE registration_tokens SET token_sha256 = 'secret'", "ck_registration_tokens_token_sha256"),
        ("UPDATE config_tokens SET token_sha256 = 'secret'", "ck_config_tokens_token_sha256"),
        ("UPDATE config_tokens SET machine_id = 'nobody'", "foreign key"),
        ("UPDATE attestation_results SET verdict = 'fine'", "ck_attestation_results_verdict"),
        ("INSERT INTO policy_assignments VALUES ('fleet', '*', 'no', 1, 0, 'x', 0)", "foreign key"),
        (
            "INSERT INTO policy_assignments VALUES ('planet', 'x', 'no', 1, 0, 'x', 0)",
            "ck_policy_assignments_scope",
        ),
        (
            "INSERT INTO policy_assignments VALUES ('fleet', 'x', 'no', 1, 0, 'x', 0)",
            "ck_policy_assignments_subject",
        ),
    ],
)
def test_the_database_refuses(filled: str, sql: str, why: str) -> None:
    """What must never be stored cannot be stored."""
    assert re.search(why, refused(filled, sql), re.IGNORECASE)


@pytest.mark.threat("T26")
def test_no_trigger_is_passed_by_what_one_database_has(filled: str) -> None:
    """Neither by replacing rows nor by emptying a table."""
    for sql in PASSING[filled.partition(":")[0]]:
        assert "append-only" in refused(filled, sql)


@pytest.mark.threat("T26")
def test_what_is_copied_in_is_held_to_the_rules(filled: str) -> None:
    """By COPY, as the owner of the tables: a gap, a second successor."""
    if filled.startswith("sqlite"):
        pytest.skip("PostgreSQL's")
    for number, hashed, why in ((4, "0" * 64, "no gap"), (3, "entry_hash", "unique")):
        made = hashed if number == 3 else f"'{hashed}'"
        select = COPY_AUDIT.format("", number, made).partition("SELECT")[2]
        with psycopg.connect(filled) as connection, connection.cursor() as cursor:
            with cursor.copy(f"COPY (SELECT{select}) TO STDOUT") as rows:
                copied = b"".join(rows)
            names = "id, timestamp, operator_cn, operator_sub, action, machine_id, prev_state, new_state"
            into = f"COPY audit_log ({names}, detail, source_ip, format, prev_hash, entry_hash) FROM STDIN"
            with pytest.raises(psycopg.IntegrityError, match=why), cursor.copy(into) as sink:
                sink.write(copied)


@pytest.mark.threat("T142")
@pytest.mark.parametrize("column", ["name_key", "address_key"])
def test_no_two_of_a_cluster_are_called_alike(db: sqlite3.Connection, column: str) -> None:
    """Whatever a caller forgets. Another cluster, and who shared a name before it was a rule, are outside."""
    (first,) = db.execute("SELECT * FROM machines").fetchall()
    names = [row[1] for row in db.execute("PRAGMA table_info(machines)")]
    insert = f"INSERT INTO machines VALUES ({', '.join('?' * len(names))})"
    called: dict[str, object] = {column: "cp-1"}
    others: list[dict[str, object]] = [
        called,
        called | {"cluster_id": "x"},
        called | {"shares_names": 1},
        {},
        {},
    ]
    for number, changed in enumerate(others):
        unique = {"id": 10 + number, "machine_id": str(number), "ek_fingerprint": str(number)}
        db.execute(insert, tuple((dict(zip(names, first, strict=True)) | unique | changed).values()))
    for where in ("cluster_id = 'x'", "shares_names", f"id = 1 OR {column} IS NULL"):
        with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
            db.execute(
                f"UPDATE machines SET {column} = 'cp-1', cluster_id = 'default', shares_names = 0 WHERE {where}"
            )


def test_the_connection_is_durable(db: sqlite3.Connection) -> None:
    """WAL with a sync at every commit; foreign keys are enforced."""
    names = ("journal_mode", "synchronous", "foreign_keys")
    assert [db.execute(f"PRAGMA {name}").fetchone()[0] for name in names] == ["wal", 2, 1]
