"""Statements that somebody else thought of: they read, end in time, have no effect and stand in nobody's way."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attestation.errors import QueriesBusy, QueryFailed, QueryTimeout, StoreUnavailable
from attestation.store import Found, LookUp, Store, StoreSettings, Tx, migrate, open_store
from tests.contract.store_samples import a_machine

IDS = frozenset({("machines", "machine_id"), ("machines", "id")})
NAMES = LookUp(
    sql="SELECT machine_id FROM machines ORDER BY id DESC",
    parameters={},
    columns=1,
    reads=IDS,
    functions=frozenset({"count", "lower"}),
    rows=1000,
    size_bytes=1 << 20,
    seconds=60,
)
COUNT = "SELECT count(*) FROM machines AS a, machines AS b, machines AS c, machines AS d, machines AS e"
ENDLESS = replace(NAMES, sql=f"{COUNT}, machines AS f, machines AS g", seconds=0.5)
"""Of a hundred machines, 10^14 rows: years."""


def looked_up(store: Store, wanted: LookUp) -> Found:
    return asyncio.run(store.look_up(wanted))


def filled(store: Store, machines: int) -> None:
    def work(tx: Tx) -> None:
        for number in range(1, machines + 1):
            tx.machines.add(a_machine(number))

    store.write_sync(work)


def _on_sqlite(folder: Path, **settings: Any) -> Store:
    url = f"sqlite:///{folder}/store.db"
    migrate(url)
    return open_store(url, StoreSettings(**settings))


def placeholder(store: Store) -> str:
    return ":wanted" if store.dialect == "sqlite" else "%(wanted)s"


def test_what_is_looked_up_comes_in_its_order(store: Store) -> None:
    """And values are bound."""
    filled(store, 3)
    assert [row[0] for row in looked_up(store, NAMES).rows] == [a_machine(n).machine_id for n in (3, 2, 1)]
    one = replace(
        NAMES,
        sql=f"SELECT machine_id, id FROM machines WHERE machine_id = {placeholder(store)}",
        parameters={"wanted": a_machine(2).machine_id},
        columns=2,
    )
    assert looked_up(store, one) == Found(rows=[(a_machine(2).machine_id, 2)], is_cut=False)
    assert looked_up(store, replace(one, parameters={"wanted": "' OR '1' = '1"})).rows == []


def test_what_is_more_than_asked_for_is_cut_and_said(store: Store) -> None:
    """By rows, and by bytes: no answer is longer than who asked can take."""
    filled(store, 10)
    assert looked_up(store, replace(NAMES, rows=10)) == replace(looked_up(store, NAMES), is_cut=False)
    few = looked_up(store, replace(NAMES, rows=4))
    assert few.is_cut
    assert [row[0] for row in few.rows] == [a_machine(n).machine_id for n in (10, 9, 8, 7)]
    short = looked_up(store, replace(NAMES, size_bytes=3 * 36))
    assert short.is_cut
    assert short.rows == few.rows[:3]


@pytest.mark.threat("T262")
def test_what_takes_too_long_is_ended_and_the_next_one_is_answered(store: Store) -> None:
    """Within its time, by whoever runs it; the connection that it had goes on."""
    filled(store, 100)
    for _ in range(3):  # each connection has its turn
        began = time.monotonic()
        with pytest.raises(QueryTimeout, match=r"not done within 0\.5 s and was ended"):
            looked_up(store, ENDLESS)
        assert time.monotonic() - began < 60  # of a busy machine; it would take years
        assert len(looked_up(store, NAMES).rows) == 100


@pytest.mark.threat("T262")
def test_two_run_at_once_and_a_third_is_told_so(store: Store) -> None:
    """It does not wait: it would be late anyway. Once one has ended, the next is begun."""

    async def main() -> None:
        running = [asyncio.ensure_future(store.look_up(replace(ENDLESS, seconds=1))) for _ in range(2)]
        await asyncio.sleep(0)  # they are begun
        with pytest.raises(QueriesBusy, match="2 queries are running already"):
            await store.look_up(NAMES)
        assert [type(each) for each in await asyncio.gather(*running, return_exceptions=True)] == [
            QueryTimeout
        ] * 2
        assert len((await store.look_up(NAMES)).rows) == 100

    filled(store, 100)
    asyncio.run(main())


@pytest.mark.threat("T262")
def test_no_read_and_no_write_waits_for_one(store: Store) -> None:
    """They have threads and connections of their own."""

    async def main() -> None:
        running = [asyncio.ensure_future(store.look_up(replace(ENDLESS, seconds=3))) for _ in range(2)]
        await asyncio.sleep(0)  # they are begun
        await store.write(lambda tx: tx.machines.add(a_machine(101)))
        assert await store.read(lambda tx: tx.machines.by_id(a_machine(101).machine_id)) is not None
        assert not any(each.done() for each in running)
        await asyncio.gather(*running, return_exceptions=True)

    filled(store, 100)
    asyncio.run(main())


@pytest.mark.threat("T261")
@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM machines RETURNING machine_id",
        "SELECT 'a'; DELETE FROM machines",
        "SELECT 'a') AS x; DELETE FROM machines; --",
    ],
)
def test_nothing_is_written(store: Store, sql: str) -> None:
    """Whatever the statement is."""
    filled(store, 1)
    with pytest.raises((QueryFailed, StoreUnavailable)):
        looked_up(store, replace(NAMES, sql=sql))
    assert len(looked_up(store, NAMES).rows) == 1


@pytest.mark.threat("T261")
def test_a_writing_transaction_is_refused_by_the_database_itself(store: Store) -> None:
    """Also where the statement hides the writing in something that reads."""
    writes = (
        "SELECT machine_id FROM machines UNION SELECT nextval('machines_id_seq')::text"
        if store.dialect == "postgresql"
        else "SELECT machine_id FROM machines UNION SELECT load_extension('x')"
    )
    with pytest.raises((QueryFailed, StoreUnavailable)):
        looked_up(store, replace(NAMES, sql=writes))


@pytest.mark.threat("T261")
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT token_sha256 FROM config_tokens",
        "SELECT ek_public FROM machines",
        "SELECT name FROM sqlite_master",
        "SELECT count(*) FROM config_tokens",
        "SELECT name FROM pragma_table_info('machines')",
        "SELECT upper(machine_id) FROM machines",
        "SELECT load_extension('/tmp/x')",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n LIMIT 3",
    ],
)
def test_sqlite_reads_and_calls_nothing_that_is_not_listed(tmp_path: Path, sql: str) -> None:
    """Behind the compiler, which knows no such names, stands the database."""
    store = _on_sqlite(tmp_path)
    try:
        with pytest.raises(QueryFailed, match=r"may not read|not authorized|prohibited"):
            looked_up(store, replace(NAMES, sql=sql))
        assert looked_up(store, NAMES).rows == []
    finally:
        store.close()


@pytest.mark.threat("T262")
def test_a_value_that_grows_is_refused(store: Store) -> None:
    """Twenty doublings would fill the memory of a worker."""
    doubled = "machine_id"
    for _ in range(15):
        doubled = f"({doubled} || {doubled})"
    filled(store, 1)
    with pytest.raises(QueryFailed, match="does not compute this"):
        looked_up(store, replace(NAMES, sql=f"SELECT {doubled} FROM machines", size_bytes=1 << 22))


def test_a_function_of_ours_ends_in_time_too(tmp_path: Path) -> None:
    """On SQLite: what it takes is not the database's to measure."""
    begun = []

    def slow(text: str) -> str:
        begun.append(text)
        time.sleep(0.05)
        return text

    store = _on_sqlite(tmp_path, functions={"slow": (1, slow)})
    try:
        filled(store, 100)
        with pytest.raises(QueryTimeout):
            looked_up(store, replace(NAMES, sql="SELECT slow(machine_id) FROM machines", seconds=0.5))
        assert len(begun) < 100
        few = replace(NAMES, sql="SELECT slow(machine_id) FROM machines LIMIT 2")
        assert len(looked_up(store, few).rows) == 2
    finally:
        store.close()


@pytest.mark.threat("T262")
def test_functions_of_ours_leave_the_interpreter_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite calls them without end: now and then they let go of it, so that who attests does not wait for them."""
    let_go: list[float] = []
    monkeypatch.setattr("attestation.store.lookups_sqlite._HOLD_SECONDS", 0.0)
    monkeypatch.setattr("attestation.store.lookups_sqlite.time.sleep", let_go.append)
    store = _on_sqlite(tmp_path, functions={"same": (1, lambda value: value)})
    try:
        filled(store, 20)
        let_go.clear()
        looked_up(store, replace(NAMES, sql="SELECT same(machine_id) FROM machines"))
    finally:
        store.close()
    assert len(let_go) > 10
    assert all(seconds > 0 for seconds in let_go)


def test_a_closed_store_looks_nothing_up(store: Store) -> None:
    """Its callers are told."""
    store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        looked_up(store, NAMES)
