"""Every revision keeps the rows that it finds: those of each table of its time, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Boolean, Column, Connection, Integer, LargeBinary, MetaData, Table, select

from attestation.store.migrate import HEAD, connection_to
from attestation.store.tables import Base
from tests.fixtures.filled import ONE_OF
from tests.unit.store.test_migrate import all_rows, databases, left_at_0009, revision_of
from tests.unit.store.test_rolling_upgrade import at

__all__ = ["databases"]

Rows = dict[str, list[dict[str, Any]]]

RENAMED = {"deliveries": "handovers"}
GONE = {("machines", "redeliver"), ("attestation_results", "boot_state_appraised")}
"""Columns that became others; tests/unit/store/test_migrate.py looks at what they became."""
SET = {("machines", "cluster_id"), ("machines", "alarm")}
"""What a revision set anew: 0011 parted what a machine has from what it should have, 0014 told of keys in two chips."""


def tables(connection: Connection) -> list[Table]:
    """Return what there is, without what tells of the schema."""
    found = MetaData()
    found.reflect(connection)
    return [each for each in found.sorted_tables if each.name not in ("alembic_version", "schema_support")]


def fill(connection: Connection, there: list[Table]) -> None:
    """Put a row into each table that has none, every column of it set."""
    for table in there:
        if connection.execute(select(table).limit(1)).first() is None:
            connection.execute(
                table.insert(), {each.name: _value(connection, each) for each in table.columns}
            )
    connection.commit()


def _value(connection: Connection, column: Column[Any]) -> Any:
    for key in column.foreign_keys:
        return connection.scalars(select(key.column).order_by(key.column)).first()
    if isinstance(column.type, Boolean):
        return True
    if (word := ONE_OF.get((column.table.name, column.name))) is not None:
        return word
    return (
        1 if isinstance(column.type, Integer) else b"\0\xff" if isinstance(column.type, LargeBinary) else "{}"
    )


def rows(connection: Connection, there: list[Table]) -> Rows:
    """Return every row, by table."""
    return {
        each.name: [row._asdict() for row in connection.execute(select(each).order_by(*each.primary_key))]
        for each in there
    }


def lost(before: Rows, now: Rows) -> Iterator[str]:
    """Say what of *before* is not there *now*, or is another."""
    for table, old in before.items():
        new = now.get(RENAMED.get(table, table) if table not in now else table)
        if new is None or len(new) != len(old):
            yield f"{table}: {len(old)} rows became {new and len(new)}"
            continue
        for was, there in zip(old, new, strict=True):
            for column, value in was.items():
                known = SET if column in there else GONE
                if (table, column) not in known and there.get(column) != value:
                    yield f"{table}.{column}: {value!r} became {there.get(column)!r}"


def test_every_revision_keeps_every_row(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> None:
    """One after the other, each with a row in each table that it finds; in the end both databases hold the same."""
    file = tmp_path_factory.mktemp("revisions") / "m.db"
    left_at_0009(file)
    urls = (f"sqlite:///{file}", request.getfixturevalue("databases")())
    revision_of(urls[1], "0009")
    with connection_to(urls[0]) as old, connection_to(urls[1]) as new:
        for table in tables(old):
            new.execute(table.insert(), [row._asdict() for row in old.execute(table.select())])
        new.commit()
    config = Config()
    config.set_main_option("script_location", "attestation.store:migrations")
    revisions = [each.revision for each in ScriptDirectory.from_config(config).walk_revisions()][::-1]
    for url in urls:
        with connection_to(url) as connection:
            before: Rows = {}
            for revision in revisions:
                at(connection, revision)
                there = tables(connection)
                assert [*lost(before, rows(connection, there))] == [], revision
                fill(connection, there)
                before = rows(connection, there)
            assert all(before.values())
    assert revisions[-1] == HEAD
    for name in Base.metadata.tables.keys() - {"database_identity"}:
        assert all_rows(urls[0], name) == all_rows(urls[1], name), name
