"""Old and new code on one database: revisions expand what there is, or say which code they leave behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

from attestation.errors import StoreUnavailable
from attestation.store import migrate, open_store
from attestation.store.migrate import _DDL, HEAD, connection_to
from attestation.store.schema import SchemaContracted
from tests.fixtures.newer import after, newer_code
from tests.fixtures.stores import BACKENDS

FIRST = "0028"
"""Code of this revision and later asks a newer schema whether it may run on it."""

EXPANDS = (
    'op.create_table("of_tomorrow", sa.Column("id", sa.Text(), primary_key=True)); '
    'op.add_column("machines", sa.Column("of_tomorrow", sa.Text(), nullable=True)); '
    'op.create_index("ix_of_tomorrow", "machines", ["of_tomorrow"])'
)
CONTRACTS = 'op.drop_index("ix_machines_role_id", "machines")'
ANOTHER = """op.drop_table("machine_labels")
    op.create_table(
        "machine_labels",
        sa.Column("machine_id", sa.Text()),
        sa.Column("key", sa.Text()),
        sa.Column("value", sa.Integer()),
        sa.Column("who", sa.Text(), nullable=False),
        sa.CheckConstraint("value > 1", name="z"),
    )
"""


@pytest.fixture
def empty(request: pytest.FixtureRequest, backend: str, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if backend == "sqlite":
        yield f"sqlite:///{tmp_path}/empty.db"
    else:
        server = request.getfixturevalue("postgres_server")
        yield server.create("rolling")
        server.drop("rolling")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Name of a kind of database."""
    name: str = request.param
    return name


class Catalogue(NamedTuple):
    """What code that speaks to the tables depends on."""

    columns: Mapping[tuple[str, str], Mapping[str, Any]]
    indexes: frozenset[tuple[str, str]]
    rules: frozenset[tuple[str, str]]
    """What may refuse a row: constraints, unique indexes, triggers; each with its table."""


def catalogue(connection: Connection) -> Catalogue:
    """Read it."""
    look = inspect(connection)
    look.clear_cache()
    indexes = {
        (table, str(index["name"])): bool(index["unique"])
        for (_, table), found in look.get_multi_indexes().items()
        for index in found
    }
    constraints = {
        (table, str(sorted(map(str, rule.items()))))
        for found in (
            look.get_multi_check_constraints(),
            look.get_multi_unique_constraints(),
            look.get_multi_foreign_keys(),
        )
        for (_, table), rules in found.items()
        for rule in rules
    }
    rows = connection.exec_driver_sql(_DDL[connection.dialect.name])
    triggers = {(row[0], row[2]) for row in rows if row[1] in ("trigger", "rule")}
    return Catalogue(
        columns={
            (table, column["name"]): column
            for (_, table), found in look.get_multi_columns().items()
            for column in found
        },
        indexes=frozenset(indexes),
        rules=frozenset({*constraints, *triggers, *(name for name, unique in indexes.items() if unique)}),
    )


def breaks(old: Catalogue, new: Catalogue) -> list[str]:
    """Say what code that was written for *old* may stumble over in *new*."""
    tables = {table for table, _ in old.columns}
    found = [f"{table}.{name} is gone" for table, name in old.columns.keys() - new.columns.keys()]
    for (table, name), column in new.columns.items():
        before = old.columns.get((table, name))
        if before is None:
            if table in tables and not (column["nullable"] or column["default"] is not None):
                found.append(f"{table}.{name} is demanded of those who do not know it")
        elif str(before["type"]) != str(column["type"]):
            found.append(f"{table}.{name} is of another type")
        elif before["nullable"] and not column["nullable"]:
            found.append(f"{table}.{name} may not be empty any more")
        elif before["default"] is not None and column["default"] is None:
            found.append(f"{table}.{name} has no default any more")
    # Statements name indexes on SQLite (INDEXED BY), and conflicts name unique ones.
    found += [f"index {name} of {table} is gone" for table, name in old.indexes - new.indexes]
    found += [f"{table} refuses more: {rule}" for table, rule in new.rules - old.rules if table in tables]
    return found


def at(connection: Connection, revision: str) -> None:
    """Bring it to *revision*."""
    config = Config()
    config.set_main_option("script_location", "attestation.store:migrations")
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
    connection.commit()


def test_every_revision_expands_or_says_whom_it_leaves_behind(empty: str) -> None:
    """Run one after the other: what code of the revision before uses is there after it."""
    config = Config()
    config.set_main_option("script_location", "attestation.store:migrations")
    scripts = [*reversed(list(ScriptDirectory.from_config(config).walk_revisions()))]
    since = [each.revision for each in scripts].index(FIRST)
    with connection_to(empty) as connection:
        at(connection, scripts[since - 1].revision)
        before = catalogue(connection)
        for each in scripts[since:]:
            at(connection, each.revision)
            now = catalogue(connection)
            if (said := getattr(each.module, "works_with", None)) is None:
                assert breaks(before, now) == [], each.revision
            else:
                assert FIRST <= said <= each.revision
            before = now


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (EXPANDS, None),
        ('op.add_column("machines", sa.Column("x", sa.Text(), server_default="", nullable=False))', None),
        ('op.drop_table("machine_labels")', "machine_labels.key is gone"),
        ('op.alter_column("machine_labels", "value", new_column_name="text")', "machine_labels.value is gone"),
        (CONTRACTS, "index ix_machines_role_id of machines is gone"),
        ('op.create_index("x", "machine_labels", ["value"], unique=True)', "machine_labels refuses more: x"),
        (ANOTHER, "machine_labels.value is of another type"),
        (ANOTHER, "machine_labels.who is demanded of those who do not know it"),
        (ANOTHER, "machine_labels refuses more: "),
    ],
)  # fmt: skip
def test_the_rule_notices(empty: str, body: str, words: str | None) -> None:
    """What a revision takes away, demands or refuses of code that does not know it."""
    migrate(empty)
    with connection_to(empty) as connection:
        before = catalogue(connection)
    with newer_code((body, None)):
        migrate(empty)
    with connection_to(empty) as connection:
        told = "; ".join(sorted(breaks(before, catalogue(connection))))
    assert (words in told) if words else (told == "")


def test_a_trigger_is_noticed(empty: str, backend: str) -> None:
    """Also what refuses rows by a program."""
    migrate(empty)
    with connection_to(empty) as connection:
        before = catalogue(connection)
        made = {
            "sqlite": ("CREATE TRIGGER t BEFORE INSERT ON outbox BEGIN SELECT RAISE(ABORT, 'no'); END",),
            "postgresql": (
                "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
                "CREATE TRIGGER t BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION no()",
            ),
        }
        for statement in made[backend]:
            connection.exec_driver_sql(statement)
        assert breaks(before, catalogue(connection)) == ["outbox refuses more: t"]


def test_old_code_runs_beside_what_expands_and_not_beside_what_contracts(store_url: str) -> None:
    """It starts again with a warning's worth of words, changes nothing; and knows when its time is over."""
    with closing(open_store(store_url)) as store:
        with newer_code((EXPANDS, None)) as newer:
            assert migrate(store_url) is None
        assert migrate(store_url) == newer == after(HEAD)
        assert revision(store_url) == newer
        store.read_sync(lambda tx: tx.schema.demand(HEAD))
        with newer_code((EXPANDS, None), (CONTRACTS, after(HEAD))) as newest:
            assert migrate(store_url) is None
            # Code of the revision that it works with goes on.
        with newer_code((EXPANDS, None)):
            assert migrate(store_url) == newest
        with pytest.raises(
            StoreUnavailable, match=f"revision {newest}, .*does not say that this version may"
        ):
            migrate(store_url)
        assert revision(store_url) == newest
        with pytest.raises(SchemaContracted, match=f"newest revision is {HEAD}"):
            store.read_sync(lambda tx: tx.schema.demand(HEAD))


def revision(url: str) -> str:
    """Return what the database says."""
    with connection_to(url) as connection:
        found: str = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one()
    return found
