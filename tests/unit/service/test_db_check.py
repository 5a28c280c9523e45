"""`db status` and `db check`: what is told of a database, and each thing that may be wrong with it."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from attestation.store.migrate import HEAD, connection_to
from attestation_service.main import main
from tests.fixtures.postgres import Server
from tests.unit.service.test_inspection import place, quick, started_once

__all__ = ["place", "quick", "started_once"]

Ask = Callable[..., dict[str, str]]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Return what checks, and gives what is not well, by part."""

    def ask(expected: int, *words: str) -> dict[str, str]:
        capsys.readouterr()
        status = main(["db", "check", "-o", "json", *words])
        told = json.loads(capsys.readouterr().out)
        assert status == expected, told
        return {each["part"]: each["what"] for each in told["findings"] if each["level"] != "ok"}

    return ask


@pytest.fixture
def moved(place: Path, postgres_server: Server) -> Iterator[str]:
    """The URL of a database on a server to which the installation moved."""
    url = postgres_server.create("checked")
    assert main(["db", "copy", "--to", url]) == 0
    yield url
    postgres_server.drop("checked")


def test_what_there_is_is_told(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To people and to programs; also of an older database."""
    capsys.readouterr()
    assert main(["db", "status", "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["database"] == f"{place}/m.db"
    assert (told["revision"], told["a_start_migrates"], told["machines"]) == (HEAD, False, 0)
    assert told["audit_log"] > 0
    assert told["bytes"] == (place / "m.db").stat().st_size
    with closing(sqlite3.connect(place / "m.db")) as db:
        db.execute("UPDATE alembic_version SET version_num = '0027'")
        db.commit()
    assert main(["db", "status"]) == 0
    assert "a start migrates      yes\n" in capsys.readouterr().out


@pytest.mark.threat("T28")
def test_no_terminal_obeys_what_stands_in_a_database(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever wrote it there."""
    with closing(sqlite3.connect(place / "m.db")) as db:
        db.execute("UPDATE database_identity SET moved_to = '\x1b[2J', moved_at = 1")
        db.commit()
    capsys.readouterr()
    for words in (("db", "status"), ("db", "check"), ("--check",)):
        main(words)
        told = "".join(capsys.readouterr())
        assert "\x1b" not in told, words
        assert "\ufffd[2J" in told, words
    assert main(("db", "copy", "--to", f"sqlite:///{place}/c.db")) == 1
    assert "copied to \ufffd[2J" in capsys.readouterr().err
    assert main(["db", "status", "--url", f"sqlite:///{place}/none.db"]) == 1
    assert "there is no database at" in capsys.readouterr().err
    assert not (place / "none.db").exists()


def test_a_good_database_is_whole(check: Ask, moved: str) -> None:
    """On PostgreSQL as on SQLite: nothing but ok. The one that moved says so."""
    assert check(0, "--url", moved) == {}
    assert "was copied to" in check(1)["identity"]


@pytest.mark.parametrize(
    ("change", "part", "words"),
    [
        ("DROP TRIGGER audit_log_refuses_update", "schema", "trigger audit_log_refuses_update is missing"),
        ("DROP INDEX ix_audit_log_action_id", "schema", "index ix_audit_log_action_id is missing"),
        ("ALTER TABLE machines DROP COLUMN config_failure", "schema", "table machines is another"),
        ("INSERT INTO machine_labels VALUES ('none', 'a', 'b')", "file", "machine_labels refers"),
        ("DROP TRIGGER audit_log_refuses_update; UPDATE audit_log SET detail = 'x'", "audit log", "entry 1"),
        ("UPDATE database_identity SET database_id = hex(zeroblob(16))", "identity", "another database"),
        ("UPDATE ca_issuers SET key_uri = 'file:/x'", "audit log", "it is not what entry"),
        ("UPDATE alembic_version SET version_num = '0027'", "schema", "at revision 0027"),
    ],
)  # fmt: skip
def test_each_fault_is_found(place: Path, check: Ask, change: str, part: str, words: str) -> None:
    """And named, and the exit code says so."""
    with closing(sqlite3.connect(place / "m.db")) as db:
        db.executescript(change)
    assert words in check(1)[part]


def test_what_is_there_besides_is_a_warning(place: Path, check: Ask) -> None:
    """An index of somebody's own makes nothing wrong."""
    with closing(sqlite3.connect(place / "m.db")) as db:
        db.execute("CREATE INDEX mine ON machines (hostname)")
    assert "index mine is there besides" in check(0)["schema"]


def test_a_damaged_file_is_told(place: Path, check: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    """Whether SQLite can say where, or cannot read it at all."""
    data = bytearray((place / "m.db").read_bytes())
    page = int.from_bytes(data[16:18])
    data[-page:] = b"\xff" * page
    (place / "m.db").write_bytes(data)
    assert main(["db", "check"]) == 1
    told = "".join(capsys.readouterr())
    assert "damaged" in told


def test_without_the_keys_the_chain_is_walked(place: Path, check: Ask) -> None:
    """Who signed is then not known, and that is told."""
    shutil.move(place / "ca", place / "elsewhere")
    found = check(1)
    assert "chain and tree verify. Who signed" in found["audit log"]
    assert "is missing" in found["identity"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("DROP TRIGGER audit_log_refuses_change ON audit_log", "trigger audit_log_refuses_change is missing"),
        ("ALTER TABLE audit_log DISABLE TRIGGER audit_log_refuses_gap", "trigger audit_log_refuses_gap is another"),
        ("ALTER TABLE audit_nodes ENABLE REPLICA TRIGGER audit_nodes_refuses_truncate", "truncate is another"),
        ("ALTER TABLE config_tokens DISABLE TRIGGER ALL", "constraint fk_config_tokens_machine_id"),
        ("ALTER DATABASE checked SET session_replication_role = replica", "session_replication_role is another"),
    ],
)  # fmt: skip
def test_a_server_without_its_triggers_is_told(check: Ask, moved: str, change: str, words: str) -> None:
    """Whatever the owner of the tables, or a superuser, took away or switched off."""
    with connection_to(moved) as connection:
        connection.exec_driver_sql(change)
        connection.commit()
    assert re.match(f".*{words}.*the invariants of the record rest on it", check(1, "--url", moved)["schema"])
