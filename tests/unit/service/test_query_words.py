"""Every word of the language through the look-up of both databases, over the tables that there are.

Queries are made of the tables of the language: a new function is tried without anybody writing a test. What SQLite may
call stands in `query/columns.py`, by hand: made of what the compiler writes it would believe what it is there to check.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from attestation.store import LookUp, Store, StoreSettings, migrate, open_store
from attestation_service import kql
from attestation_service.context.identity import Right
from attestation_service.kql import Catalog, Kind, QueryInvalid
from attestation_service.kql.aggregates import AGGREGATES
from attestation_service.kql.functions import FUNCTIONS
from attestation_service.kql.operators.table import OPERATORS
from attestation_service.kql.sql import Function
from attestation_service.query import catalog
from attestation_service.query.columns import BUILT_IN, Dialect
from tests.contract.store_samples import a_full_machine, a_machine, a_result
from tests.fixtures.stores import BACKENDS, on_server

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ROWS = (
    "Machines | project s = hostname, b = ek_chain_ok, i = toint(reset_count), n = reset_count,"
    " r = toreal(reset_count), d = registered_at, t = age, j = labels"
)
OF_KIND = {
    Kind.STRING: ("s", "'a b'"),
    Kind.BOOL: ("b", "true"),
    Kind.INT: ("i", "int(2)"),
    Kind.LONG: ("n", "3"),
    Kind.REAL: ("r", "1.5"),
    Kind.DATETIME: ("d", "datetime(2026-01-31)"),
    Kind.TIMESPAN: ("t", "2h"),
    Kind.DYNAMIC: ("j", 'dynamic({"a": [1]})'),
}
"""A column of each kind, and a literal."""

STAGES = {
    "where": ["where b", "where s in (Machines | project hostname)"],
    "take": ["take 2"],
    "sort": [f"sort by {column} {way}" for column, _ in OF_KIND.values() for way in ("asc", "desc nulls first")
             if column != "j"],
    "top": ["top 2 by s", "top 2 by d asc"],
    "count": ["count"],
    "distinct": ["project-away j | distinct *", "distinct s, t"],
    "project": ["project s, x = -n", "project j.a, j['a'], j[0], j[-1], tostring(j.a.b)"],
    "project-away": ["project-away s, j*"],
    "project-keep": ["project-keep s*"],
    "project-rename": ["project-rename x = s"],
    "project-reorder": ["project-reorder t, r"],
    "extend": ["extend x = 1, s = tolower(s)"],
    "summarize": ["summarize by s", "summarize count() by bin(d, 1h), b", "summarize sum(n) / count(), max(t)"],
    "join": [
        *(f"join kind={kind} (Machines | project s = hostname) on s"
          for kind in ("innerunique", "inner", "leftouter", "leftsemi", "leftanti")),
        "join (Machines | project x = hostname, n = restart_count) on $left.s == $right.x, n",
    ],
    "union": ["union kind=inner withsource=from (Machines | project s = machine_id)",
              "union (Attestations | project s = verdict)"],
    "render": ["render timechart with (title = 'x')"],
}  # fmt: skip
"""Each operator of pipelines, in each of its shapes."""


def written(function: Function, values: Sequence[str]) -> str:
    """Write a call, or an operator with its operands."""
    name = function.name
    if name in ("-1", "+1"):
        return f"{name[0]}({values[0]})"
    if not function.is_operator or name == "not":
        return f"{name}({', '.join(values)})"
    left, *right = values
    if "between" in name:
        return f"({left} {name} ({right[0]} .. {right[1]}))"
    return f"({left} {name} ({', '.join(right)}))" if function.repeated else f"({left} {name} {right[0]})"


def calls(function: Function, seen: Catalog) -> list[str]:
    """Return calls of a function, of all kinds that it takes: of columns, of literals, of a column and literals."""
    full = len(function.parameters)
    found = []
    for parameters in (
        *(function.parameters[:some] for some in range(full - function.optional, full + 1)),
        *([(*function.parameters, *function.parameters[-function.repeated :])] if function.repeated else []),
    ):
        for kinds in _kinds([each.kinds for each in parameters]):
            for first, others in ((0, 0), (0, 1), (1, 1))[: 3 if kinds else 1]:
                values = [OF_KIND[kind][first if n == 0 else others] for n, kind in enumerate(kinds)]
                call = written(function, values)
                if call not in found and is_query(f"{ROWS} | project x = {call}", seen):
                    found.append(call)
    return found


def _kinds(taken: Sequence[frozenset[Kind]]) -> Iterator[tuple[Kind, ...]]:
    """Yield kinds of arguments: of the first two each with each, of later ones that of the one before if it can be."""
    for chosen in product(*(sorted(each) for each in taken[:2])):
        rest = list(chosen)
        for each in taken[2:]:
            rest.append(rest[-1] if rest[-1] in each else min(each))
        yield tuple(rest)


def is_query(text: str, seen: Catalog) -> bool:
    """Tell whether a text is one."""
    try:
        kql.analyse(text, seen, at=AT)
    except QueryInvalid:
        return False
    return True


def in_pieces(made: Sequence[str], size: int = 12) -> Iterator[Sequence[str]]:
    """Yield so many at a time."""
    for begin in range(0, len(made), size):
        yield made[begin : begin + size]


def of_functions(seen: Catalog) -> dict[str, list[str]]:
    """Return queries by function."""
    return {
        function.name: [
            f"{ROWS} | project {', '.join(f'x{n} = {call}' for n, call in enumerate(piece))}"
            for piece in in_pieces(calls(function, seen))
        ]
        for function in FUNCTIONS.values()
    }


def of_aggregates(seen: Catalog) -> dict[str, list[str]]:
    """Return queries by aggregate: of each kind, of groups and of all, in an order and in none."""
    found: dict[str, list[str]] = {}
    for each in AGGREGATES.values():
        arguments = [""] if each.kinds is None else [OF_KIND[kind][0] for kind in sorted(each.kinds)]
        further = (", *", ", s, n") if each.picks else ("",)
        found[each.name] = [
            text
            for argument, more, order, by in product(
                arguments, further, ("", "| sort by s asc "), ("", " by b")
            )
            if is_query(text := f"{ROWS} {order}| summarize {each.name}({argument}{more}){by}", seen)
        ]
    return found


def of_operators() -> dict[str, list[str]]:
    """Return queries by operator of pipelines."""
    return {name: [f"{ROWS} | {stage}" for stage in stages] for name, stages in STAGES.items()}


def of_tables(seen: Catalog) -> dict[str, list[str]]:
    """Return a query of each table, of all its columns."""
    return {name: [seen[name].name] for name in seen}


def every_query(seen: Catalog) -> dict[str, list[str]]:
    """Return all of them, by the word that they try."""
    return {**of_functions(seen), **of_aggregates(seen), **of_operators(), **of_tables(seen)}


@pytest.fixture(params=BACKENDS)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A store of either kind, as the service opens it, with something in it."""
    if request.param == "postgresql":
        with on_server(request.getfixturevalue("postgres_server")) as made:
            yield from _filled(made())
    else:
        yield from _filled(f"sqlite:///{request.getfixturevalue('tmp_path')}/store.db")


def _filled(url: str) -> Iterator[Store]:
    migrate(url)
    made = open_store(url, StoreSettings(functions=kql.FUNCTIONS))
    try:
        made.write_sync(lambda tx: tx.machines.add(a_full_machine(7)))
        made.write_sync(lambda tx: tx.machines.add(a_machine()))
        made.write_sync(lambda tx: tx.results.add(a_machine().machine_id, a_result()))
        yield made
    finally:
        made.close()


def seen_on(dialect: Dialect) -> Catalog:
    """Return all tables."""
    return catalog.catalog(frozenset(Right), AT, dialect=dialect)


def test_each_operator_of_pipelines_is_tried() -> None:
    """Who adds one says here how it is written."""
    assert set(STAGES) == {name for name, each in OPERATORS.items() if name == each.name}


@pytest.mark.anyio
async def test_every_word_is_looked_up(store: Store) -> None:
    """None asks for what the look-up refuses, or for what the database does not compute."""
    seen = seen_on(store.dialect)
    for word, queries in every_query(seen).items():
        assert queries, f"nothing tries {word}"
        for query in queries:
            plan = kql.analyse(query, seen, at=AT + timedelta(days=1))
            statement = kql.compiled(plan, store.dialect, rows=100)
            await store.look_up(
                LookUp(
                    sql=statement.sql,
                    parameters=statement.parameters,
                    columns=len(plan.columns),
                    reads=catalog.reads(seen, plan.tables) | {(part, "") for part in statement.parts},
                    functions=BUILT_IN,
                    rows=100,
                    size_bytes=1 << 20,
                    seconds=30,
                )
            )


@pytest.mark.threat("T261")
def test_nothing_is_let_through_that_no_query_calls() -> None:
    """SQLite's own functions that may be called are those that some query calls."""
    seen, called = seen_on("sqlite"), set[str]()

    def notes(
        what: int, _one: str | None, two: str | None, _database: str | None, _within: str | None
    ) -> int:
        if what == sqlite3.SQLITE_FUNCTION and two is not None:
            called.add(two)
        return sqlite3.SQLITE_OK

    connection = sqlite3.connect(":memory:")
    try:
        for name, (arguments, compute) in kql.FUNCTIONS.items():
            connection.create_function(name, arguments, compute, deterministic=True)
        for table in {column.table for name in seen for column in catalog.columns_of(seen[name])}:
            columns = ", ".join(f'"{column.name}"' for column in table.columns)
            connection.execute(f'CREATE TABLE "{table.name}" ({columns})')
        connection.set_authorizer(notes)
        for queries in every_query(seen).values():
            for query in queries:
                statement = kql.compiled(kql.analyse(query, seen, at=AT), "sqlite", rows=100)
                connection.execute(f"EXPLAIN {statement.sql}", statement.parameters)
    finally:
        connection.close()
    assert called - kql.FUNCTIONS.keys() == BUILT_IN
