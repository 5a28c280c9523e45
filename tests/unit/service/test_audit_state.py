"""Rows that give authority have their entries, and entries their rows: against whoever writes to the database."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tracemalloc
from collections.abc import Mapping
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from attestation.audit import AuditEvent
from attestation.audit.authority import Change, key_of, with_changes
from attestation.store import (
    AUTHORITY,
    NOT_AUTHORITY,
    ActiveConfiguration,
    AuthorityTable,
    Configuration,
    MachineFilter,
    Place,
    SealedConfiguration,
    TrustCertificate,
    Tx,
)
from attestation.store.refused_keys import RefusedKey
from attestation.store.tables import Base
from attestation_service.audit import verification
from attestation_service.audit.ledger import MOST_FINDINGS, Ledger
from tests.contract.store_samples import an_approval_rule
from tests.contract.test_store_acme import answered
from tests.contract.test_store_node_csrs import decided
from tests.contract.test_store_runs import an_attempt, concluded
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_operator_certificates import desk_at, wanted
from tests.unit.service.test_policies import a_policy

pytestmark = pytest.mark.anyio

BY_NAME = {kind.name: kind for kind in AUTHORITY.values()}
OTHER: Mapping[str, Mapping[str, Any]] = {
    "machine": {"id": None, "machine_id": "f" * 36, "ek_fingerprint": "e" * 96},
    "identity": {"kind": "another"},
    "ak-binding": {"ak_name": b"another"},
    "chip-mark": {"machine_id": "f" * 36},
    "allow-list": {"ek_fingerprint": "e" * 96},
    "approval-rule": {"name": "another"},
    "cluster": {"cluster_id": "another"},
    "token": {"id": None, "token_id": "f" * 16, "token_sha256": b"x" * 32},
    "vote": {"id": None, "operator_sub": "somebody else"},
    "refused-key": {"spki_sha256": "f" * 64},
    "policy": {"name": "another"},
    "assignment": {"scope": "cluster", "subject": "another"},
    "anchor": {"sha256": "f" * 64},
    "ca-key": {"issuer_id": "f" * 16, "state": "retired"},
    "ca-chain": {"issuer_id": "f" * 16},
    "certificate": {"id": None, "serial": "f" * 40},
    "node-request": {"id": None, "result_id": "f" * 32, "csr_uid": "another"},
    "run-attempt": {"challenge_id": "f" * 32, "attempt": 2},
    "acme-order": {"id": None, "order_id": "another"},
    "configuration": {"cluster_id": "another"},
}
"""What another row of each kind has in place of what must be its own."""

CHANGED: Mapping[str, Mapping[str, Any]] = {
    "machine": {
        "ak_name": b"another",
        "role": "controlplane",
        "assurance": "ek-chain",
        "ek_chain_ok": 1,
        "wipe_pending": 1,
        "wiped_at": 1,
        "unlock_pending": 1,
    },
    "identity": {"machine_id": "another"},
    "ak-binding": {"ek_fingerprint": "e" * 96},
    "chip-mark": {"ended_as": "rejected"},
    "allow-list": {"role": "controlplane"},
    "approval-rule": {"enabled": True},
    "cluster": {"talos_version": "v1.9.5"},
    "token": {"uses_left": 1},
    "vote": {"expires_at": 1 << 60},
    "refused-key": {"why": "nothing"},
    "policy": {"document": "{}"},
    "assignment": {"policy_version": 2},
    "anchor": {"status": "distrusted"},
    "ca-key": {"key_uri": "file:/tmp/mine.pem"},
    "ca-chain": {"chain": "[]"},
    "certificate": {"state": "held"},
    "node-request": {"content_sha256": "e" * 64, "machine_id": "another", "tier": 1, "serial": "f" * 40},
    "run-attempt": {"run_id": "another", "machine_id": "another", "result": "[]"},
    "acme-order": {
        "account_id": "another",
        "kind": "dns",
        "value": "another",
        "machine_id": "another",
        "thumbprint": "another",
        "spki": b"another",
        "ak_name": b"another",
        "boot": "9.9",
    },
    "configuration": {"version": 2, "sha256": "e" * 64, "previous": 1, "agreed": 1, "mark": b"another"},
}
"""What whoever writes to the database makes of a row."""


class Intruder:
    """Writes to the database past the service."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def run(self, sql: str, *values: object) -> None:
        """Run one statement, without the triggers and keys that would be in the way."""
        with closing(sqlite3.connect(self._path)) as db, db:
            db.execute(sql, values)

    def row(self, kind: AuthorityTable) -> dict[str, Any]:
        """Return a row of this kind."""
        with closing(sqlite3.connect(self._path)) as db:
            db.row_factory = sqlite3.Row
            return dict(db.execute(f"SELECT * FROM {kind.table.name} WHERE {_there(kind)}").fetchone())

    def put(self, kind: AuthorityTable, row: Mapping[str, Any]) -> None:
        """Insert *row*."""
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        self.run(f"INSERT INTO {kind.table.name} ({names}) VALUES ({marks})", *row.values())

    def change(self, kind: AuthorityTable, row: Mapping[str, Any], to: Mapping[str, Any]) -> None:
        """Set columns of *row*."""
        sets = ", ".join(f"{name} = ?" for name in to)
        self.run(f"UPDATE {kind.table.name} SET {sets} WHERE {_is(kind)}", *to.values(), *_key(kind, row))

    def delete(self, kind: AuthorityTable, row: Mapping[str, Any]) -> None:
        """Delete *row*."""
        self.run(f"DELETE FROM {kind.table.name} WHERE {_is(kind)}", *_key(kind, row))


def _there(kind: AuthorityTable) -> str:
    return "state NOT IN ('reserved', 'void')" if "state" in kind.columns else "1"


def _is(kind: AuthorityTable) -> str:
    return " AND ".join(f"{name} = ?" for name in kind.key)


def _key(kind: AuthorityTable, row: Mapping[str, Any]) -> list[Any]:
    return [row[name] for name in kind.key]


async def state(service: Service) -> dict[str, Any]:
    """Let the service verify its log, and return what it says of the state."""
    answer = await service.operator("GET", "/audit/verify")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert found["state"] is not None, found
    assert found["valid"] == (found["state"]["unproven"] == [])
    return found["state"]  # type: ignore[no-any-return]


async def problems(service: Service) -> dict[str, str]:
    """Return what is wrong with the state, by kind and key."""
    return {f"{each['kind']} {each['key']}": each["problem"] for each in (await state(service))["unproven"]}


def chained(tx: Tx, at: datetime) -> None:
    """Let a CA key be vouched for by a chain: its own certificate, so that nothing else changes."""
    issuer = next(each for each in tx.issuers.all() if each.certificate is not None)
    assert issuer.certificate is not None
    tx.issuers.put_chain(issuer.issuer_id, (issuer.certificate,), at)


def a_configuration(tx: Tx, at: datetime) -> None:
    """Let a version of a base configuration be delivered."""
    place = Place(cluster_id="default", role="worker-app")
    about = Configuration(
        place=place,
        version=1,
        sha256="d" * 64,
        size_bytes=1,
        talos_version="v1.9.5",
        note=None,
        created_at=at,
        created_by="grace",
        kek_id="kek",
    )
    tx.configurations.add(SealedConfiguration(about=about, wrapped=b"wrapped", blob=b"blob"))
    tx.configurations.activate(
        ActiveConfiguration(
            place=place,
            version=1,
            previous=None,
            sha256=about.sha256,
            activated_at=at,
            activated_by="grace",
            agreed=False,
            mark=b"mark",
        )
    )


async def furnished(start: Starter) -> Service:
    """Start a service that has a row of every kind, by acts."""
    desk = await desk_at(start, dual_control_roles="controlplane")
    service = desk.service
    assert (await desk.ask("grace", wanted())).status_code == 202
    await desk.given("heidi", wanted())
    node = SoftwareNode()
    await service.introduce(node)
    await service.store.write(
        lambda tx: tx.identities.add(tx.machines.require(node.machine_id), "chip", b"1")
    )
    await service.store.write(lambda tx: tx.approval_rules.add(an_approval_rule()))
    for method, path, body in (
        ("POST", "/registration-tokens", {"role": "worker-app", "uses": 3, "expires_in_seconds": 600}),
        ("POST", "/allow-list", {"entries": [{"ek_fingerprint": "a" * 96, "role": "worker-app"}]}),
        ("POST", "/clusters", {"cluster_id": "prod"}),
        ("POST", "/policies", a_policy(name="app")),
        ("PUT", "/policies/assignments/role/worker-app", {"policy": "app@1"}),
    ):
        answer = await service.operator(method, path, body)
        assert answer.is_success, answer.text
    at = service.clock.now()
    anchor = TrustCertificate(
        sha256="c" * 64,
        certificate=b"der",
        role="anchor",
        vendor="IFX",
        status="active",
        reason=None,
        added_at=at,
        added_by="grace",
        changed_at=at,
        changed_by="grace",
    )
    refused = RefusedKey(spki_sha256="d" * 64, why="stolen", added_at=at, added_by="grace")
    await service.store.write(lambda tx: tx.trust.add(anchor))
    await service.store.write(lambda tx: tx.refused_keys.put(refused))
    await service.store.write(lambda tx: tx.node_csrs.add(decided()))
    await service.store.write(lambda tx: tx.runs.issue(an_attempt()))
    await service.store.write(concluded)
    await service.store.write(lambda tx: chained(tx, at))
    await service.store.write(lambda tx: answered(tx, at))
    await service.store.write(lambda tx: a_configuration(tx, at))
    return service


@pytest.mark.threat("T136", "T266")
async def test_every_kind_of_row_is_compared(start: Starter) -> None:
    """A row that somebody inserts, changes or deletes behind the service's back is named, whatever its kind."""
    service = await furnished(start)
    intruder = Intruder(service.directory / "machines.db")
    assert await problems(service) == {}
    assert BY_NAME.keys() == OTHER.keys() == CHANGED.keys()
    for name, kind in BY_NAME.items():
        row = intruder.row(kind)
        # 1. Inserted.
        other = {**row, **OTHER[name]}
        intruder.put(kind, other)
        there = f"{name} {key_of(_key(kind, other))}"
        assert await problems(service) == {there: "no entry tells of it"}
        intruder.delete(kind, other)
        # 2. Changed, column by column of those that matter.
        mine = f"{name} {key_of(_key(kind, row))}"
        for column, value in CHANGED[name].items():
            intruder.change(kind, row, {column: value})
            ((found, problem),) = (await problems(service)).items()
            assert (found, problem.partition(" entry ")[0]) == (mine, "it is not what")
            intruder.change(kind, row, {column: row[column]})
        # 3. Deleted.
        intruder.delete(kind, row)
        ((found, problem),) = (await problems(service)).items()
        assert (found, problem.partition(";")[0]) == (mine, "it is gone")
        intruder.put(kind, row)
    assert await problems(service) == {}


@pytest.mark.threat("T136")
def test_every_table_is_judged() -> None:
    """A new table says whether its rows give authority, or this fails; and so does each column that a kind names."""
    tables = Base.metadata.tables
    assert tables.keys() == AUTHORITY.keys() | NOT_AUTHORITY.keys()
    assert not AUTHORITY.keys() & NOT_AUTHORITY.keys()
    for kind in AUTHORITY.values():
        assert {*kind.key, *kind.columns} <= set(kind.table.c.keys())


UNTOLD = {
    "machine": {
        *(
            "id",
            "version",
            "search",
            "registered_at",
            "registered_from",
            "attested_at",
            "locked_at",
            "revoked_at",
        ),
        *("rejected_at", "config_owed_since", "config_failure", "ak_activated_at", "trust_expires_at"),
        *("ek_source", "ek_template", "desired_role", "directive_sha256"),
        *("last_verdict", "last_result_at", "last_policy", "last_failed", "last_result_key"),
        "last_result_from",
        *("clock_ms", "reset_count", "restart_count", "clock_safe", "firmware_version", "event_log_sha256"),
        *("heartbeat_missed_at", "firmware_attested", "firmware_blocked"),
        *("desired_cluster_id", "alarm", "kept_bytes", "pinned_keys"),
        # What was seen gives nothing: an operator's approval makes it an identity's.
        *("hardware_kind", "hardware_chip", "hardware_guest", "hardware_csp_id", "vouched_by_hardware"),
    },
    "ak-binding": {"bound_at"},
    "chip-mark": {"ended_at"},
    "allow-list": {"note", "created_at", "created_by"},
    "approval-rule": {"created_at", "created_by", "changed_at", "changed_by"},
    "cluster": {"description", "created_at", "created_by", "changed_at", "changed_by"},
    "token": {"id", "created_at", "created_by"},
    "vote": {"id", "subject", "hostname", "assigned_ip", "reason", "document"},
    "refused-key": {"added_at", "added_by"},
    "policy": {"created_at", "created_by"},
    "assignment": {"assigned_at", "assigned_by"},
    "node-request": {
        *("id", "result_id", "csr_name", "signer_name", "reason", "message", "assurance", "ak_name", "at"),
    },
    "run-attempt": {"issued_at", "expires_at", "used_at"},
    "acme-order": {"id", "token", "error", "created_at", "validated_at", "serials"},
    "ca-chain": {"imported_at"},
    "configuration": {"activated_at", "activated_by"},
    "anchor": {"reason", "added_at", "added_by", "changed_at", "changed_by"},
}
"""Columns that were looked at, and give nothing by themselves."""


@pytest.mark.threat("T136")
@pytest.mark.parametrize("name", UNTOLD)
def test_every_column_is_judged(name: str) -> None:
    """A new column of a table of authority is told of, or somebody said here that it gives nothing."""
    kind = BY_NAME[name]
    columns = set(kind.table.c.keys()) - {*kind.key, *kind.columns} - UNTOLD[name]
    assert {column for column in columns if not column.startswith(("hw_", "ek_certificate_"))} == set()


@pytest.mark.threat("T136")
async def test_an_inserted_row_admits_a_machine_and_is_found(service: Service) -> None:
    """The whole attack: one row, and a machine is admitted; no operator's entry, and the log says so."""
    node = SoftwareNode()
    fingerprint = node.introduction()["ek_fingerprint"]
    at = 0
    Intruder(service.directory / "machines.db").run(
        "INSERT INTO allow_list VALUES (?, 'worker-app', NULL, NULL, NULL, NULL, ?, 'anna', NULL)",
        fingerprint,
        at,
    )
    assert (await service.introduce(node))["status"] == "registered"
    answer = (await service.operator("GET", "/audit/verify")).json()
    assert (answer["valid"], answer["first_invalid_id"]) == (False, None)
    assert answer["error"] == f"allow-list {fingerprint}: no entry tells of it"
    (row,) = answer["state"]["unproven"]
    assert row == {
        "kind": "allow-list",
        "key": fingerprint,
        "problem": "no entry tells of it",
        "entry_id": None,
    }


@pytest.mark.threat("T136")
async def test_an_act_does_not_bless_what_was_changed_before(service: Service) -> None:
    """An operator acts on a row that somebody changed: its entry says what the row was, and that is what is found."""
    node = SoftwareNode()
    await service.admitted(node)
    assert await problems(service) == {}
    Intruder(service.directory / "machines.db").run("UPDATE machines SET hostname = 'king'")
    await service.act(node, "lock", {"reason": "x"})
    ((found, problem),) = (await problems(service)).items()
    assert found == f"machine {node.machine_id}"
    assert "changed it, it was not what entry" in problem


@pytest.mark.threat("T150")
async def test_an_order_is_not_called_off_in_silence(service: Service) -> None:
    """Whoever writes that a machine was wiped is found, also after it was deleted; its own acknowledgement is told."""
    for forged in (False, True):
        node = SoftwareNode()
        await service.admitted(node)
        await service.act(node, "revoke", {"wipe": True})
        path = f"/api/v1/machines/{node.machine_id}/ack"
        ordered = await service.attest(node)
        challenge = await service.challenge(node)
        if forged:
            Intruder(service.directory / "machines.db").run(
                "UPDATE machines SET wipe_pending = 0, wiped_at = 1 WHERE machine_id = ?", node.machine_id
            )
        else:
            said = await service.post(path, node.acknowledgement(challenge, ordered["directive"]))
            assert said.status_code == 200, said.text
        found = await problems(service)
        assert list(found) == ([f"machine {node.machine_id}"] if forged else [])
        assert (await service.operator("DELETE", f"/machines/{node.machine_id}")).status_code == 204
        words = (await problems(service)).values()
        assert ["it was not what entry" in each for each in words] == [True] * forged


async def test_rows_from_before_are_judged_honestly(start: Starter) -> None:
    """An upgrade tells of every row once; they are counted as such, and are compared from then on."""
    service = await start()
    path = service.directory / "machines.db"
    await start.stack.aclose()
    intruder = Intruder(path)
    row = ("worker-app", None, None, None, None, 0, "anna")
    for number in range(250):
        intruder.run("INSERT INTO allow_list VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL)", f"{number:096x}", *row)
    intruder.run("UPDATE database_identity SET bound_at = NULL")
    (service.directory / "ca" / "audit-memory.json").unlink()
    again = await start()
    found = await state(again)
    assert (found["rows"], found["adopted"], found["unproven"]) == (250, 250, [])
    intruder.run("DELETE FROM allow_list WHERE ek_fingerprint = ?", f"{7:096x}")
    assert [each["key"] for each in (await state(again))["unproven"]] == [f"{7:096x}"]
    # It happens once: who makes the service bind anew, and inserted a row before, is found as before.
    intruder.run("INSERT INTO allow_list VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL)", "e" * 96, *row)
    await start.stack.aclose()
    intruder.run("UPDATE database_identity SET bound_at = NULL")
    (service.directory / "ca" / "audit-memory.json").unlink()
    assert [each["key"] for each in (await state(await start()))["unproven"]] == ["e" * 96, f"{7:096x}"]


def test_a_forged_adoption_is_named() -> None:
    """Whoever appends an entry that adopts rows, after acts were told, adopts nothing."""
    ledger = Ledger()
    for number, action in enumerate(("allow_list_import", "database_bound"), 1):
        detail, _ = with_changes("x", [Change("allow-list", str(number), None, "b")])
        ledger.tell([(number, "", "", json.dumps({"action": action, "detail": detail}).encode())])
    problems = [each.problem for each in ledger.compare(2).unproven]
    ledger.close()
    assert "entry 2 adopted it after acts were told" in problems


async def test_what_changes_meanwhile_is_no_alarm(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators act while the rows are read: neither a row that came nor one that went is named."""
    entry = {"entries": [{"ek_fingerprint": "a" * 96, "role": "worker-app"}]}
    assert (await service.operator("POST", "/allow-list", entry)).is_success
    told = Ledger.find
    acts = iter(
        [
            ("DELETE", f"/allow-list/{'a' * 96}", None),
            ("POST", "/allow-list", {"entries": [{"ek_fingerprint": "b" * 96, "role": "worker-app"}]}),
        ]
    )
    loop = asyncio.get_running_loop()

    def slow(self: Ledger, kind: AuthorityTable, rows: Any) -> None:
        told(self, kind, rows)
        for act in acts:
            asyncio.run_coroutine_threadsafe(service.operator(*act), loop).result(60)

    monkeypatch.setattr(Ledger, "find", slow)
    assert (await state(service))["unproven"] == []
    assert next(acts, None) is None
    monkeypatch.undo()
    assert (await state(service))["unproven"] == []


async def test_a_token_that_was_used_is_told(service: Service) -> None:
    """The use counts down, in the unit that admits the machine and in its entry."""
    asked = {"role": "worker-app", "expires_in_seconds": 3600, "minimum_assurance": "tofu"}
    token = (await service.operator("POST", "/registration-tokens", asked)).json()["token"]
    await service.introduce(SoftwareNode(), registration_token=token)
    found = (await service.operator("GET", "/audit/verify")).json()
    assert (found["valid"], found["state"]["unproven"]) == (True, [])


async def test_an_act_that_is_undone_is_not_told(service: Service) -> None:
    """What a unit did to rows goes with it, and the next entry does not tell of it."""

    def work(tx: Tx) -> None:
        tx.machines.delete(tx.machines.page(MachineFilter(), None, 1).items[0].machine_id)
        raise RuntimeError("undone")

    await service.introduce(SoftwareNode())
    with pytest.raises(RuntimeError, match="undone"):
        await service.store.write(work)
    await service.store.write(
        lambda tx: tx.audit.append(AuditEvent(operator_cn="a", action="b", detail="x"), service.clock.now())
    )
    (entry,) = await service.audit(action="b")
    assert entry["detail"] == "x"
    assert await problems(service) == {}


@pytest.mark.threat("T136")
async def test_an_intruder_gives_a_reason(service: Service) -> None:
    """Words of an operator or of a machine that look like the mark are words, also in an entry about no row."""
    words = 'x; authority [["allow-list","' + "e" * 96 + '",null,"' + "0" * 32 + '"]]'
    node, rejected = SoftwareNode(), SoftwareNode()
    await service.introduce(rejected)
    await service.act(rejected, "reject", {"reason": words})
    await service.admitted(node)
    await service.act(node, "lock")
    ordered = await service.attest(node)
    said = node.acknowledgement(await service.challenge(node), ordered["directive"], detail=words)
    answer = await service.post(f"/api/v1/machines/{node.machine_id}/ack", said)
    assert answer.status_code == 200, answer.text
    assert await problems(service) == {}


async def test_many_findings_are_counted(service: Service) -> None:
    """A hundred are named, the others counted."""
    intruder = Intruder(service.directory / "machines.db")
    intruder.run(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 130)"
        " INSERT INTO allow_list SELECT printf('%096x', i), 'worker-app', NULL, NULL, NULL, NULL, 0, 'x', NULL FROM n"
    )
    found = await state(service)
    assert (len(found["unproven"]), found["more"]) == (MOST_FINDINGS, 30)


async def test_memory_does_not_grow_with_the_fleet(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are read in pages, and both sides lie in a file of SQLite's own."""
    intruder = Intruder(service.directory / "machines.db")
    intruder.run(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
        " INSERT INTO allow_list SELECT printf('%096x', i), 'worker-app', NULL, NULL, NULL, NULL, 0, 'x', NULL FROM n"
    )
    monkeypatch.setattr(verification, "PAGE_ROWS", 500)
    await state(service)
    tracemalloc.start()
    try:
        await state(service)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 4 << 20


def test_an_entry_that_cannot_be_read_is_named() -> None:
    """Whoever writes entries past the service does not silence the comparison."""
    ledger = Ledger()
    good, _ = with_changes("x", [Change("allow-list", "a", None, "b")])
    assert good is not None
    data = [good, good[:-1]]
    entries = (json.dumps({"action": "x", "detail": detail}).encode() for detail in data)
    ledger.tell((number, "", "", entry) for number, entry in enumerate(entries, 1))
    found = ledger.compare(2)
    ledger.close()
    assert {each.kind for each in found.unproven} == {"entry", "allow-list"}


@pytest.mark.threat("T136")
async def test_an_act_that_gives_authority_is_signed_at_once(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of acts that come together one signature; a machine's own acts, and what gives nothing, wait for the interval."""
    entry = {"entries": [{"ek_fingerprint": "a" * 96, "role": "worker-app"}]}

    async def signed() -> int:
        newest = await service.resources.transparency.newest()
        return newest.stored.size if newest is not None else 0

    monkeypatch.setattr("attestation_service.transparency.checkpoints.TOGETHER_SECONDS", 0.05)
    log, all_done = service.resources.transparency, asyncio.Event()
    await log.advance(force=True)
    advance = log.advance

    async def wait_for_all(*, force: bool) -> None:
        await all_done.wait()
        await advance(force=force)

    monkeypatch.setattr(log, "advance", wait_for_all)
    await asyncio.gather(*(service.operator("POST", "/allow-list", entry) for _ in range(3)))
    size = await service.store.read(lambda tx: tx.audit.tree.size())
    all_done.set()
    for _ in range(6000):
        if await signed() == size and not log.hurried.is_set():
            break
        await asyncio.sleep(0.01)
    notes = await service.store.read(lambda tx: tx.audit.tree.checkpoints(-1, 99, 99))
    assert [note.size for note in notes] == [0, size]
    # An introduction is told by its machine: nobody hurries for it.
    await service.introduce(SoftwareNode())
    assert not log.hurried.is_set()
    await log.advance(force=False)
    assert await signed() == size
