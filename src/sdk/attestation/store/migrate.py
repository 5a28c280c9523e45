"""Bring a database to the newest schema, also when several workers start at once."""

from __future__ import annotations

import fcntl
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, create_engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.pool import NullPool

from attestation.errors import StoreUnavailable
from attestation.store.base import StoreSettings
from attestation.store.look import demand_ours, look_at
from attestation.store.sqlite import connect
from attestation.store.unusable import FORM, unusable

if TYPE_CHECKING:
    from alembic.config import Config

HEAD = "0024"
"""The newest revision under `migrations/versions`."""

_SCRIPTS: Final = "attestation.store:migrations"


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Revisions of somebody's own tables in the same database.

    Args:
        name: Of its owner. Its tables are called `extension_<name>_…`.
        scripts: Folder of the revisions, `package:folder`.
        head: The newest of them.
        tables: What is there at the newest.
    """

    name: str
    scripts: str
    head: str
    tables: frozenset[str] = frozenset()

    @property
    def prefix(self) -> str:
        """Begins the names of its tables."""
        return f"extension_{self.name}_"

    @property
    def version_table(self) -> str:
        """Table that says at which of its revisions the database is."""
        return f"{self.prefix}version"


_one_at_a_time = threading.Lock()  # Alembic keeps its context in module globals


def sqlite_path(url: str) -> Path:
    """Return the file that *url* names: `sqlite:///relative.db` or `sqlite:////absolute.db`.

    Raises:
        ValueError: No URL, another kind of database, or none that workers could share. Of the URL it repeats only a
            path: the rest may carry a password.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        hint = f"; for this file sqlite:///{url}" if url.startswith("/") else ""
        raise ValueError(f"{FORM}{hint}") from None
    if parsed.get_backend_name() != "sqlite":
        raise ValueError(f"no store for databases of kind {parsed.get_backend_name()!r}; {FORM}")
    if not parsed.database or parsed.database == ":memory:" or parsed.query:
        raise ValueError(f"the database must be a file, which workers can share; {FORM}")
    return Path(parsed.database)


def migrate(url: str) -> None:
    """Upgrade the database at *url* to the newest revision.

    A file lock beside the database lets one process at a time in; the others find nothing left to do.

    Raises:
        ValueError: Not a URL of a database that we support.
        StoreUnavailable: The database cannot be opened or changed, or another version of the code, or another program,
            wrote it.
    """
    path = sqlite_path(url)
    try:
        if path.exists() and path.stat().st_size:
            with look_at(path, untouched=False) as found:
                demand_ours(path, found)
        path.touch(mode=0o600)  # the WAL beside it takes over its mode: tokens' hashes are nobody else's
        with _one_at_a_time, _locked(path.with_name(path.name + ".migrate-lock")), connection_to(path) as c:
            if (revision := _revision(c)) != HEAD:
                upgrade(c, revision)
    except OSError as e:
        raise unusable(path, e) from e
    except DBAPIError as e:
        if isinstance(e.orig, sqlite3.Error):
            raise unusable(path, e.orig) from e
        raise StoreUnavailable(f"the database {path} cannot be migrated: {e}") from e


def migrate_branch(url: str, branch: Branch) -> None:
    """Upgrade the tables of *branch* in the database at *url*, which was migrated.

    Raises:
        StoreUnavailable: The database cannot be opened; it is at another revision; or the revisions make other tables
            than they should, and then nothing was changed.
        Exception: Whatever its revisions raise; then nothing was changed.
    """
    path = sqlite_path(url)
    with _one_at_a_time, _locked(path.with_name(path.name + ".migrate-lock")), connection_to(path) as c:
        if (revision := _revision(c, branch.version_table)) == branch.head:
            return
        before = _tables(c)
        config = _config(branch)
        if revision is not None and revision not in _revisions(config):
            raise unknown(revision, branch.head)
        c.rollback()
        config.attributes["connection"] = c
        _run(config, c)
        made = _tables(c) - before - {branch.version_table}
        if strange := sorted(name for name in made if not name.startswith(branch.prefix)):
            raise StoreUnavailable(f"its revisions make {strange[0]}; its tables are called {branch.prefix}…")
        if missing := sorted(branch.tables - _tables(c)):
            raise StoreUnavailable(f"its revisions do not make {missing[0]}")
        if (now := _revision(c, branch.version_table)) != branch.head:
            raise StoreUnavailable(f"its newest revision is {now}, not {branch.head}")
        c.commit()


def _tables(connection: Connection) -> frozenset[str]:
    rows = connection.exec_driver_sql("SELECT name FROM sqlite_schema WHERE type = 'table'")
    return frozenset(name for (name,) in rows if not name.startswith("sqlite_"))


def _revision(connection: Connection, table: str = "alembic_version") -> str | None:
    """Return the revision that the database is at; None where it has none."""
    try:
        return connection.exec_driver_sql(f"SELECT version_num FROM {table}").scalar_one_or_none()  # noqa: S608 -- a name
    except OperationalError:
        return None  # no such table: a new file


def upgrade(connection: Connection, revision: str | None) -> None:
    """Run all revisions that *connection*'s database, which is at *revision*, has not seen: all of them, or none.

    Alembic takes SQLite for a database whose schema is not under transactions, and would leave half a revision
    where one fails; so the transaction is ours.

    Raises:
        StoreUnavailable: There is no such revision here.
    """
    config = _config()
    if revision is not None and revision not in _revisions(config):
        raise unknown(revision)
    connection.rollback()  # what `_revision` began
    config.attributes["connection"] = connection
    _run(config, connection)
    connection.commit()


def _config(branch: Branch | None = None) -> Config:
    from alembic.config import (
        Config,
    )  # here: it takes 11 MB, and a worker of a migrated database never needs it

    config = Config()
    config.set_main_option("script_location", _SCRIPTS)
    if branch is not None:
        config.set_main_option("path_separator", "newline")  # the name of a folder has a colon
        config.set_main_option("version_locations", branch.scripts)
        config.attributes["version_table"] = branch.version_table
    return config


def _run(config: Config, connection: Connection) -> None:
    from alembic import command  # here, likewise

    connection.exec_driver_sql("BEGIN IMMEDIATE")
    command.upgrade(config, "head")


def known_revisions() -> frozenset[str]:
    """Return the revisions that this version can migrate from, and the newest."""
    return _revisions(_config())


def _revisions(config: Config) -> frozenset[str]:
    from alembic.script import ScriptDirectory  # here, likewise

    return frozenset(each.revision for each in ScriptDirectory.from_config(config).walk_revisions())


def unknown(revision: str | None, newest: str = HEAD) -> StoreUnavailable:
    """Return the refusal of a database at a *revision* that is none of ours."""
    return StoreUnavailable(
        f"the database is at revision {revision}, which this version does not know (its newest is {newest}): a newer "
        "version wrote it, or one that was never released. Start that version, or restore a backup from before it"
    )


@contextmanager
def connection_to(path: Path) -> Iterator[Connection]:
    """Open the SQLite file at *path* for Alembic, with the same settings as the store."""
    engine = create_engine(
        "sqlite://", creator=lambda: connect(path, StoreSettings(busy_timeout_seconds=30)), poolclass=NullPool
    )
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with closing(path.open("a")) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
