"""Migrations: they lead to exactly the tables that the code speaks of, once, whoever starts first."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from attestation.errors import StoreUnavailable
from attestation.store import migrate, open_store
from attestation.store.migrate import HEAD, connection_to
from attestation.store.tables import Base

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
        assert db.execute("SELECT version_num FROM alembic_version").fetchall() == [("0001",)]


@pytest.mark.parametrize(
    "url",
    ["sqlite://", "sqlite:///:memory:", "postgresql://x/y", "sqlite:///x.db?mode=ro"],
)
def test_only_shared_files_are_databases(url: str) -> None:
    """Nothing that workers could not share, nothing that we do not support."""
    with pytest.raises(ValueError, match=r"sqlite|postgresql"):
        open_store(url)


def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    """Neither opened nor migrated nor overwritten."""
    path = tmp_path / "store.db"
    path.write_bytes(b"something else entirely " * 100)
    for use in (migrate, open_store):
        with pytest.raises(StoreUnavailable):
            use(f"sqlite:///{path}")
    assert path.read_bytes() == b"something else entirely " * 100


def test_the_newest_revision_is_known_without_alembic(tmp_path: Path) -> None:
    """`HEAD` is Alembic's own head, and a database that is there is not migrated again."""
    config = Config()
    config.set_main_option("script_location", "attestation.store:migrations")
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD
    migrate(f"sqlite:///{tmp_path}/m.db")
    with mock.patch("attestation.store.migrate.upgrade") as upgrade:
        migrate(f"sqlite:///{tmp_path}/m.db")
    upgrade.assert_not_called()


def test_nobody_else_may_read_the_database(tmp_path: Path) -> None:
    """The file and what SQLite puts beside it have mode 0600."""
    migrate(f"sqlite:///{tmp_path}/m.db")
    store = open_store(f"sqlite:///{tmp_path}/m.db")
    store.write_sync(lambda tx: tx.purge(datetime.now(UTC)))
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("m.db*")}
    store.close()
    assert modes.pop("m.db.migrate-lock") & 0o022 == 0
    assert modes == dict.fromkeys(["m.db", "m.db-wal", "m.db-shm"], 0o600)
