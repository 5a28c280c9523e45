"""A copy has the same rows, whole or not at all, whatever kind of database it is made in."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from attestation.errors import StoreBusy, StoreUnavailable
from attestation.store import migrate, open_store
from attestation.store.copying import Copied, copy, of_postgres, source, tables_of, target
from attestation.store.copying.of_sqlite import _SQLite
from attestation.store.copying.rows import quoted
from attestation.store.migrate import connection_to
from attestation.store.postgres import WRITE_LOCK
from attestation.store.tables import Base
from tests.fixtures.filled import fill
from tests.fixtures.postgres import Server


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a database with rows in all tables, which nobody changes."""
    path = tmp_path_factory.mktemp("filled") / "filled.db"
    fill(path)
    return f"sqlite:///{path}"


@pytest.fixture
def empty(request: pytest.FixtureRequest, postgres_server: Server) -> Iterator[str]:
    """The URL of an empty database on a server."""
    yield postgres_server.create("copied")
    postgres_server.drop("copied")


def carry(old: str, new: str) -> list[Copied]:
    with source(old, alone=True) as found, target(new, []) as made:
        return copy(found, made, tables_of(found, []), lambda _table, _rows: None)


def held_in(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return all rows of all tables, and the last numbers that were given."""
    with source(url, alone=False) as found:
        rows = {
            table.name: [tuple(row) for row in found.rows(table)] for table in Base.metadata.sorted_tables
        }
        return rows | {"numbers": [(found.last_number(Base.metadata.tables["outbox"]),)]}


def test_a_round_trip_keeps_each_row(filled: str, empty: str, tmp_path: Path) -> None:
    """From SQLite to PostgreSQL and back: values, their types, and the numbers that come next."""
    there = carry(filled, empty)
    back = carry(empty, f"sqlite:///{tmp_path}/back.db")
    assert there == back
    kept = held_in(filled)
    assert all(kept.values()), [name for name, rows in kept.items() if not rows]
    assert held_in(empty) == kept
    assert held_in(f"sqlite:///{tmp_path}/back.db") == kept
    assert kept["numbers"] == [(77,)]
    with connection_to(filled) as old, connection_to(f"sqlite:///{tmp_path}/back.db") as new:
        for name in Base.metadata.tables:
            rows = f"SELECT * FROM {name}"
            assert sorted(map(repr, old.exec_driver_sql(rows))) == sorted(
                map(repr, new.exec_driver_sql(rows))
            )
    assert [path.name for path in tmp_path.iterdir()] == ["back.db"]
    assert (tmp_path / "back.db").stat().st_mode & 0o077 == 0


KILLED = """
import os, signal, sys
from attestation.store.copying import copy, source, tables_of, target
with source(sys.argv[1], alone=True) as found, target(sys.argv[2], []) as made:
    copy(found, made, tables_of(found, []), lambda table, rows: table == "machines" and os.kill(os.getpid(), signal.SIGKILL))
"""  # noqa: E501 -- one line for each thing that it does


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_killed_in_the_middle_it_leaves_nothing(
    kind: str, filled: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The second run makes all of it."""
    new = f"sqlite:///{tmp_path}/new.db" if kind == "sqlite" else request.getfixturevalue("empty")
    done = subprocess.run([sys.executable, "-c", KILLED, filled, new], check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "new.db").exists()
    assert sum(each.rows for each in carry(filled, new)) > len(Base.metadata.tables)
    assert [each.name for each in tmp_path.iterdir()] == (["new.db"] if kind == "sqlite" else [])


def test_what_is_there_is_left_as_it_is(filled: str, tmp_path: Path, empty: str) -> None:
    """A database of ours, one of another program, and a file that came while the copy was made."""
    migrate(f"sqlite:///{tmp_path}/ours.db")
    with pytest.raises(StoreUnavailable, match="is there already, and was left as it is"):
        carry(filled, f"sqlite:///{tmp_path}/ours.db")
    with connection_to(empty) as connection:
        connection.exec_driver_sql("CREATE TABLE theirs (id int)")
        connection.commit()
    with pytest.raises(StoreUnavailable, match="the database of another program"):
        carry(filled, empty)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreUnavailable, match="is there already, and was left as it is"):
        carry(filled, f"sqlite:///{tmp_path}/pipe")
    assert (tmp_path / "pipe").is_fifo()
    came = tmp_path / "came.db"
    with pytest.raises(StoreUnavailable, match="is there already"), target(f"sqlite:///{came}", []):
        came.write_text("meanwhile")
    assert came.read_text() == "meanwhile"


def test_a_lock_whose_holder_just_removed_it_is_none(
    filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one may have made a new one by then."""
    monkeypatch.setattr(
        "attestation.store.copying.of_sqlite.fcntl.flock", lambda *_: (tmp_path / ".new.db.lock").unlink()
    )
    with pytest.raises(StoreBusy, match="is making"):
        carry(filled, f"sqlite:///{tmp_path}/new.db")


def test_two_do_not_make_one_database(filled: str, tmp_path: Path, empty: str) -> None:
    """The second is refused at once, and leaves the lock where it is."""
    for new in (f"sqlite:///{tmp_path}/new.db", empty):
        with target(new, []):
            for _ in range(2):
                with pytest.raises(StoreBusy, match="is making"):
                    carry(filled, new)


@pytest.mark.parametrize("kind", ["wal", "journal"])
def test_what_a_database_left_beside_is_not_written_into_the_new_one(
    kind: str, filled: str, tmp_path: Path
) -> None:
    """Of a service that was killed there is a WAL; SQLite would write it into the file of that name, and spoil it."""
    (tmp_path / f"new.db-{kind}").write_bytes(b"pages")
    with pytest.raises(StoreUnavailable, match=f"new.db-{kind} is left of a database"):
        carry(filled, f"sqlite:///{tmp_path}/new.db")
    assert [each.name for each in tmp_path.iterdir()] == [f"new.db-{kind}"]


def test_a_lock_that_another_keeps_is_not_waited_for_for_ever(
    filled: str, empty: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be somebody's psql."""
    carry(filled, empty)
    monkeypatch.setattr(of_postgres, "_PATIENCE", "SELECT set_config('lock_timeout', '100ms', true)")
    with connection_to(empty) as other:
        other.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITE_LOCK})")
        with pytest.raises(StoreBusy, match="another program keeps"):
            carry(empty, f"sqlite:///{tmp_path}/new.db")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("UPDATE alembic_version SET version_num = '0027'", "is at revision 0027"),
        ("CREATE TABLE extension_x_things (id INTEGER)", "extension_x_things, which nothing here knows"),
        ("DROP TABLE alembic_version", "no database of this service"),
    ],
)
def test_what_cannot_be_copied_as_a_whole_is_refused(tmp_path: Path, change: str, words: str) -> None:
    """Before anything is made."""
    fill(tmp_path / "old.db")
    with closing(sqlite3.connect(tmp_path / "old.db")) as db:
        db.execute(change)
        db.commit()
    with pytest.raises(StoreUnavailable, match=words):
        carry(f"sqlite:///{tmp_path}/old.db", f"sqlite:///{tmp_path}/new.db")
    assert not (tmp_path / "new.db").exists()


def test_a_database_in_use_is_not_copied(filled: str, store_url: str, tmp_path: Path) -> None:
    """Though nobody writes to it at that moment."""
    used = open_store(store_url)
    try:
        with pytest.raises(StoreBusy, match="stop the service"):
            carry(store_url, f"sqlite:///{tmp_path}/new.db")
    finally:
        used.close()


def test_a_copy_that_is_another_is_not_committed(
    filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read back is compared with what was sent."""
    monkeypatch.setattr(_SQLite, "write", lambda _self, _table, rows: [None for _ in rows])
    with pytest.raises(StoreUnavailable, match="is another"):
        carry(filled, f"sqlite:///{tmp_path}/new.db")
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_a_stranger_gave_a_table_is_a_name_only(tmp_path: Path, filled: str) -> None:
    """A quotation mark in it ends no statement of ours: the table is refused by its name."""
    name = 'extension_a" WHERE 1 = 0 UNION SELECT "x_version'
    with closing(sqlite3.connect(filled.removeprefix("sqlite:///"))) as held:
        held.execute("VACUUM INTO ?", (f"{tmp_path}/old.db",))
    with closing(sqlite3.connect(tmp_path / "old.db")) as db, db:
        db.execute(f'CREATE TABLE "{quoted(name)}" (version_num TEXT)')
    with source(f"sqlite:///{tmp_path}/old.db", alone=True) as found:
        assert found.revisions[name] is None
