"""Queries: each caller asks what they may see, and nothing else; bounded, recorded, kept under a name."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
from sqlalchemy import LargeBinary, literal, select

from attestation.extension import QueryTable
from attestation.machines import Trust
from attestation.results import Verdict
from attestation.store import Found, LookUp, Tx
from attestation.store.lookups import VALUE_BYTES
from attestation.store.lookups_postgres import PostgresLooker
from attestation.store.lookups_sqlite import SQLiteLooker
from attestation.store.tables import Base, MachineRow, OutboxRow, table_of
from attestation_service import kql
from attestation_service.auth import Duty
from attestation_service.context.identity import Right
from attestation_service.kql import postgresql, sql
from attestation_service.query import catalog, handlers, saved
from attestation_service.query.views import views
from tests.contract.store_samples import (
    NOW,
    a_full_machine,
    a_machine,
    a_registration_token,
    a_result,
)
from tests.docs.pages import text
from tests.fixtures.stores import BACKENDS, on_server
from tests.unit.service.conftest import CANARY, TOKEN, Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.people import People, introduce
from tests.unit.service.test_registration import code

pytestmark = pytest.mark.anyio

OPERATOR, VIEWER, AUDITOR = (frozenset({duty}) for duty in (Duty.OPERATOR, Duty.VIEWER, Duty.AUDITOR))
EVERY = frozenset(Right)
ENDLESS = " ".join(
    [
        "let every = Machines | extend one = 1;",
        "every",
        *["| join kind=inner (every | project one) on one | project one"] * 4,
        "| count",
    ]
)


@dataclass
class Asking:
    """A service that knows people, and what they ask it."""

    service: Service
    people: People

    async def __call__(
        self, method: str, path: str, who: frozenset[Duty], body: Any = None
    ) -> httpx.Response:
        """Ask as somebody with these duties."""
        name = "-".join(sorted(who))
        headers = self.people.headers(name, *who)
        return await self.service.http.request(method, f"/api/v1/query{path}", headers=headers, json=body)

    async def rows(self, query: str, who: frozenset[Duty] = OPERATOR, **more: Any) -> list[list[Any]]:
        """Return the rows of a query that is answered."""
        answer = await self("POST", "", who, {"query": query, **more})
        assert answer.status_code == 200, f"{query}: {answer.text}"
        found: list[list[Any]] = answer.json()["rows"]
        return found


@pytest.fixture(params=BACKENDS)
async def asking(request: pytest.FixtureRequest, start: Starter) -> AsyncIterator[Asking]:
    """A service on either database."""
    changed: dict[str, Any] = {"tpm_ca_bundle_dir": start.bundle()}
    made = None
    if request.param == "postgresql":
        made = on_server(request.getfixturevalue("postgres_server"))
        changed["db_url"] = made.__enter__()()
    service = await start(**changed)
    resources, people = introduce(service.resources)
    service.app.state.resources = resources
    yield Asking(service, people)
    if made is not None:
        await start.stack.aclose()
        made.__exit__(None, None, None)


@pytest.fixture
async def on_sqlite(start: Starter) -> Asking:
    """The same on SQLite alone, where the database makes no difference."""
    service = await start(tpm_ca_bundle_dir=start.bundle())
    resources, people = introduce(service.resources)
    service.app.state.resources = resources
    return Asking(service, people)


# ---------------------------------------------------------------- who sees what


@pytest.mark.threat("T260")
async def test_each_sees_the_tables_of_their_rights(on_sqlite: Asking) -> None:
    """In the schema and in a query; what a duty adds is what its right opens."""

    async def seen(who: frozenset[Duty]) -> dict[str, set[str]]:
        tables = (await on_sqlite("GET", "/schema", who)).json()["tables"]
        return {table["name"]: {column["name"] for column in table["columns"]} for table in tables}

    viewer, auditor, both = await seen(VIEWER), await seen(AUDITOR), await seen(OPERATOR | AUDITOR)
    assert set(viewer) == {
        "Machines",
        "Approvals",
        "Attestations",
        "Certificates",
        "HsmCertificates",
        "Events",
    }
    assert await seen(OPERATOR) == viewer
    assert set(auditor) == {"AuditLog", "Approvals"}
    assert auditor["Approvals"] - viewer["Approvals"] == {"actor_id"}
    assert both == {**viewer, **auditor}
    for query, who in (
        ("AuditLog", OPERATOR),
        ("Machines", AUDITOR),
        ("Approvals | where actor_id == 'x'", VIEWER),
        ("Approvals | project actor_id", OPERATOR),
    ):
        answer = await on_sqlite("POST", "", who, {"query": query})
        assert (answer.status_code, code(answer)) == (400, "query-invalid"), query
    for duty in (frozenset({Duty.METRICS}),):
        assert (await on_sqlite("POST", "", duty, {"query": "Machines"})).status_code == 403


@pytest.mark.threat("T260")
async def test_what_is_hidden_is_unknown_and_is_not_suggested(on_sqlite: Asking) -> None:
    """In the same words as what never was; no completion and no suggestion names it."""
    hidden = (await on_sqlite("POST", "/validate", VIEWER, {"query": "Approvals | project actor_id"})).json()
    absent = (await on_sqlite("POST", "/validate", VIEWER, {"query": "Approvals | project nothing_"})).json()
    assert hidden["error"]["message"].replace("actor_id", "nothing_") == absent["error"]["message"]
    assert hidden["error"]["suggestion"] != "actor_id"
    fits = await on_sqlite("POST", "/validate", VIEWER, {"query": "Approvals | project ac", "offset": 22})
    offered = {each["text"] for each in fits.json()["completions"]}
    assert "actor" in offered
    assert "actor_id" not in offered
    tables = await on_sqlite("POST", "/validate", VIEWER, {"query": "A", "offset": 1})
    assert "AuditLog" not in {each["text"] for each in tables.json()["completions"]}


async def test_the_words_of_the_language_are_told(on_sqlite: Asking) -> None:
    """In the schema as the language lists them; at the cursor as it completes them, also of what a stage has made."""
    schema = (await on_sqlite("GET", "/schema", VIEWER)).json()
    for kind, listed in (
        ("operators", kql.operators()),
        ("functions", kql.functions()),
        ("aggregates", kql.aggregates()),
    ):
        told = [
            (each["name"], each["written"], each["description"], each["aliases"]) for each in schema[kind]
        ]
        assert told == [(each.name, each.written, each.description, list(each.aliases)) for each in listed]
    for typed, first in (
        ("Machines | summarize dc", {"text": "dcount", "kind": "aggregate"}),
        ("Machines | project rack = hostname | where ra", {"text": "rack", "kind": "column"}),
    ):
        # What stands behind the cursor is not yet there.
        body = {"query": f"{typed} | take 1", "offset": len(typed)}
        found = (await on_sqlite("POST", "/validate", VIEWER, body)).json()["completions"]
        assert {"text": found[0]["text"], "kind": found[0]["kind"]} == first


def add(tx: Tx, machines: int) -> None:
    for number in range(1, machines + 1):
        tx.machines.add(a_machine(number))


def _one_of_everything(tx: Tx) -> None:
    tx.machines.add(a_full_machine(7))
    tx.registration_tokens.add(a_registration_token(9))


def _a_failure(tx: Tx) -> None:
    tx.machines.add(a_machine())
    tx.results.add(a_machine().machine_id, a_result())


def secrets_of(service: Service) -> Iterator[str]:
    """Yield every byte string of the database as people would write it: keys, digests of tokens, nonces, evidence."""

    def work(tx: Any) -> list[bytes]:
        found = []
        for table in Base.metadata.tables.values():
            for column in table.columns:
                # Names are public: an AK's Name is what entries of the audit log call it by.
                if isinstance(column.type, LargeBinary) and column.name not in ("ak_name", "hash", "root"):
                    rows = (
                        tx._sql._cursor.execute(f"SELECT {column.name} FROM {table.name}", ())
                        or tx._sql._cursor
                    )
                    found += [row[0] for row in rows.fetchall() if row[0] is not None]
        return found

    for each in service.store.read_sync(work):
        value = bytes(each)
        if len(value) >= 8:
            yield from (value.hex(), b64encode(value).decode(), repr(value)[2:-1])


@pytest.mark.threat("T260")
async def test_no_secret_is_in_any_table(asking: Asking) -> None:
    """Every column of every table, for who may see all of them, over a database that holds one of everything."""
    service = asking.service
    node = SoftwareNode()
    offered = await service.admitted(node, "worker-app", hostname="w-1")
    await service.configured(node, offered)
    made = await service.operator(
        "POST", "/registration-tokens", {"role": "generic", "uses": 1, "expires_in_seconds": 60}
    )
    await service.store.write(_one_of_everything)
    seen = catalog.catalog(EVERY, service.clock.now())
    shown = "\n".join([json.dumps(await asking.rows(name, OPERATOR | AUDITOR)) for name in seen])
    shown += (await asking("GET", "/schema", OPERATOR | AUDITOR)).text
    assert node.machine_id in shown
    words = {CANARY, TOKEN, offered["config_token"], made.json()["token"], *secrets_of(service)}
    assert len(words) > 20
    assert [word for word in words if word in shown] == []


@pytest.mark.threat("T260")
def test_no_column_is_made_of_bytes() -> None:
    """Keys, nonces, digests of tokens and evidence are bytes; nothing that is shown rests on one."""
    shown = catalog.catalog(EVERY, NOW)
    read = {each for each in catalog.reads(shown, shown) if each[0] in Base.metadata.tables}
    tables = Base.metadata.tables
    assert {(t, c) for t, c in read if isinstance(tables[t].c[c].type, LargeBinary)} == set()
    assert {t for t, _ in read} == {
        "machines",
        "machine_labels",
        "ek_certificates",
        "audit_log",
        "approvals",
        "attestation_results",
        "certificates",
        "hsm_certificates",
        "outbox",
    }
    assert ("machines", "ek_public") not in read
    assert ("approvals", "document") not in read
    assert ("outbox", "payload") not in read


def test_every_column_says_what_it_is() -> None:
    """For who writes queries; names are unique whatever their case."""
    for view in views(NOW):
        names = [each.name.casefold() for each in view.columns]
        assert len(set(names)) == len(names), view.name
        assert all(each.description for each in view.columns), view.name
        assert view.description
        for each in view.columns:
            assert re.fullmatch(r"[a-z][a-z0-9_]*", each.name)


# ---------------------------------------------------------------- what is answered


async def test_rows_are_what_the_database_holds(asking: Asking) -> None:
    """Each kind as it is written in the language's own literals."""
    service = asking.service
    node = SoftwareNode()
    await service.admitted(node, "worker-app", hostname="w-1")
    await service.act(node, "labels", {"set": {"rack": "4"}})
    service.clock.advance(90)
    answer = await asking(
        "POST",
        "",
        VIEWER,
        {
            "query": "Machines | project hostname, trust, ek_chain_ok, since_attested, last_attested_at, "
            "reset_count, labels, locked_at, alarm"
        },
    )
    found = answer.json()
    assert [each["kind"] for each in found["columns"]] == [
        "string",
        "string",
        "bool",
        "timespan",
        "datetime",
        "long",
        "dynamic",
        "datetime",
        "string",
    ]
    (row,) = found["rows"]
    assert row[:2] == ["w-1", "verified"]
    assert isinstance(row[2], bool)
    assert row[3].startswith("00:01:30")
    assert row[4].startswith("2026-11-21T12:00:00")
    assert row[6:] == [{"rack": "4"}, None, ""]
    assert not found["truncated"]
    (entry,) = await asking.rows(
        "AuditLog | where action == 'approve' | project ts, actor, result, machine_id", AUDITOR
    )
    assert entry[0].startswith("2026-11-21T12:00:00")
    assert entry[1:] == ["SYSTEM", "registered", node.machine_id]
    ((verdict, failed, checks),) = await asking.rows("Attestations | project verdict, failed, checks")
    assert (verdict, failed) == ("Verified", "")
    assert checks[0][0] == "passed"


@pytest.mark.parametrize("verdict", [None, *Verdict])
async def test_trust_is_what_machines_say_of_it(on_sqlite: Asking, verdict: Verdict | None) -> None:
    """The rule of `Machine.trust`, before and after the lease ends, in a query too."""
    machine = a_machine(last_verdict=verdict, trust_expires_at=on_sqlite.service.clock.now())
    await on_sqlite.service.store.write(lambda tx: tx.machines.add(machine))
    for seconds in (-1, 2):
        on_sqlite.service.clock.advance(seconds)
        expected: Trust = machine.trust(on_sqlite.service.clock.now())
        assert await on_sqlite.rows("Machines | project trust") == [[expected.value]]


async def test_a_failed_check_is_named(asking: Asking) -> None:
    """The first of a result that failed."""
    await asking.service.store.write(_a_failure)
    assert await asking.rows("Attestations | project verdict, failed") == [["Failed", "pcr7"]]


async def test_what_is_more_is_said(asking: Asking) -> None:
    """Fewer rows than there are, and `truncated`."""
    await asking.service.store.write(lambda tx: add(tx, 5))
    few = (await asking("POST", "", VIEWER, {"query": "Machines", "rows": 3})).json()
    assert (len(few["rows"]), few["truncated"]) == (3, True)
    every = (await asking("POST", "", VIEWER, {"query": "Machines", "rows": 5})).json()
    assert (len(every["rows"]), every["truncated"]) == (5, False)


async def test_how_it_runs_is_explained_to_auditors(asking: Asking) -> None:
    """The statement, without its values, and the database's plan; nothing is run, and who may not is told."""
    body = {"query": "AuditLog | where actor == 'nobody-of-this-name'", "explain": True}
    found = (await asking("POST", "", AUDITOR, body)).json()
    assert found["rows"] == []
    assert "audit_log" in found["explanation"]["sql"]
    assert "nobody-of-this-name" not in found["explanation"]["sql"]
    assert any("audit_log" in step for step in found["explanation"]["steps"])
    assert (await asking("POST", "", OPERATOR, {**body, "query": "Machines"})).status_code == 403


# ---------------------------------------------------------------- what it may cost


@pytest.mark.parametrize(
    "stages", ["take 5", "sort by hostname | take 5", "top 5 by hostname | extend x = 1 + strlen(hostname)"]
)
async def test_rows_of_a_stage_are_counted(asking: Asking, stages: str) -> None:
    """Who only counts what a stage gives reads none of its columns, and SQLite asks whether that is allowed."""
    await asking.service.store.write(lambda tx: add(tx, 100))
    assert await asking.rows(f"Machines | {stages} | count") == [[5]]


@pytest.mark.threat("T262")
async def test_what_takes_too_long_is_told(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the service goes on: the next query is answered."""
    monkeypatch.setattr(handlers, "SECONDS", 0.3)
    await asking.service.store.write(lambda tx: add(tx, 100))
    answer = await asking("POST", "", VIEWER, {"query": ENDLESS})
    assert (answer.status_code, code(answer)) == (503, "query-timeout")
    monkeypatch.setattr(handlers, "SECONDS", 60)
    assert await asking.rows("Machines | count") == [[100]]


@pytest.mark.threat("T262")
async def test_no_text_is_made_longer_and_longer(asking: Asking) -> None:
    """Neither by putting it behind itself, nor by escaping it, nor by a number of a hundred thousand digits."""
    await asking.service.store.write(lambda tx: tx.machines.add(a_machine(hostname='say "a"')))
    twice = "| extend x = strcat(" + ",".join(["x"] * 30) + ")"
    for longer in (
        "Machines | extend x = strcat(hostname, machine_id)" + twice * 4,
        "Machines | extend x = hostname" + "| extend x = tostring(split(x, 'no'))" * 18,
    ):
        answer = await asking("POST", "", VIEWER, {"query": f"{longer} | project n = strlen(x)"})
        assert (answer.status_code, code(answer)) == (422, "query-failed"), answer.text
    # What it makes of less is the same as ever.
    few = "Machines | extend x = strcat(hostname, machine_id)" + twice * 2 + " | project strlen(x)"
    ((length,),) = await asking.rows(few, VIEWER)
    assert length == (len('say "a"') + 36) * 900
    digits = "Machines | project x = tostring(parse_json(strcat('[', '1e100000,', '1e100000', ']')))"
    assert await asking.rows(digits, VIEWER) == [["[1e100000,1e100000]"]]
    assert await asking.rows(digits.replace("100000", "3"), VIEWER) == [["[1000,1000]"]]


@pytest.mark.threat("T262")
async def test_two_run_at_once(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third is refused in words, whoever asks."""
    begun, go_on = threading.Semaphore(0), threading.Event()

    def hold(_self: object, _wanted: LookUp) -> Found:
        begun.release()
        assert go_on.wait(60)
        return Found(rows=[(0,)], is_cut=False)

    for looker in (PostgresLooker, SQLiteLooker):
        monkeypatch.setattr(looker, "look_up", hold)
    count = {"query": "Machines | count"}
    running = [asyncio.ensure_future(asking("POST", "", VIEWER, count))]
    try:
        assert await asyncio.to_thread(begun.acquire, timeout=60)
        # One person does not take both places: theirs run one after the other, and so many wait.
        running += [asyncio.ensure_future(asking("POST", "", VIEWER, count)) for _ in range(4)]
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        again = done.pop()
        running.remove(again)
        running.append(asyncio.ensure_future(asking("POST", "", OPERATOR, count)))
        assert await asyncio.to_thread(begun.acquire, timeout=60)
        third = await asking("POST", "", OPERATOR | AUDITOR, count)
    finally:
        go_on.set()
    assert (again.result().status_code, code(again.result())) == (503, "queries-busy")
    assert "queries of yours are running" in again.result().json()["detail"]
    assert (third.status_code, code(third)) == (503, "queries-busy")
    assert "2 queries are running already" in third.json()["detail"]
    assert [each.status_code for each in await asyncio.gather(*running)] == [200] * 5


@pytest.mark.threat("T262")
async def test_a_query_is_understood_beside_the_loop(
    on_sqlite: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are answered meanwhile; the fifth text of one operator is refused, and no other's."""
    begun, goes_on, written = threading.Event(), threading.Event(), kql.compiled

    def held(*given: Any, **more: Any) -> kql.Statement:
        begun.set()
        assert goes_on.wait(60), "nobody was answered meanwhile"
        return written(*given, **more)

    monkeypatch.setattr(kql, "compiled", held)
    first = asyncio.ensure_future(on_sqlite("POST", "", VIEWER, {"query": "Machines"}))
    assert await asyncio.to_thread(begun.wait, 60)
    others = [
        asyncio.ensure_future(on_sqlite("POST", "/validate", VIEWER, {"query": "Machines"})) for _ in range(4)
    ]
    done, _ = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
    refused = done.pop().result()
    assert (refused.status_code, code(refused)) == (503, "queries-busy")
    another = asyncio.ensure_future(on_sqlite("POST", "/validate", OPERATOR, {"query": "Machines"}))
    assert (await on_sqlite("GET", "/schema", VIEWER)).status_code == 200
    assert not first.done()
    goes_on.set()
    answers = [each.status_code for each in await asyncio.gather(first, another, *others)]
    assert sorted(answers) == [200] * 5 + [503]


@pytest.mark.threat("T262")
async def test_so_many_queries_a_minute(on_sqlite: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each operator; another one is not kept from asking, and what is refused leaves no entry."""
    monkeypatch.setattr(handlers, "OF_OPERATOR", replace(handlers.OF_OPERATOR, requests=3))
    for _ in range(3):
        await on_sqlite.rows("Machines", VIEWER)
    refused = await on_sqlite("POST", "", VIEWER, {"query": "Machines"})
    assert (refused.status_code, code(refused)) == (429, "rate-limited")
    assert int(refused.headers["retry-after"]) > 0
    assert len(await on_sqlite.service.audit(action="query")) == 3
    await on_sqlite.rows("Machines", OPERATOR)


async def test_a_query_is_as_long_as_it_may_be(on_sqlite: Asking) -> None:
    """8 KiB as UTF-8, and at most so many rows."""
    long = f"Machines | where hostname == '{'ä' * 5000}'"
    assert len(long) < 8192 < len(long.encode())
    assert (await on_sqlite("POST", "", VIEWER, {"query": long})).status_code == 400
    assert (await on_sqlite("POST", "", VIEWER, {"query": "x" * 8193})).status_code == 422
    assert (await on_sqlite("POST", "", VIEWER, {"query": "Machines", "rows": 10_001})).status_code == 422


# ---------------------------------------------------------------- what is recorded


async def test_each_query_is_an_entry_before_it_runs(
    on_sqlite: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who and what; also one that was ended. What is no query at all, or only looked at, is none."""
    await on_sqlite.rows("Machines | count", VIEWER)
    await on_sqlite.service.store.write(lambda tx: add(tx, 100))
    monkeypatch.setattr(handlers, "SECONDS", 0.1)
    assert (await on_sqlite("POST", "", OPERATOR, {"query": ENDLESS})).status_code == 503
    await on_sqlite("POST", "", VIEWER, {"query": "Machines | nothing"})
    await on_sqlite("POST", "/validate", VIEWER, {"query": "Machines | take 1"})
    entries = await on_sqlite.service.audit(action="query")
    assert [(e["operator_cn"], e["detail"]) for e in entries] == [
        ("operator", ENDLESS),
        ("viewer", "Machines | count"),
    ]
    long = f"Machines | where hostname == '{'a' * 2000}'"
    monkeypatch.undo()
    await on_sqlite.rows(long, VIEWER)
    told = (await on_sqlite.service.audit(action="query"))[0]["detail"]
    assert told.startswith(long[:1024])
    assert re.search(r"\(2,\d{3} characters, SHA-256 [0-9a-f]{64}\)$", told)


async def test_what_cannot_be_recorded_is_not_run(on_sqlite: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of the two: nobody reads the fleet while the log is full."""
    looked: list[object] = []

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("the log is full")

    monkeypatch.setattr(handlers, "_record", fail)
    monkeypatch.setattr(on_sqlite.service.resources.store, "look_up", looked.append)
    assert (await on_sqlite("POST", "", VIEWER, {"query": "Machines"})).status_code == 500
    assert looked == []


# ---------------------------------------------------------------- mistakes


async def test_a_mistake_has_its_place(on_sqlite: Asking) -> None:
    """Line and column of what is unknown, and what was meant, perhaps; the same where it is run."""
    query = "Machines\n| where hostnam == 'a'"
    found = (await on_sqlite("POST", "/validate", VIEWER, {"query": query})).json()
    assert found["valid"] is False
    error = found["error"]
    assert (error["line"], error["column"], error["length"]) == (2, 9, 7)
    assert error["suggestion"] == "hostname"
    answer = await on_sqlite("POST", "", VIEWER, {"query": query})
    assert (answer.status_code, code(answer)) == (400, "query-invalid")
    good = (
        await on_sqlite("POST", "/validate", VIEWER, {"query": "Machines | summarize count() by role"})
    ).json()
    assert (good["valid"], good["tables"]) == (True, ["Machines"])
    assert [(each["name"], each["kind"]) for each in good["columns"]] == [
        ("role", "string"),
        ("count_", "long"),
    ]


# ---------------------------------------------------------------- kept queries


async def test_queries_are_kept_and_shared(asking: Asking) -> None:
    """Under a name of one's own; others see what is shared, and change nothing of it."""
    body = {"query": "Machines | count", "description": "all of them", "shared": True}
    made = await asking("PUT", "/saved/all", VIEWER, body)
    assert made.status_code == 200
    assert {**body, "name": "all", "owner": "viewer", "mine": True}.items() <= made.json().items()
    await asking("PUT", "/saved/mine", VIEWER, {"query": "Events"})
    asking.service.clock.advance(60)
    changed = await asking("PUT", "/saved/all", VIEWER, {**body, "query": "Machines"})
    assert changed.json()["created_at"] == made.json()["created_at"] < changed.json()["updated_at"]

    async def listed(who: frozenset[Duty]) -> list[tuple[str, bool]]:
        queries = (await asking("GET", "/saved", who)).json()["queries"]
        return [(each["name"], each["mine"]) for each in queries]

    assert await listed(VIEWER) == [("all", True), ("mine", True)]
    assert await listed(OPERATOR) == [("all", False)]
    gone = await asking("DELETE", "/saved/all", OPERATOR)
    assert (gone.status_code, code(gone)) == (404, "query-unknown")
    assert (await asking("DELETE", "/saved/all", VIEWER)).status_code == 204
    assert await listed(OPERATOR) == []
    told = await asking.rows(
        "AuditLog | where action startswith 'query_' | sort by id asc | project actor, action, detail",
        AUDITOR,
    )
    assert told == [
        ["viewer", "query_save", "all, shared"],
        ["viewer", "query_save", "mine, for themselves"],
        ["viewer", "query_save", "all, shared"],
        ["viewer", "query_delete", "all"],
    ]


@pytest.mark.threat("T260")
async def test_a_shared_query_shows_what_its_reader_may_see(on_sqlite: Asking) -> None:
    """Its owner lends nothing."""
    await on_sqlite("PUT", "/saved/log", AUDITOR, {"query": "AuditLog", "shared": True})
    (shared,) = (await on_sqlite("GET", "/saved", VIEWER)).json()["queries"]
    answer = await on_sqlite("POST", "", VIEWER, {"query": shared["query"]})
    assert (answer.status_code, code(answer)) == (400, "query-invalid")


async def test_what_is_kept_is_a_query_and_not_too_many(
    on_sqlite: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a name that a shell and a path take."""
    monkeypatch.setattr(saved, "MOST", 2)
    for name, query, status in (
        ("a", "Machines", 200),
        ("b", "Nothing", 400),
        ("b", "AuditLog", 400),
        ("b", "Machines", 200),
        ("c", "Machines", 422),
        ("a", "Machines | count", 200),
        ("$(reboot)", "Machines", 422),
    ):
        answer = await on_sqlite("PUT", f"/saved/{name}", VIEWER, {"query": query})
        assert answer.status_code == status, (name, query)


# ---------------------------------------------------------------- extensions


@pytest.mark.threat("T260")
def test_tables_of_extensions_have_their_right() -> None:
    """Kinds follow from the types of their columns; a text of theirs cannot hide bytes."""
    c = table_of(OutboxRow).c
    asked = QueryTable(
        name="Things",
        statement=select(c.id, c.attempts, c.created_at, literal(1.5).label("share")),
        description="Things",
        columns={"id": "Which"},
        right="audit",
    )
    table = catalog.of_extension(asked)
    assert [(each.name, each.kind.value, each.description) for each in table.columns] == [
        ("id", "string", "Which"),
        ("attempts", "long", ""),
        ("created_at", "datetime", ""),
        ("share", "real", ""),
    ]
    assert "Things" in catalog.catalog(frozenset({Right.AUDIT}), NOW, (asked,))
    assert "Things" not in catalog.catalog(frozenset({Right.READ}), NOW, (asked,))
    with pytest.raises(ValueError, match=r"Keys\.ek_public is of a type that no query can show"):
        catalog.of_extension(QueryTable(name="Keys", statement=select(table_of(MachineRow).c.ek_public)))


async def test_tables_of_our_extensions_can_be_asked(start: Starter) -> None:
    """Those that are enabled, each column with its words."""
    kek = start.directory / "webhooks.kek"
    kek.touch(mode=0o600)
    kek.write_text("ab" * 32)
    service = await start(
        tpm_ca_bundle_dir=start.bundle(),
        extensions=("webhooks",),
        extension_values={"ITL_EXT_WEBHOOKS_KEK": f"file:{kek}"},
    )
    answer = await service.operator(
        "POST", "/query", {"query": "WebhookDeliveries | project status, created_at"}
    )
    assert answer.status_code == 200, answer.text
    assert [each["kind"] for each in answer.json()["columns"]] == ["string", "datetime"]
    tables = (await service.operator("GET", "/query/schema")).json()["tables"]
    theirs = next(each for each in tables if each["name"] == "WebhookDeliveries")
    assert all(each["description"] for each in theirs["columns"])


# ---------------------------------------------------------------- kept views


async def test_a_view_is_kept_beside_queries(on_sqlite: Asking) -> None:
    """In the words of `GET /machines`; it has the names of queries, and is listed apart."""
    view = "status=locked&cluster_id=east&labels=rack%3D4&sort=-last_result_at&column=machine&where=alarm+%21%3D+%27%27"
    made = await on_sqlite("PUT", "/saved/locked", VIEWER, {"kind": "view", "query": view})
    assert made.status_code == 200, made.text
    await on_sqlite("PUT", "/saved/all", VIEWER, {"query": "Machines"})

    async def names(kind: str) -> list[str]:
        return [each["name"] for each in (await on_sqlite("GET", f"/saved{kind}", VIEWER)).json()["queries"]]

    assert await names("") == await names("?kind=query") == ["all"]
    assert await names("?kind=view") == ["locked"]
    other = await on_sqlite("PUT", "/saved/locked", VIEWER, {"query": "Machines"})
    assert (other.status_code, code(other)) == (409, "already-exists")
    told = "AuditLog | where action == 'query_save' | project detail"
    assert ["view locked, for themselves"] in await on_sqlite.rows(told, AUDITOR)


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        ("", "200"),
        ("status=odd", "request-invalid"),
        ("trust=odd", "request-invalid"),
        ("sort=ek_fingerprint", "request-invalid"),
        ("labels=%3D%3D", "request-invalid"),
        ("page=2", "request-invalid"),
        ("q=a&q=b", "request-invalid"),
        ("status", "request-invalid"),
        ("where=statu+%3D%3D+1", "query-invalid"),
        ("where=true%29+%7C+take+%281", "query-invalid"),
    ],
)
async def test_no_view_is_kept_that_nobody_can_open(on_sqlite: Asking, view: str, expected: str) -> None:
    """Each word is one that the list takes, once, and its expression one that can be asked."""
    answer = await on_sqlite("PUT", "/saved/v", OPERATOR, {"kind": "view", "query": view})
    assert expected in (str(answer.status_code), answer.json().get("type", "").rpartition(":")[2]), (
        answer.text
    )


async def test_operators_end_or_take_over_what_is_shared(on_sqlite: Asking) -> None:
    """Of who left. What somebody keeps to themselves they do not find, and viewers may not."""
    for name, shared in (("a", True), ("b", True), ("mine", False)):
        kept = await on_sqlite("PUT", f"/saved/{name}", VIEWER, {"query": "Machines", "shared": shared})
        assert kept.status_code == 200
    ids = {q["name"]: q["id"] for q in (await on_sqlite("GET", "/saved", VIEWER)).json()["queries"]}

    async def act(method: str, path: str, who: frozenset[Duty]) -> tuple[int, str | None]:
        answer = await on_sqlite(method, f"/shared/{path}", who)
        return answer.status_code, code(answer) if answer.status_code >= 400 else None

    take = f"{ids['a']}/take-over"
    assert await act("POST", take, VIEWER) == (403, "forbidden")
    assert await act("DELETE", str(ids["b"]), VIEWER) == (403, "forbidden")
    assert await act("POST", f"{ids['mine']}/take-over", OPERATOR) == (404, "query-unknown")
    assert await act("DELETE", str(ids["mine"]), OPERATOR) == (404, "query-unknown")
    await on_sqlite("PUT", "/saved/a", OPERATOR, {"query": "Events"})
    assert await act("POST", take, OPERATOR) == (409, "already-exists")
    await on_sqlite("DELETE", "/saved/a", OPERATOR)
    assert await act("POST", take, OPERATOR) == (200, None)
    assert await act("DELETE", str(ids["b"]), OPERATOR) == (204, None)
    seen = (await on_sqlite("GET", "/saved", OPERATOR)).json()["queries"]
    assert [(q["name"], q["owner"], q["mine"], q["shared"]) for q in seen] == [("a", "operator", True, True)]
    told = "AuditLog | where action in ('query_take_over', 'query_delete') | sort by id asc | project actor, detail"
    assert await on_sqlite.rows(told, AUDITOR) == [
        ["operator", "a"],
        ["operator", "a, of viewer"],
        ["operator", "b, of viewer"],
    ]


# ---------------------------------------------------------------- the page


def test_the_functions_that_the_compiler_calls_are_those_that_a_revision_makes() -> None:
    """Who changes one writes a revision."""
    made = text("src/sdk/attestation/store/migrations/versions/0036_saved_queries.py")
    assert postgresql.FUNCTIONS in made


def questions() -> list[str]:
    """Return the queries of docs/operate/query.md."""
    return re.findall(r"^```kql\n(.*?)^```$", text("docs/operate/query.md"), flags=re.DOTALL | re.MULTILINE)


async def test_the_questions_of_the_page_are_answered(asking: Asking) -> None:
    """Each of them, on both databases, over a fleet with something in every table."""
    service = asking.service
    node, waiting = SoftwareNode(), SoftwareNode()
    await service.admitted(node, "worker-app", hostname="w-1")
    await service.act(node, "labels", {"set": {"rack": "4"}})
    await service.introduce(waiting)
    asked = questions()
    assert len(asked) > 12
    answers = [await asking.rows(query, OPERATOR | AUDITOR) for query in asked]
    assert sum(bool(rows) for rows in answers) >= 6
    rack = next(i for i, query in enumerate(asked) if "labels.rack" in query)
    assert answers[rack] == [["w-1", "attested", "verified"]]


def test_the_examples_of_the_help_are_queries() -> None:
    """Those that the command line shows."""
    shown = re.findall(
        r"query '([^']+)'", text("src/cli/attestation_cli/commands/query.py") + text("docs/operate/query.md")
    )
    assert len(shown) >= 4
    seen = catalog.catalog(EVERY, NOW)
    for query in shown:
        kql.analyse(query, seen, at=NOW)


def test_the_longest_text_is_the_same_on_both_databases() -> None:
    """SQLite is set to it, PostgreSQL is asked."""
    assert sql.MOST_BYTES == VALUE_BYTES
