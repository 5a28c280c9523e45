"""Bring a database to the newest schema, also when several workers start at once."""

from __future__ import annotations

import fcntl
import importlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import URL, Connection, column, create_engine, delete, insert, inspect, make_url, select
from sqlalchemy import table as named
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool

from attestation.errors import StoreBusy, StoreUnavailable
from attestation.store.base import StoreSettings
from attestation.store.look import COLUMNS, demand_ours, look_at
from attestation.store.server import ASKED, Server
from attestation.store.sqlite import connect
from attestation.store.tables import SchemaSupportRow, table_of
from attestation.store.unusable import FORM, NO_DRIVER, demand_whole, place_on_server, unusable

if TYPE_CHECKING:
    from alembic.config import Config

HEAD = "0049"
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
            UNION ALL SELECT relname, 'constraint', conname, concat_ws(
                ' ', pg_get_constraintdef(pg_constraint.oid),
                (SELECT string_agg(DISTINCT tgenabled::text, '') FROM pg_trigger
                 WHERE tgconstraint = pg_constraint.oid)
            ) FROM ours JOIN pg_constraint ON conrelid = ours.oid
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
        besides: Names of tables that it takes beside those.
    """

    name: str
    scripts: str
    head: str
    tables: frozenset[str] = frozenset()
    besides: frozenset[str] = frozenset()

    @property
    def prefix(self) -> str:
        """Begins the names of its tables."""
        return f"extension_{self.name}_"

    @property
    def version_table(self) -> str:
        """Table that says at which of its revisions the database is."""
        return f"{self.prefix}version"


SUPPORT: Final = "schema_support"
"""The table that says which code may run here; older databases have none."""


def says_revision(table: str) -> bool:
    """Return True if *table* says at which revision our tables, or those of an extension, are."""
    return table == "alembic_version" or (table.startswith("extension_") and table.endswith("_version"))


_SUPPORT: Final = table_of(SchemaSupportRow)

LOCK_SECONDS: Final = 60
"""For so long a migration waits for another one, and for each lock of a table that a running service uses."""

_one_at_a_time = threading.Lock()  # Alembic keeps its context in module globals


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        hint = f"; for this file sqlite:///{url}" if url.startswith("/") else ""
        raise ValueError(f"{FORM}{hint}") from None
    if "@" in (parsed.host or ""):  # what comes before it is half a password, and hosts are told
        raise ValueError(f"an @ in a name or a password is written %40; {FORM}")
    return parsed


def is_postgresql(url: str) -> bool:
    """Return True if *url* names a database of PostgreSQL.

    Raises:
        ValueError: Not a URL, or one of PostgreSQL whose driver cannot be imported.
    """
    found = _parsed(url).get_backend_name() == "postgresql"
    if found:
        try:
            importlib.import_module("psycopg")
        except ImportError as e:
            raise ValueError(NO_DRIVER.format(error=" ".join(str(e).split()))) from e
    return found


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


def migrate(url: str) -> str | None:
    """Upgrade the database at *url* to the newest revision: all the way, or not at all.

    One process at a time is let in; the others find nothing left to do.

    Returns:
        The revision of a database that is newer than this code and says that this code may run on it, as during a
        rolling upgrade: nothing was done. Else None.

    Raises:
        ValueError: Not a URL of a database that we support.
        StoreUnavailable: The database cannot be opened or changed, or another version of the code, or another program,
            wrote it.
    """
    where = place(url)
    try:
        if isinstance(where, Path):
            if where.exists() and where.stat().st_size:
                with look_at(where, untouched=False) as found:
                    demand_ours(where, found.tables)
            where.touch(mode=0o600)  # the WAL beside it takes over its mode: tokens' hashes are nobody else's
        with _one_at_a_time, _alone(url) as connection:
            if not isinstance(where, Path):
                Server.of(connection.exec_driver_sql(ASKED).one()).demand_supported()
            demand_ours(where, frozenset(inspect(connection).get_table_names()))
            newer = None
            if (revision := _revision(connection)) != HEAD:
                if _run(_config(), connection, revision):
                    connection.commit()
                else:
                    newer = revision
            there = connection.exec_driver_sql(COLUMNS[connection.dialect.name])
            demand_whole(where, {(table, name) for table, name in there})
            return newer
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
        if _upgrade_branch(connection, branch):
            connection.commit()


def make_schema(connection: Connection, branches: Sequence[Branch]) -> None:
    """Bring the empty database of *connection*, which only this process uses, to the newest revisions; commit nothing.

    Raises:
        StoreUnavailable, Exception: See `migrate_branch`.
    """
    with _one_at_a_time:
        _run(_config(), connection, None)
        for branch in branches:
            _upgrade_branch(connection, branch)


def _upgrade_branch(connection: Connection, branch: Branch) -> bool:
    """Upgrade the tables of *branch*; return False where nothing was to be done. The caller commits."""
    if (revision := _revision(connection, branch.version_table)) == branch.head:
        return False
    before = _not_of(branch, connection)
    if not _run(_config(branch), connection, revision, branch):
        return False
    if strange := sorted({name for name, *_ in before ^ _not_of(branch, connection)}):
        raise StoreUnavailable(
            f"its revisions make or change {strange[0]}; its tables are called {branch.prefix}…"
        )
    if missing := sorted(branch.tables - set(inspect(connection).get_table_names())):
        raise StoreUnavailable(f"its revisions do not make {missing[0]}")
    if (now := _revision(connection, branch.version_table)) != branch.head:
        raise StoreUnavailable(f"its newest revision is {now}, not {branch.head}")
    return True


@contextmanager
def _as_owner() -> Iterator[None]:
    """Say what to do where the role of a server may not do what only the owner of the tables may.

    Raises:
        StoreUnavailable: It may not.
    """
    try:
        yield
    except DBAPIError as e:
        if getattr(e.orig, "sqlstate", None) == "42501":
            raise StoreUnavailable(
                "the schema of the database is older than this version, and the role of ITL_DB_URL may not change it: "
                "run `attestation-service db upgrade --grant-to ROLE`, with that role, as the owner of the tables, "
                "then start again"
            ) from e.orig
        raise


def _not_of(branch: Branch, connection: Connection) -> frozenset[tuple[str, ...]]:
    """Return what is there, and how it was made, that is none of *branch*."""
    return frozenset(
        row
        for row in catalogue(connection)
        if not row[0].startswith((branch.prefix, "sqlite_")) and row[0] not in branch.besides
    )


def catalogue(connection: Connection) -> frozenset[tuple[str, ...]]:
    """Return what there is: the table that it belongs to, its kind, its name, and how it was made."""
    return frozenset(tuple(row) for row in connection.exec_driver_sql(_DDL[connection.dialect.name]))


def _revision(connection: Connection, table: str = "alembic_version") -> str | None:
    """Return the revision that the database is at; None where it has none."""
    if not inspect(connection).has_table(table):
        return None
    return connection.scalars(select(column("version_num")).select_from(named(table))).one_or_none()


def _supports(connection: Connection, branch: str, revision: str) -> bool:
    """Return True if the schema, a newer one than ours, says that code with this newest *revision* may run on it."""
    if not inspect(connection).has_table(SUPPORT):
        return False
    mine = select(_SUPPORT).where(_SUPPORT.c.branch == branch, _SUPPORT.c.revision == revision)
    return connection.execute(mine).first() is not None


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


@_as_owner()
def _run(config: Config, connection: Connection, revision: str | None, branch: Branch | None = None) -> bool:
    """Run all revisions that *connection*'s database, which is at *revision*, has not seen; the caller commits.

    Alembic takes SQLite for a database whose schema is not under transactions, and would leave half a revision
    where one fails; so the transaction is ours.

    Returns:
        False where nothing was done: the database is newer, and says that this code may run on it.

    Raises:
        StoreUnavailable: There is no such revision here.
    """
    from alembic import command  # here, likewise

    name, head = ("", HEAD) if branch is None else (branch.name, branch.head)
    if revision is not None and revision not in _revisions(config):
        if _supports(connection, name, head):
            return False
        raise unknown(revision, None if branch is None else head)
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "sqlite" and not driver.in_transaction:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    _write_down_support(config, connection, name)
    return True


def _write_down_support(config: Config, connection: Connection, branch: str) -> None:
    """Tell which code may run on the schema that was just made: that of each revision since the newest contraction.

    A revision that takes away what older code uses says so by `works_with`, the oldest revision whose code does
    without it. All others expand (docs/extend/where-things-go.md).
    """
    from alembic.script import ScriptDirectory  # here, likewise

    newest_first = list(ScriptDirectory.from_config(config).walk_revisions())
    numbers = [each.revision for each in reversed(newest_first)]
    said = (getattr(each.module, "works_with", numbers[0]) for each in newest_first)
    oldest = max(map(numbers.index, said))
    connection.execute(delete(_SUPPORT).where(_SUPPORT.c.branch == branch))
    connection.execute(
        insert(_SUPPORT), [{"branch": branch, "revision": number} for number in numbers[oldest:]]
    )


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
        f"the database is at revision {revision}, which this version does not know (its newest is {newest or HEAD}), "
        "and it does not say that this version may run beside it: a newer version wrote it, or one that was never "
        "released. Start that version, or restore a backup from before it"
    )


def place(url: str) -> Path | str:
    """Return the file that *url* names, or what of the URL of a server may be told.

    Raises:
        ValueError: See `sqlite_path`.
    """
    parsed = _parsed(url)
    if is_postgresql(url):
        return place_on_server(parsed)
    return sqlite_path(url)


@contextmanager
def connection_to(url: str) -> Iterator[Connection]:
    """Open the database at *url* for Alembic, as the store does; what is not committed is undone."""
    where, settings = place(url), StoreSettings(busy_timeout_seconds=30)
    if isinstance(where, Path):
        engine = create_engine("sqlite://", creator=lambda: connect(where, settings), poolclass=NullPool)
    else:
        import psycopg  # here: who has SQLite need not have it

        from attestation.store.postgres import options

        engine = create_engine(
            "postgresql+psycopg://",
            creator=lambda: psycopg.connect(**options(url, settings)),
            poolclass=NullPool,
        )
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@contextmanager
def _alone(url: str) -> Iterator[Connection]:
    """As `connection_to`, one process at a time: by the lock of who writes, or that of a file beside the database."""
    where = place(url)
    if not isinstance(where, Path):
        from attestation.store.postgres import WRITE_LOCK  # here: who has SQLite need not have its driver

        with connection_to(url) as connection:
            limit = f"set_config('lock_timeout', '{LOCK_SECONDS * 1000:.0f}', true)"
            try:
                connection.exec_driver_sql(f"SELECT {limit}, pg_advisory_xact_lock({WRITE_LOCK})")
            except DBAPIError as e:
                if getattr(e.orig, "sqlstate", None) != "55P03":
                    raise
                raise StoreBusy(
                    f"another process has migrated {where}, or kept it locked, for {LOCK_SECONDS:g} s; nothing was "
                    "changed. Wait for it, or end it (pg_locks, locktype advisory, names it), then start again"
                ) from e
            yield connection
        return
    with closing(where.with_name(where.name + ".migrate-lock").open("a")) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with connection_to(url) as connection:
            yield connection
