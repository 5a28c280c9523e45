"""Queries judged by duckdb-kql, which does not share our code: the same rows on SQLite, on PostgreSQL and there.

What it does otherwise than Microsoft documents stands in `tests/fixtures/pipelines.py`, with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import duckdb
import duckdb_kql
import pytest
from hypothesis import Phase, given, settings

from attestation_service.kql import Kind, times
from tests.fixtures.pipelines import expressions, pipelines
from tests.fixtures.postgres import Server
from tests.fixtures.queries import COLUMNS, ROWS, Run, on_postgresql, on_sqlite, plan

LONG = 20 if os.environ.get("TESTS_LONG") else 1
"""Each example takes the judge a twentieth of a second, most of it for its parser."""

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""Not made smaller: that would ask the judge for minutes."""

_TYPES = {
    Kind.BOOL: "BOOLEAN",
    Kind.INT: "INTEGER",
    Kind.LONG: "BIGINT",
    Kind.REAL: "DOUBLE",
    Kind.STRING: "VARCHAR",
    Kind.DATETIME: "TIMESTAMP",
    Kind.TIMESPAN: "INTERVAL",
    Kind.DYNAMIC: "JSON",
}


@pytest.fixture(scope="module")
def sqlite() -> Iterator[Run]:
    """Queries on SQLite."""
    with on_sqlite() as run:
        yield run


@pytest.fixture(scope="module")
def postgresql(postgres_server: Server) -> Iterator[Run]:
    """Queries on PostgreSQL."""
    with on_postgresql(postgres_server.create("kql_duckdb")) as run:
        yield run
    postgres_server.drop("kql_duckdb")


@pytest.fixture(scope="module")
def judge() -> Iterator[Callable[[str], list[tuple[Any, ...]]]]:
    """Queries at the judge, whose connection reaches nothing outside from its first moment on."""
    with duckdb.connect(config={"enable_external_access": "false"}) as connection:
        columns = ", ".join(f"{name} {_TYPES[kind]}" for name, kind in COLUMNS.items())
        connection.execute(f"CREATE TABLE T ({columns})")
        marks = ", ".join("to_microseconds(?)" if kind is Kind.TIMESPAN else "?" for kind in COLUMNS.values())
        connection.executemany(f"INSERT INTO T VALUES ({marks})", [_stored(row) for row in ROWS])
        yield lambda text: duckdb_kql.query(connection, text).fetchall()


def _stored(row: tuple[Any, ...]) -> list[Any]:
    """Return a row as the judge keeps it; no text is null."""
    kept = []
    for kind, value in zip(COLUMNS.values(), row, strict=True):
        if kind is Kind.STRING:
            kept.append(value or "")
        elif kind is Kind.DATETIME and value is not None:
            kept.append(times.print_datetime(value, digits=6).removesuffix("Z"))
        else:
            kept.append(value)
    return kept


def _comparable(kind: Kind, value: Any) -> Any:
    """Make one value of what is the same in both: a text that is missing is empty, reals have twelve digits."""
    if kind is Kind.STRING:
        return value or ""
    if value is None or value != value:  # no number: the mean of nothing
        return "null"
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")
    return f"{float(value) + 0.0:.12g}" if kind is Kind.REAL else value


def _rows(kinds: list[Kind], rows: Any) -> list[str]:
    return sorted(
        repr([_comparable(kind, value) for kind, value in zip(kinds, row, strict=True)]) for row in rows
    )


Judge = Callable[[str], list[tuple[Any, ...]]]


def _agree(text: str, sqlite: Run, postgresql: Run, judge: Judge) -> None:
    kinds = [column.kind for column in plan(text).columns]
    expected = _rows(kinds, judge(text))
    assert _rows(kinds, sqlite(text)) == expected
    assert _rows(kinds, postgresql(text)) == expected


@pytest.mark.slow
@settings(max_examples=60 * LONG, phases=PHASES)
@given(text=expressions(count=30))
def test_expressions(sqlite: Run, postgresql: Run, judge: Judge, text: str) -> None:
    """Eighteen hundred expressions a run, 30 at a time, for each of seven rows."""
    _agree(text, sqlite, postgresql, judge)


@pytest.mark.slow
@settings(max_examples=120 * LONG, phases=PHASES)
@given(text=pipelines())
def test_pipelines(sqlite: Run, postgresql: Run, judge: Judge, text: str) -> None:
    """What operators make of one another's rows."""
    _agree(text, sqlite, postgresql, judge)
