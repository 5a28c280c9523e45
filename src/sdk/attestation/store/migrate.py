"""Bring a database to the newest schema, also when several workers start at once."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from sqlalchemy import URL, Connection, column, create_engine, inspect, make_url, select
from sqlalchemy import table as table_of
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool

from attestation.errors import StoreUnavailable
from attestation.store.base import StoreSettings
from attestation.store.look import demand_ours, look_at
from attestation.store.sqlite import connect
from attestation.store.unusable import FORM, unusable

if TYPE_CHECKING:
    from alembic.config import Config

HEAD = "0027"
"""The newest revision under `migrations/versions`."""

_BEFORE_THE_FIRST: Final = frozenset({"0001", "0002", "0003", "0004", "0008"})
"""Revisions that became the first schema together with 0009, which is its name (docs/adr/0088)."""

_SCRIPTS: Final = "attestation.store:migrations"

_DDL: Final = MappingProxyType(
    {
        "sqlite": "SELECT tbl_name, type, name, sql FROM sqlite_schema",
        "postgresql": """
            WITH ours AS (
                SELECT * FROM pg_class
                WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
            )
            SELECT relname, 'relation', relname, concat_ws(' ', relkind, relpersistence, relrowsecurity) FROM ours
            WHERE relkind <> 'i'
            UNION ALL SELECT relname, 'column', attname, concat_ws(
                ' ', format_type(atttypid, atttypmod), attnotnull, attidentity, attgenerated,
                pg_get_expr(adbin, adrelid)
            ) FROM ours JOIN pg_attribute ON attrelid = ours.oid AND attnum > 0 AND NOT attisdropped
            LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum WHERE relkind <> 'i'
            UNION ALL SELECT relname, 'constraint', conname, pg_get_constraintdef(pg_constraint.oid)
            FROM ours JOIN pg_constraint ON conrelid = ours.oid
            UNION ALL SELECT tablename, 'index', indexname, indexdef FROM pg_indexes
            WHERE schemaname = current_schema()
            UNION ALL SELECT relname, 'trigger', tgname, concat(pg_get_triggerdef(pg_trigger.oid), tgenabled)
            FROM ours JOIN pg_trigger ON tgrelid = ours.oid AND NOT tgisinternal
            UNION ALL SELECT tablename, 'rule', rulename, definition FROM pg_rules
            WHERE schemaname = current_schema()
            UNION ALL SELECT proname, 'function', proname, prosrc FROM pg_proc
            WHERE pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
        """,
    }
)
"""What there is, each with the table that it belongs to and with what it was made."""


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


def _parsed(url: str) -> URL:
    try:
        return make_url(url)
    except ArgumentError:
        hint = f"; for this file sqlite:///{url}" if url.startswith("/") else ""
        raise ValueError(f"{FORM}{hint}") from None


def sqlite_path(url: str) -> Path:
    """Return the file that *url* names: `sqlite:///relative.db` or `sqlite:////absolute.db`.

    Raises:
        ValueError: No URL, another kind of database, or none that workers could share. Of the URL it repeats only a
            path: the rest may carry a password.
    """
    parsed = _parsed(url)
    if parsed.get_backend_name() != "sqlite":
        raise ValueError(f"no store for databases of kind {parsed.get_backend_name()!r}; {FORM}")
    if not parsed.database or parsed.database == ":memory:" or parsed.query:
        raise ValueError(f"the database must be a file, which workers can share; {FORM}")
    return Path(parsed.database)


def migrate(url: str) -> None:
    """Upgrade the database at *url* to the newest revision: all the way, or not at all.

    One process at a time is let in; the others find nothing left to do.

    Raises:
        ValueError: Not a URL of a database that we support.
        StoreUnavailable: The database cannot be opened or changed, or another version of the code, or another program,
            wrote it.
    """
    where = _where(url)
    try:
        if isinstance(where, Path):
            if where.exists() and where.stat().st_size:
                with look_at(where, untouched=False) as found:
                    demand_ours(where, found.tables)
            where.touch(mode=0o600)  # the WAL beside it takes over its mode: tokens' hashes are nobody else's
        with _one_at_a_time, _alone(url) as connection:
            demand_ours(where, frozenset(inspect(connection).get_table_names()))
            if (revision := _revision(connection)) != HEAD:
                _run(_config(), connection, revision)
                connection.commit()
    except (OSError, DBAPIError) as e:
        raise unusable(where, e.orig if isinstance(e, DBAPIError) else e) from e


def migrate_branch(url: str, branch: Branch) -> None:
    """Upgrade the tables of *branch* in the database at *url*, which was migrated.

    Raises:
        StoreUnavailable: The database cannot be opened; it is at another revision; or the revisions make other tables
            than they should, or change what is there, and then nothing was changed.
        Exception: Whatever its revisions raise; then nothing was changed.
    """
    with _one_at_a_time, _alone(url) as connection:
        if (revision := _revision(connection, branch.version_table)) == branch.head:
            return
        before = _not_of(branch, connection)
        _run(_config(branch), connection, revision, branch.head)
        if strange := sorted({name for name, *_ in before ^ _not_of(branch, connection)}):
            raise StoreUnavailable(
                f"its revisions make or change {strange[0]}; its tables are called {branch.prefix}…"
            )
        if missing := sorted(branch.tables - set(inspect(connection).get_table_names())):
            raise StoreUnavailable(f"its revisions do not make {missing[0]}")
        if (now := _revision(connection, branch.version_table)) != branch.head:
            raise StoreUnavailable(f"its newest revision is {now}, not {branch.head}")
        connection.commit()


def _not_of(branch: Branch, connection: Connection) -> frozenset[tuple[str, ...]]:
    """Return what is there, and how it was made, that is none of *branch*."""
    rows = connection.exec_driver_sql(_DDL[connection.dialect.name])
    return frozenset(tuple(row) for row in rows if not row[0].startswith((branch.prefix, "sqlite_")))


def _revision(connection: Connection, table: str = "alembic_version") -> str | None:
    """Return the revision that the database is at; None where it has none."""
    if not inspect(connection).has_table(table):
        return None
    return connection.scalars(select(column("version_num")).select_from(table_of(table))).one_or_none()


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


def _run(config: Config, connection: Connection, revision: str | None, newest: str | None = None) -> None:
    """Run all revisions that *connection*'s database, which is at *revision*, has not seen; the caller commits.

    Alembic takes SQLite for a database whose schema is not under transactions, and would leave half a revision
    where one fails; so the transaction is ours.

    Raises:
        StoreUnavailable: There is no such revision here.
    """
    from alembic import command  # here, likewise

    if revision is not None and revision not in _revisions(config):
        raise unknown(revision, newest)
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def known_revisions() -> frozenset[str]:
    """Return the revisions that this version can migrate from, and the newest."""
    return _revisions(_config())


def _revisions(config: Config) -> frozenset[str]:
    from alembic.script import ScriptDirectory  # here, likewise

    return frozenset(each.revision for each in ScriptDirectory.from_config(config).walk_revisions())


def unknown(revision: str | None, newest: str | None = None) -> StoreUnavailable:
    """Return the refusal of a database at a *revision* that is none of ours, or none of a branch up to *newest*."""
    if newest is None and revision in _BEFORE_THE_FIRST:
        return StoreUnavailable(
            f"the database is at revision {revision}, and this version upgrades from 0009 on. Start a version with it "
            "whose newest revision is 0009 to 0024, then this one"
        )
    return StoreUnavailable(
        f"the database is at revision {revision}, which this version does not know (its newest is {newest or HEAD}): a "
        "newer version wrote it, or one that was never released. Start that version, or restore a backup from before it"
    )


def _where(url: str) -> Path | str:
    """Return the file that *url* names, or what of the URL of a server may be told.

    Raises:
        ValueError: See `sqlite_path`.
    """
    parsed = _parsed(url)
    if parsed.get_backend_name() == "postgresql":
        return f"{parsed.database} at {parsed.host or 'this computer'}"
    return sqlite_path(url)


@contextmanager
def connection_to(url: str) -> Iterator[Connection]:
    """Open the database at *url* for Alembic, as the store does; what is not committed is undone."""
    where, settings = _where(url), StoreSettings(busy_timeout_seconds=30)
    if isinstance(where, Path):
        engine = create_engine("sqlite://", creator=lambda: connect(where, settings), poolclass=NullPool)
    else:
        engine = create_engine(
            _parsed(url).set(drivername="postgresql+psycopg"),
            connect_args={"connect_timeout": 10},
            poolclass=NullPool,
        )
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@contextmanager
def _alone(url: str) -> Iterator[Connection]:
    """As `connection_to`, one process at a time: by the lock of who writes, or that of a file beside the database."""
    where = _where(url)
    if not isinstance(where, Path):
        from attestation.store.postgres import WRITE_LOCK  # here: who has SQLite need not have its driver

        with connection_to(url) as connection:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITE_LOCK})")
            yield connection
        return
    with closing(where.with_name(where.name + ".migrate-lock").open("a")) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with connection_to(url) as connection:
            yield connection
