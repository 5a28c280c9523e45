"""Migrations: they lead to exactly the tables that the code speaks of, once, whoever starts first."""

from __future__ import annotations

import ast
import errno
import hashlib
import json
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine

from attestation.audit import AuditEntry, AuditEvent, canonical_bytes, chain, verify_chain
from attestation.errors import StoreUnavailable
from attestation.store import StoreSettings, migrate, migrations, open_store
from attestation.store.migrate import HEAD, connection_to
from attestation.store.tables import Base
from attestation.store.unusable import unusable

NOW = datetime(2026, 11, 21, tzinfo=UTC)
Spoil = Callable[[list[AuditEntry]], list[tuple[int, AuditEntry]]]
audit_tree = import_module("attestation.store.migrations.versions.0002_audit_tree")
one_chip = import_module("attestation.store.migrations.versions.0014_one_key_one_chip")

WORDS = re.compile(r"[^\s,()]+")


def schema(path: Path) -> dict[str, list[str]]:
    """Return the words of the SQL of every table and index, sorted, because constraints have no order."""
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute(
            "SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'index') AND sql NOT NULL"
        )
        return {name: sorted(WORDS.findall(sql)) for name, sql in rows if name != "alembic_version"}


def test_migrations_and_tables_are_the_same(tmp_path: Path) -> None:
    """Alembic finds no difference, and neither does a comparison that also sees CHECK constraints."""
    migrate(f"sqlite:///{tmp_path}/migrated.db")
    with connection_to(tmp_path / "migrated.db") as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    engine = create_engine(f"sqlite:///{tmp_path}/created.db")
    Base.metadata.create_all(engine)
    engine.dispose()
    migrated, created = schema(tmp_path / "migrated.db"), schema(tmp_path / "created.db")
    assert migrated.keys() == created.keys()
    for name, words in created.items():
        assert migrated[name] == words, name


def test_eight_starters_migrate_once(tmp_path: Path) -> None:
    """Processes that start at once all succeed, and the database is migrated."""
    url = f"sqlite:///{tmp_path}/store.db"
    code = f"from attestation.store import migrate; migrate({url!r})"
    starters = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) for _ in range(8)]
    for starter in starters:
        _, errors = starter.communicate(timeout=60)
        assert starter.returncode == 0, errors
    with closing(sqlite3.connect(tmp_path / "store.db")) as db:
        assert db.execute("SELECT version_num FROM alembic_version").fetchall() == [(HEAD,)]


@pytest.mark.parametrize(
    "url",
    ["sqlite://", "sqlite:///:memory:", "mysql://x/y", "sqlite:///x.db?mode=ro"],
)
def test_only_shared_files_are_databases(url: str) -> None:
    """Nothing that workers could not share, nothing that we do not support."""
    with pytest.raises(ValueError, match=r"ITL_DB_URL is sqlite:/// and then the path of a file"):
        open_store(url)


def test_a_path_in_place_of_the_url_is_told_as_url() -> None:
    """The address is given that was meant; of anything else nothing is repeated, as it may hold a password."""
    with pytest.raises(ValueError, match=r"for this file sqlite:////var/x\.db$"):
        migrate("/var/x.db")
    with pytest.raises(ValueError, match="ITL_DB_URL is") as refused:
        migrate("canary:hunter2@host")
    assert "hunter2" not in str(refused.value)


def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    """Neither opened nor migrated nor overwritten."""
    path = tmp_path / "store.db"
    path.write_bytes(b"something else entirely " * 100)
    for use in (migrate, open_store):
        with pytest.raises(StoreUnavailable, match="is no SQLite database"):
            use(f"sqlite:///{path}")
    assert path.read_bytes() == b"something else entirely " * 100


@pytest.mark.threat("T164")
@pytest.mark.parametrize(
    "theirs", ["CREATE TABLE dashboards (id)", "CREATE TABLE alembic_version (version_num)"]
)
def test_the_database_of_another_program_is_left_alone(tmp_path: Path, theirs: str) -> None:
    """Not one byte of it changes, nothing is put beside it, and its tables are named."""
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute(theirs)
    before = path.read_bytes()
    with pytest.raises(StoreUnavailable, match=rf"{path} is the database of another program .*ITL_DB_URL"):
        migrate(f"sqlite:///{path}")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_what_keeps_a_database_from_being_opened_is_told_with_a_way_out(tmp_path: Path) -> None:
    """A folder that is missing; a lock that somebody holds; a disk that is full."""
    nowhere = tmp_path / "no" / "m.db"
    with pytest.raises(StoreUnavailable, match=rf"{nowhere.parent}, does not exist.*install -d -m 0700"):
        migrate(f"sqlite:///{nowhere}")
    with pytest.raises(StoreUnavailable, match="does not exist"):
        open_store(f"sqlite:///{nowhere}")
    path = tmp_path / "m.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("CREATE TABLE audit_log (id)")
        db.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnavailable, match=rf"locked, .*fuser -v {path}"):
            open_store(f"sqlite:///{path}", StoreSettings(busy_timeout_seconds=0.1))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(errno.EACCES, "no"), "chown -R"),
        (OSError(errno.EROFS, "no"), "read-only"),
        (OSError(errno.ENOSPC, "no"), "no room is left"),
        (OSError(errno.EIO, "the disk hums"), "the disk hums"),
        (sqlite3.OperationalError("another"), "another"),
    ],
    ids=str,
)
def test_each_cause_has_its_words(tmp_path: Path, error: OSError | sqlite3.Error, words: str) -> None:
    """What is not in the table is told as the system says it."""
    assert words in str(unusable(tmp_path / "m.db", error))


def test_the_newest_revision_is_known_without_alembic(tmp_path: Path) -> None:
    """`HEAD` is Alembic's own head, and a database that is there is not migrated again."""
    config = Config()
    config.set_main_option("script_location", "attestation.store:migrations")
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD
    migrate(f"sqlite:///{tmp_path}/m.db")
    with mock.patch("attestation.store.migrate.upgrade") as upgrade:
        migrate(f"sqlite:///{tmp_path}/m.db")
    upgrade.assert_not_called()


@pytest.mark.parametrize("revision", [f"{int(HEAD) + 1:04}", f"{int(HEAD) + 2:04}", "x"])
def test_a_database_of_another_version_is_left_alone(tmp_path: Path, revision: str) -> None:
    """Of a newer version, or of one that was never released: the start says which revision, and what to do."""
    path = tmp_path / "m.db"
    migrate(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE alembic_version SET version_num = ?", (revision,))
        db.commit()
    before = schema(path)
    with pytest.raises(StoreUnavailable, match=f"revision {revision}, which this version does not know"):
        migrate(f"sqlite:///{path}")
    assert schema(path) == before


def test_migrations_do_tomorrow_what_they_do_today() -> None:
    """They stand alone: of our code, whose rules go on changing, they import one exception; and none is left out."""
    root = Path(migrations.__file__).parent
    found = {
        (path.name, name)
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in _imported(node)
    }
    ours = {(path, name) for path, name in found if name.split(".")[0] not in ALONE}
    assert ours == {("0002_audit_tree.py", "attestation.errors.StoreUnavailable")}
    numbers = sorted(int(path.name[:4]) for path in root.glob("versions/0*.py"))
    assert numbers == [*range(1, 5), *range(8, int(HEAD) + 1)]  # 0005 to 0007 were never given


ALONE = frozenset(sys.stdlib_module_names - {"importlib"}) | {"alembic", "sqlalchemy", "idna"}
"""What changes with no version of ours."""


def _imported(node: ast.AST) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            module = "." * node.level + (node.module or "")
            return [f"{module}.{alias.name}" for alias in node.names]
        case ast.Call(func=ast.Name(id="__import__")):
            return ["__import__"]
    return []


@given(st.binary(max_size=200))
def test_a_certificate_that_cannot_be_read_numbers_no_chip(data: bytes) -> None:
    """A migration does not fail on what is in the database."""
    certificate = b"\x30\x81" + bytes([len(data)]) + data
    for each in (data, certificate):
        assert one_chip._subject_serial(each) is None


def test_nobody_else_may_read_the_database(tmp_path: Path) -> None:
    """The file and what SQLite puts beside it have mode 0600."""
    migrate(f"sqlite:///{tmp_path}/m.db")
    store = open_store(f"sqlite:///{tmp_path}/m.db")
    store.write_sync(lambda tx: tx.purge(datetime.now(UTC)))
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("m.db*")}
    store.close()
    assert modes.pop("m.db.migrate-lock") & 0o022 == 0
    assert modes == dict.fromkeys(["m.db", "m.db-wal", "m.db-shm"], 0o600)


def log_of(entries: int) -> list[AuditEntry]:
    """Return a chain of *entries* entries."""
    made: list[AuditEntry] = []
    prev_hash = "0" * 64
    for n in range(entries):
        event = AuditEvent(
            operator_cn="anna", action="approve", detail=f"n {n} \u00e9", machine_id="m" * (n % 2)
        )
        made.append(chain(event, at=NOW, prev_hash=prev_hash))
        prev_hash = made[-1].entry_hash
    return made


def revision_of(path: Path, revision: str) -> None:
    """Bring a database to the schema of *revision*."""
    path.touch()
    config = Config()
    config.set_main_option("script_location", "attestation.store:migrations")
    with connection_to(path) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        connection.commit()


def test_machines_that_are_called_alike_are_kept_and_named(tmp_path: Path) -> None:
    """Before names were unique: the oldest has the name, each later one is marked, and nothing else changes."""
    path = tmp_path / "store.db"
    revision_of(path, "0015")
    called: list[tuple[str, str, str | None, str | None]] = [
        ("revoked", "default", "cp-1", "10.0.0.11/24"),
        ("attested", "default", "cp-1", "10.0.0.11/24"),
        ("attested", "other", "cp-1", "10.0.0.11/24"),
        ("registered", "default", "CP-1.", None),
        ("locked", "default", "cp-2", "::ffff:10.0.0.11/120"),
        ("attested", "default", "cp-2", None),
        ("rejected", "default", "cp-2", None),
        ("attested", "default", "no_name", "somewhere"),
        ("pending_approval", "default", None, None),
    ]
    with closing(sqlite3.connect(path)) as db:
        columns = [row[1] for row in db.execute("PRAGMA table_info(machines)") if row[1] != "redeliver"]
        for number, (status, cluster_id, hostname, assigned_ip) in enumerate(called):
            row: dict[str, object] = {
                **dict.fromkeys(
                    ("ek_source", "ek_template", "hw_uuid", "hw_mac", "hw_serial", "hw_product"), "x"
                ),
                **dict.fromkeys(("ek_chain_ok", "ek_allow_listed", "wipe_pending", "redeliver"), 0),
                "machine_id": f"m{number}",
                "ek_fingerprint": str(number),
                "ek_public": b"",
                "search": "",
                "version": 1,
                "assurance": "tofu",
                "registered_at": number,
                "status": status,
                "cluster_id": cluster_id,
                "hostname": hostname,
                "assigned_ip": assigned_ip,
            }
            db.execute(
                f"INSERT INTO machines ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})",
                tuple(row.values()),
            )
        db.commit()
        before = db.execute(f"SELECT {', '.join(columns)} FROM machines ORDER BY id").fetchall()
    migrate(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as db:
        assert db.execute(f"SELECT {', '.join(columns)} FROM machines ORDER BY id").fetchall() == before
        keys = db.execute("SELECT name_key, address_key, shares_names FROM machines ORDER BY id").fetchall()
    assert keys == [
        (None, None, 0),
        ("cp-1", "10.0.0.11", 0),
        ("cp-1", "10.0.0.11", 0),
        ("cp-1", None, 1),
        ("cp-2", "10.0.0.11", 1),
        ("cp-2", None, 0),
        (None, None, 0),
        ("no_name", "somewhere", 0),
        (None, None, 0),
    ]
    store = open_store(f"sqlite:///{path}")
    assert [m.machine_id for m in store.read_sync(lambda tx: tx.machines.sharing(10))] == ["m3", "m4"]
    store.close()


def test_keys_of_earlier_revocations_are_refused(tmp_path: Path) -> None:
    """What was revoked as compromised before there was a list; nothing else."""
    path = tmp_path / "store.db"
    revision_of(path, "0016")
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA foreign_keys=OFF")
        for number, (key, reason) in enumerate(
            [("a", "keyCompromise"), ("a", "keyCompromise"), ("b", "superseded"), ("c", "keyCompromise")]
        ):
            row = {
                "serial": f"{number:040x}",
                "issuer_id": "0" * 16,
                "profile": "node-client",
                "subject": "CN=x",
                "state": "revoked",
                "spki_sha256": key * 64,
                "requester": "x",
                "reason": reason,
                "note": "x",
                "not_before": 1,
                "not_after": 9,
                "reserved_at": 2,
                "issued_at": 3,
                "ended_at": 5 + number,
                "certificate": b"x",
                "machine_id": "m",
            }
            db.execute(
                f"INSERT INTO certificates ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})",
                tuple(row.values()),
            )
        db.commit()
    migrate(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT spki_sha256, added_at FROM refused_keys ORDER BY spki_sha256").fetchall()
    assert found == [("a" * 64, 5), ("c" * 64, 8)]


def database_at_0001(path: Path, rows: list[tuple[int, AuditEntry]], *, revision: str = "0001") -> None:
    """Make the database that a service of the first schema, or another one, left, with *rows* in its audit log."""
    revision_of(path, revision)
    names = AuditEntry.__slots__
    with closing(sqlite3.connect(path)) as db:
        db.executemany(
            f"INSERT INTO audit_log (id, {', '.join(names)}) VALUES (?{', ?' * len(names)})",
            [(row_id, *(getattr(entry, name) for name in names)) for row_id, entry in rows],
        )
        db.commit()


def perfect_root(leaves: list[bytes]) -> bytes:
    """Return the root of a tree of 2**n leaves (RFC 6962, 2.1)."""
    while len(leaves) > 1:
        pairs = zip(leaves[::2], leaves[1::2], strict=True)
        leaves = [hashlib.sha256(b"\x01" + left + right).digest() for left, right in pairs]
    return leaves[0]


@pytest.mark.parametrize("entries", [0, 1, 255, 256, 257, 2049])
def test_a_log_of_the_first_schema_gets_its_tree(tmp_path: Path, entries: int) -> None:
    """Every entry is a leaf, every full tile has its root, and the next entry goes behind them."""
    path, log = tmp_path / "old.db", log_of(entries)
    database_at_0001(path, list(enumerate(log, start=1)))
    migrate(f"sqlite:///{path}")
    store = open_store(f"sqlite:///{path}")
    log.append(store.write_sync(lambda tx: tx.audit.append(AuditEvent(operator_cn="b", action="x"), NOW)))
    leaves = [hashlib.sha256(b"\x00" + canonical_bytes(entry)).digest() for entry in log]
    tree = store.read_sync(lambda tx: [tx.audit.tree.nodes(level, 0, 9999) for level in range(3)])
    assert tree[0] == leaves
    assert tree[1] == [perfect_root(leaves[i : i + 256]) for i in range(0, len(leaves) - 255, 256)]
    assert tree[2] == []
    assert verify_chain(store.read_sync(lambda tx: tx.audit.entries(0, 9999))).entries == entries + 1
    store.close()


def test_three_levels_are_filled_as_they_grow() -> None:
    """What a migration fills for 256 * 256 + 1 entries is what appending them one by one would have made."""
    nodes: list[dict[str, Any]] = []
    incomplete: list[list[bytes]] = [[]]
    leaves = [hashlib.sha256(n.to_bytes(4)).digest() for n in range(65_537)]
    for n, leaf in enumerate(leaves):
        audit_tree._add(nodes, incomplete, n, leaf)
    by_level = Counter(node["level"] for node in nodes)
    assert by_level == {0: 65_537, 1: 256, 2: 1}
    (top,) = [node for node in nodes if node["level"] == 2]
    assert (top["position"], top["hash"]) == (0, perfect_root(leaves[:65_536]))
    assert [len(tile) for tile in incomplete] == [1, 0, 1]


@pytest.mark.threat("T42")
@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda log: [(1, log[0]), (3, log[1])], "after entry 1 comes 3"),
        (lambda log: [(2, log[0])], "after entry 0 comes 2"),
        (lambda log: [(1, log[0]), (2, replace(log[1], detail="other"))], "entry 2 does not fit"),
        (lambda log: [(1, log[0]), (2, log[2])], "entry 2 does not fit"),
        (lambda log: [(1, replace(log[0], prev_hash=log[0].entry_hash))], "entry 1 does not fit"),
    ],
)
def test_a_log_that_somebody_changed_does_not_become_a_tree(tmp_path: Path, spoil: Spoil, why: str) -> None:
    """The database stays as it was, at 0001, and whoever starts the service learns which entry it is."""
    path = tmp_path / "old.db"
    database_at_0001(path, spoil(log_of(3)))
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=why):
            migrate(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT version_num FROM alembic_version").fetchall() == [("0001",)]
        assert db.execute("SELECT name FROM sqlite_master WHERE name LIKE 'audit_nodes%'").fetchall() == []


def test_old_results_say_what_was_compared(tmp_path: Path) -> None:
    """A row that said only yes tells it from its checks and values; one that said no, or has no values, nothing.

    PCR 0 alone was once enough for "appraised", and so was a PCR that holds nothing.
    """
    path = tmp_path / "old.db"
    path.touch()
    config = Config()
    config.set_main_option("script_location", "attestation.store:migrations")
    with connection_to(path) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0009")
        connection.commit()
    passed = json.dumps([["passed", f"pcr{pcr}", ""] for pcr in (0, 4, 8, 9)])
    values = json.dumps({str(pcr): "aa" * 32 for pcr in (0, 4, 8, 9)})
    rows = [
        (1, passed, "sha256", values),
        (1, passed, "sha256", json.dumps({"0": "aa" * 32, "4": "00" * 32})),
        (0, passed, "sha256", values),
        (1, passed, None, None),
    ]
    with closing(sqlite3.connect(path)) as db:
        db.executemany(
            "INSERT INTO attestation_results (machine_id, at, verdict, boot_state_appraised, outcomes, pcr_bank, "
            "pcr_values) VALUES ('m', 1, 'Verified', ?, ?, ?, ?)",
            rows,
        )
        db.commit()
    migrate(f"sqlite:///{path}")
    store = open_store(f"sqlite:///{path}")
    found = store.read_sync(lambda tx: tx.results.page("m", None, 10)).items
    store.close()
    assert [list(each.result.boot_state_appraised) for each in reversed(found)] == [
        ["firmware", "boot-loader", "kernel", "initrd", "command-line"],
        ["firmware"],
        [],
        [],
    ]
