"""The audit log as others can check it: signed, proven, and never signed where it was rewritten."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from attestation.audit import AuditEvent, canonical_bytes, chain, checkpoint, merkle
from attestation.audit.checkpoint import Checkpoint, SignedCheckpoint
from attestation.audit.entry import AuditEntry
from attestation.audit.export import MAX_CHECKPOINTS, LogVerifier, Pinned, VerifiedLog
from attestation.audit.note import VerifierKey, parse_vkey
from attestation.audit.tiles import parse_bundle
from attestation.errors import LogBroken, ProofRejected, Unavailable
from attestation.machines import LogEvent
from attestation.store import StoredCheckpoint, Tx
from attestation.wire import b64encode
from attestation_service.audit import handlers
from attestation_service.auth import Duty
from attestation_service.context.request import Origin
from attestation_service.storage.database import DatabaseNotRecognised, LogKeysMissing
from attestation_service.transparency.memory import FILE
from attestation_service.transparency.signing import RETIRED_KEYS
from tests.unit.service.conftest import HeldClock, Service, Starter
from tests.unit.service.people import People, introduce

pytestmark = pytest.mark.anyio

INTERVAL = 60


async def grow(service: Service, entries: int, who: str = "anna") -> None:
    """Append *entries* entries."""

    def work(tx: Tx) -> None:
        for n in range(entries):
            tx.audit.append(AuditEvent(operator_cn=who, action="x", detail=f"{n}"), service.clock.now())

    await service.store.write(work)


async def size_of(service: Service) -> int:
    """Return how many entries there are."""
    return await service.store.read(lambda tx: tx.audit.tree.size())


async def public(service: Service, path: str, **query: Any) -> dict[str, Any]:
    """Ask as nobody; it must be answered."""
    answer = await service.get(f"/api/v1/audit/{path}", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def vkeys(service: Service) -> tuple[VerifierKey, ...]:
    """Return the keys of the log."""
    return tuple(map(parse_vkey, (await public(service, "keys"))["vkeys"]))


async def note(service: Service) -> SignedCheckpoint:
    """Fetch the newest checkpoint and verify both signatures."""
    answer = await service.get("/api/v1/audit/checkpoint")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    return checkpoint.verify(
        checkpoint.parse(answer.content), log_keys=await vkeys(service), witnesses=(), quorum=0
    )


async def verify(service: Service, auditor: dict[str, str]) -> dict[str, Any]:
    """Let the service walk its log; asked by an auditor, who leaves no entry."""
    answer = await service.get("/api/v1/audit/verify", headers=auditor)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def exported(service: Service, auditor: dict[str, str]) -> bytes:
    """Fetch an export."""
    answer = await service.get("/api/v1/audit/export", headers=auditor)
    assert answer.status_code == 200, answer.text
    return answer.content


def offline(data: bytes, keys: tuple[VerifierKey, ...], *earlier: str) -> VerifiedLog:
    """Verify an export as an auditor does without the service."""
    verifier = LogVerifier(
        pinned=Pinned(log_keys=keys, witnesses=(), quorum=0),
        earlier=[checkpoint.parse(kept.encode()) for kept in earlier],
    )
    verifier.feed(data)
    return verifier.finish()


@pytest.fixture
def people(service: Service) -> People:
    """Who works with the service."""
    service.app.state.resources, found = introduce(service.resources)
    return found


@pytest.fixture
def auditor(people: People) -> dict[str, str]:
    """The credential of an auditor."""
    return people.headers("ada", Duty.AUDITOR)


# ---------------------------------------------------------------- checkpoints


async def test_a_checkpoint_is_signed_with_both_algorithms(service: Service) -> None:
    """Its root is that of the entries, its name that of the log; the empty log has one too."""
    empty = (await note(service)).checkpoint
    assert (empty.origin, empty.size, empty.root) == ("attest.example.test/audit", 0, merkle.EMPTY_ROOT)
    await grow(service, 3)
    service.clock.advance(INTERVAL)
    signed = await note(service)
    assert [signer.key.type for signer in signed.signers] == [0x01, 0x06]
    assert signed.signers[1].time == int(service.clock.now().timestamp())
    frontier = merkle.Frontier()
    for _, entry in await service.store.read(lambda tx: tx.audit.entries(0, 9)):
        frontier.append(merkle.leaf_hash(canonical_bytes(entry)))
    assert (signed.checkpoint.size, signed.checkpoint.root) == (3, frontier.root())


async def test_asking_often_signs_rarely(start: Starter) -> None:
    """One signature an interval, or so many entries, however often somebody asks."""
    service = await start(audit_checkpoint_entries=10)
    await grow(service, 1)
    sizes = []
    for seconds, entries in ((0, 3), (59, 3), (1, 0), (1, 9), (1, 1), (600, 0)):
        service.clock.advance(seconds)
        await grow(service, entries)
        sizes.append((await note(service)).checkpoint.size)
    assert sizes == [4, 4, 7, 7, 17, 17]
    stored = await service.store.read(lambda tx: tx.audit.tree.checkpoints(-1, 99, 99))
    assert [found.size for found in stored] == [4, 7, 17]


@pytest.mark.threat("T43")
async def test_workers_sign_one_log(start: Starter) -> None:
    """Two processes with one database have one log and a checkpoint for a size, told of once; the second loses."""
    one = await start()
    two = await start(one.clock)
    await grow(one, 5)
    logs = [one.resources.transparency, two.resources.transparency]
    await asyncio.gather(*(log.advance(force=True) for log in logs * 3))
    assert await vkeys(one) == await vkeys(two)
    assert (await one.get("/api/v1/audit/checkpoint")).text == (
        await two.get("/api/v1/audit/checkpoint")
    ).text
    await grow(two, 2)
    await asyncio.gather(*(log.advance(force=True) for log in logs * 3))
    stored = await one.store.read(lambda tx: tx.audit.tree.checkpoints(-1, 99, 99))
    assert [found.size for found in stored] == [5, 7]
    events = await one.store.write(lambda tx: tx.outbox.claim(99, one.clock.now()))
    told = [each.payload["meta"] for each in events if each.event is LogEvent.CHECKPOINT]
    assert [(each["size"], each["root"]) for each in told] == [(s.size, b64encode(s.root)) for s in stored]
    assert [log.refused for log in logs] == [None, None]


async def test_the_service_signs_without_being_asked(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that nobody asks about are covered within the interval too."""
    monkeypatch.setattr("attestation_service.transparency.checkpoints.TICK_SECONDS", 0.1)
    service = await start(audit_checkpoint_seconds=1)
    await grow(service, 2)
    async with asyncio.timeout(60):
        while (newest := await service.resources.transparency.newest()) is None or newest.stored.size < 2:
            service.clock.advance(1)
            await asyncio.sleep(0.05)


# ---------------------------------------------------------------- proofs and tiles


async def test_proofs_verify(service: Service) -> None:
    """Every entry is proven to be in every tree that has it, every tree to grow to every larger one."""
    await grow(service, 9)
    roots = [
        base64.b64decode((await public(service, "proof/consistency", **{"from": n, "to": n}))["old_root"])
        for n in range(10)
    ]
    for size in range(1, 10):
        for index in range(size):
            proof = await public(service, "proof/inclusion", index=index, size=size)
            assert (proof["index"], proof["size"]) == (index, size)
            leaf = base64.b64decode(proof["leaf_hash"])
            merkle.verify_inclusion(index, size, leaf, _hashes(proof), base64.b64decode(proof["root"]))
            assert base64.b64decode(proof["root"]) == roots[size]
        for old in range(size + 1):
            proof = await public(service, "proof/consistency", **{"from": old, "to": size})
            merkle.verify_consistency(old, size, roots[old], roots[size], _hashes(proof))
    assert (await public(service, "proof/inclusion", index=0))["size"] == 9
    assert (await public(service, "proof/consistency", **{"from": 0}))["new_size"] == 9


def _hashes(proof: dict[str, Any]) -> list[bytes]:
    return [base64.b64decode(found) for found in proof["hashes"]]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("proof/inclusion?index=3", "proof-unavailable"),
        ("proof/inclusion?index=3&size=4", "proof-unavailable"),
        ("proof/inclusion?index=0&size=0", "proof-unavailable"),
        ("proof/inclusion?index=-1", "schema-violation"),
        ("proof/inclusion?index=9223372036854775807", "schema-violation"),
        ("proof/inclusion?size=3", "schema-violation"),
        ("proof/consistency?from=2&to=1", "proof-unavailable"),
        ("proof/consistency?from=4", "proof-unavailable"),
        ("proof/consistency?from=0&to=4", "proof-unavailable"),
        ("proof/consistency?to=1", "schema-violation"),
        ("proof/consistency?from=x", "schema-violation"),
        ("tile/0/000", "proof-unavailable"),
        ("tile/0/000.p/4", "proof-unavailable"),
        ("tile/0/000.p/0", "proof-unavailable"),
        ("tile/0/000.p/256", "proof-unavailable"),
        ("tile/0/001", "proof-unavailable"),
        ("tile/1/000", "proof-unavailable"),
        ("tile/8/000", "proof-unavailable"),
        ("tile/0/0", "proof-unavailable"),
        ("tile/0/x000/000", "proof-unavailable"),
        ("tile/-1/000", "proof-unavailable"),
        ("tile/0/000/../000", "proof-unavailable"),
        ("tile/0/%2e%2e/keys", "proof-unavailable"),
        ("tile/" + "0" * 65, "schema-violation"),
        ("tile/%00", "proof-unavailable"),
    ],
)
async def test_what_there_is_not_is_not_proven(service: Service, path: str, code: str) -> None:
    """A log of three entries: 422 with a code, never a 500, never another tree's hashes."""
    await grow(service, 3)
    answer = await service.get(f"/api/v1/audit/{path}")
    assert answer.status_code == 422, answer.text
    assert answer.json()["type"] == f"urn:itl:problem:{code}"


async def test_tiles_are_the_tree(service: Service, auditor: dict[str, str]) -> None:
    """Hashes for everybody, full tiles to keep for ever; entries for auditors only."""
    await grow(service, 513)
    leaves = b""
    for path, width in (("0/000", 256), ("0/001", 256), ("0/002.p/1", 1)):
        answer = await service.get(f"/api/v1/audit/tile/{path}")
        assert answer.headers["content-type"] == "application/octet-stream"
        assert len(answer.content) == 32 * width
        kept = "public, max-age=31536000, immutable" if width == 256 else "public, max-age=60"
        assert answer.headers.get_list("cache-control") == [kept]
        leaves += answer.content
    above = (await service.get("/api/v1/audit/tile/1/000.p/2")).content
    split = [leaves[at : at + 32] for at in range(0, len(leaves), 32)]
    assert above == merkle.tile_root(split[:256]) + merkle.tile_root(split[256:512])
    for path, width in (("000", 256), ("001", 256), ("002.p/1", 1)):
        assert (await service.get(f"/api/v1/audit/tile/entries/{path}")).status_code == 401
        answer = await service.get(f"/api/v1/audit/tile/entries/{path}", headers=auditor)
        assert answer.headers.get_list("cache-control") == ["no-store"]
        for entry in parse_bundle(answer.content, width):
            assert merkle.leaf_hash(entry) == split.pop(0)
    assert split == []


@pytest.mark.threat("T45")
async def test_strangers_are_slowed_down(start: Starter) -> None:
    """Each of the open routes counts."""
    service = await start(rate_limit_address_burst=5, rate_limit_address_per_second=0.01)
    await grow(service, 1)
    paths = ("checkpoint", "keys", "proof/inclusion?index=0", "proof/consistency?from=1", "tile/0/000.p/1")
    for path in paths:
        assert (await service.get(f"/api/v1/audit/{path}")).status_code == 200
    for path in paths:
        assert (await service.get(f"/api/v1/audit/{path}")).status_code == 429


# ---------------------------------------------------------------- verify and export


async def test_a_good_log_is_valid(service: Service, auditor: dict[str, str]) -> None:
    """Chain, tree and all checkpoints, over several pages; an empty log too."""
    found = await verify(service, auditor)
    assert (found["valid"], found["entries"], found["root_hash"], found["checkpoint_size"]) == (
        True,
        0,
        None,
        None,
    )
    await note(service)
    for _ in range(3):
        await grow(service, 1_500)
        service.clock.advance(INTERVAL)
        await note(service)
    signed = await note(service)
    found = await verify(service, auditor)
    assert found | {"root_hash": ""} == {
        "valid": True,
        "entries": 4_500,
        "root_hash": "",
        "first_invalid_id": None,
        "error": None,
        "tree_size": 4_500,
        "tree_root": base64.b64encode(signed.checkpoint.root).decode(),
        "checkpoints": 4,
        "checkpoint_size": 4_500,
        "state": {"rows": 0, "adopted": 0, "unproven": [], "more": 0},
    }


async def test_an_export_verifies_without_the_service(service: Service, auditor: dict[str, str]) -> None:
    """It holds the record of itself, every entry, and checkpoints from before."""
    await grow(service, 2_300)
    kept = (await service.get("/api/v1/audit/checkpoint")).text
    await grow(service, 5)
    data = await exported(service, auditor)
    verdict = offline(data, await vkeys(service), kept)
    assert (verdict.entries, verdict.checkpoints, verdict.earlier) == (2_306, (2_300, 2_306), (2_300,))
    last = json.loads(data.splitlines()[-1])
    assert (last["id"], last["entry"]["action"], last["entry"]["operator_cn"]) == (2_306, "export", "ada")
    # Another export is another record; nothing signs twice for one size.
    assert offline(await exported(service, auditor), await vkeys(service)).entries == 2_307


async def test_an_export_of_a_log_with_many_checkpoints(service: Service, auditor: dict[str, str]) -> None:
    """Some of them, spread over the log, and always the last: the header stays of a size that can be read."""
    await grow(service, 400)
    signer = service.resources.transparency.signer

    def sign(tx: Tx) -> None:
        for size in range(1, 401):
            found = merkle.root(tx.audit.tree, size)
            text = signer.sign(Checkpoint(origin=signer.origin, size=size, root=found), service.clock.now())
            tx.audit.tree.add_checkpoint(
                StoredCheckpoint(size=size, root=found, note=text, created_at=service.clock.now())
            )

    await service.store.write(sign)
    verdict = offline(await exported(service, auditor), await vkeys(service))
    assert len(verdict.checkpoints) == MAX_CHECKPOINTS - handlers.COSIGNED_CHECKPOINTS
    assert verdict.checkpoints[-1] == 401
    assert max(b - a for a, b in zip(verdict.checkpoints, verdict.checkpoints[1:], strict=False)) <= 2
    assert (await verify(service, auditor))["checkpoints"] == 401


@pytest.mark.threat("T45")
async def test_only_auditors_read_entries(service: Service, people: People) -> None:
    """Nobody, viewers and operators see hashes only."""
    for path in ("", "/verify", "/export", "/tile/entries/000"):
        for headers in ({}, people.headers("vera", Duty.VIEWER), people.headers("otto", Duty.OPERATOR)):
            answer = await service.get(f"/api/v1/audit{path}", headers=headers)
            assert answer.status_code == (403 if headers else 401)
    assert await service.store.read(lambda tx: tx.audit.tree.newest_checkpoint()) is None


@pytest.mark.threat("T45")
async def test_a_long_log_needs_no_memory(service: Service, auditor: dict[str, str]) -> None:
    """To verify and to export a log of 25 MB takes a few; the export is read piece by piece."""
    detail = "x" * 2_200
    at = service.clock.now()

    def work(tx: Tx) -> None:
        for _ in range(2_500):
            tx.audit.append(AuditEvent(operator_cn="anna", action="x", detail=detail), at)

    for _ in range(4):
        await service.store.write(work)
    await note(service)
    tracemalloc.start()
    try:
        assert (await verify(service, auditor))["valid"]
        verified = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        resources = service.app.state.resources
        who = await resources.oidc.operator(
            auditor["Authorization"].removeprefix("Bearer "), Origin("test", "192.0.2.1"), service.clock.now()
        )
        verifier = LogVerifier(
            pinned=Pinned(log_keys=await vkeys(service), witnesses=(), quorum=0), earlier=[]
        )
        total = 0
        async for piece in await handlers.export(who, service.clock.now(), res=resources):
            verifier.feed(piece)
            total += len(piece)
        exporting = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert verifier.finish().entries == 10_001
    assert total > 25_000_000
    assert verified < 14 << 20
    assert exporting < 14 << 20


# ---------------------------------------------------------------- somebody with the database in their hands


class Forger:
    """Writes to the database past the service: without triggers, with every hash computed anew.

    Args:
        path: The database.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, *statements: str) -> None:
        """Run SQL without the triggers that protect the log."""
        with closing(sqlite3.connect(self.path)) as db:
            triggers = db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
            for (name,) in triggers:
                db.execute(f"DROP TRIGGER {name}")
            for statement in statements:
                assert db.execute(statement).rowcount > 0, statement
            db.commit()

    def rewrite(self, detail: str, where: int) -> None:
        """Change entry *where*, and all hashes of chain and tree after it."""
        names = AuditEntry.__slots__
        with closing(sqlite3.connect(self.path)) as db:
            rows = db.execute(f"SELECT id, {', '.join(names)} FROM audit_log ORDER BY id").fetchall()
            entries = [(row[0], AuditEntry(**dict(zip(names, row[1:], strict=True)))) for row in rows]
        self.run("DELETE FROM audit_log", "DELETE FROM audit_nodes")
        last, frontier = "0" * 64, []
        with closing(sqlite3.connect(self.path)) as db:
            for row_id, entry in entries:
                members = {name: getattr(entry, name) for name in AuditEvent.__slots__}
                if row_id == where:
                    members["detail"] = detail
                made = chain(AuditEvent(**members), at=HeldClock().now(), prev_hash=last)
                last = made.entry_hash
                frontier.append(merkle.leaf_hash(canonical_bytes(made)))
                values = [row_id, *(getattr(made, name) for name in names)]
                db.execute(
                    f"INSERT INTO audit_log (id, {', '.join(names)}) VALUES ({','.join('?' * 13)})", values
                )
            level = 0
            while frontier:
                db.executemany(
                    "INSERT INTO audit_nodes VALUES (?, ?, ?)",
                    [(level, position, node) for position, node in enumerate(frontier)],
                )
                frontier = [
                    merkle.tile_root(frontier[at : at + 256]) for at in range(0, len(frontier) - 255, 256)
                ]
                level += 1
            db.commit()


@pytest.fixture
def forger(service: Service) -> Forger:
    """Somebody who may write the database file."""
    return Forger(service.directory / "machines.db")


Forge = Callable[[Forger], None]

FORGERIES: list[tuple[Forge, int | None, str]] = [
    (
        lambda f: f.run("UPDATE audit_log SET detail = 'other' WHERE id = 5"),
        5,
        "entry_hash mismatch at entry 5",
    ),
    (
        lambda f: f.run(f"UPDATE audit_log SET prev_hash = '{'1' * 64}' WHERE id = 5"),
        5,
        "prev_hash mismatch at entry 5",
    ),
    (lambda f: f.run("DELETE FROM audit_log WHERE id = 5"), 5, "entry 5 is missing"),
    (
        lambda f: f.run(
            "UPDATE audit_log SET id = 1000 WHERE id = 5",
            "UPDATE audit_log SET id = 5 WHERE id = 6",
            "UPDATE audit_log SET id = 6 WHERE id = 1000",
        ),
        5,
        "prev_hash mismatch at entry 5",
    ),
    (
        lambda f: f.run("UPDATE audit_nodes SET hash = zeroblob(32) WHERE level = 0 AND position = 4"),
        5,
        "another leaf for entry 5",
    ),
    (
        lambda f: f.run("DELETE FROM audit_nodes WHERE level = 0 AND position = 4"),
        5,
        "another leaf for entry 5",
    ),
    (
        lambda f: f.run("UPDATE audit_nodes SET hash = zeroblob(32) WHERE level = 1"),
        None,
        "tile 0 of level 0 does not lead to its root",
    ),
    (lambda f: f.run("DELETE FROM audit_nodes WHERE level = 1"), None, "tile 0 of level 0"),
    (
        lambda f: f.run("INSERT INTO audit_nodes VALUES (0, 300, zeroblob(32))"),
        301,
        "a leaf for entry 301, which is missing",
    ),
    (lambda f: f.rewrite("other", 5), 1, "one of the entries 1 to 100 was rewritten"),
    (lambda f: f.rewrite("other", 101), 101, "one of the entries 101 to 300 was rewritten"),
    (
        lambda f: f.run(
            "DELETE FROM audit_log WHERE id > 299", "DELETE FROM audit_nodes WHERE position > 298"
        ),
        300,
        "entry 300 is missing: a checkpoint covers 300",
    ),
    (
        lambda f: f.run("DELETE FROM audit_log WHERE id > 50", "DELETE FROM audit_nodes WHERE position > 49"),
        51,
        "entries 51 to 300 are missing",
    ),
    (lambda f: f.run("DELETE FROM audit_log", "DELETE FROM audit_nodes"), 1, "are missing"),
    (
        lambda f: f.run(
            "UPDATE audit_checkpoints SET note = replace(note, char(10) || '300', char(10) || '299')"
            " WHERE size = 300"
        ),
        None,
        "does not verify",
    ),
    (
        lambda f: f.run("UPDATE audit_checkpoints SET size = 200 WHERE size = 300"),
        None,
        "stored for size 200",
    ),
    (lambda f: f.run("UPDATE audit_checkpoints SET note = 'x' WHERE size = 100"), None, "note"),
]


@pytest.mark.threat("T42")
@pytest.mark.parametrize(("forge", "first", "why"), FORGERIES)
async def test_what_is_forged_is_found(
    service: Service, auditor: dict[str, str], forger: Forger, forge: Forge, first: int | None, why: str
) -> None:
    """The walk names the entry, or the range, or the tile, or the checkpoint."""
    await grow(service, 100)
    await note(service)
    await grow(service, 200)
    service.clock.advance(INTERVAL)
    await note(service)
    forge(forger)
    found = await verify(service, auditor)
    assert why in str(found["error"])
    assert (found["valid"], found["first_invalid_id"]) == (False, first)
    assert (found["root_hash"], found["tree_root"], found["checkpoints"]) == (None, None, 0)


def rewrite_after_checkpoint(forger: Forger) -> None:
    """Change an entry that a checkpoint covers, and every hash."""
    forger.rewrite("other", 5)


def truncate(forger: Forger) -> None:
    """Cut off entries that a checkpoint covers."""
    forger.run("DELETE FROM audit_log WHERE id > 9", "DELETE FROM audit_nodes WHERE position > 8")


def change_an_entry(forger: Forger) -> None:
    """Change an entry that no checkpoint covers yet, but not the tree."""
    forger.run("UPDATE audit_log SET detail = 'other' WHERE id = 11")


def change_a_leaf(forger: Forger) -> None:
    """Change the tree, but not the entry."""
    forger.run("UPDATE audit_nodes SET hash = zeroblob(32) WHERE position = 10")


def forget_the_checkpoints_and_rewrite(forger: Forger) -> None:
    """Nothing in the database says what it was before."""
    forger.run("DELETE FROM audit_checkpoints")
    forger.rewrite("other", 5)


def forget_the_memory(forger: Forger) -> None:
    """As root of the host can: nothing beside the keys says what it was before, either."""
    forger.run("UPDATE database_identity SET bound_at = NULL")
    (forger.path.parent / "ca" / FILE).unlink()


def change_an_old_leaf(forger: Forger) -> None:
    """The tree below a checkpoint, which nobody compares with entries again."""
    forger.run("UPDATE audit_nodes SET hash = zeroblob(32) WHERE position = 3")


def forget_the_checkpoints_and_change_an_old_leaf(forger: Forger) -> None:
    """Only the process itself still knows what it signed."""
    forger.run("DELETE FROM audit_checkpoints")
    change_an_old_leaf(forger)


def foreign_checkpoint(forger: Forger) -> None:
    """A checkpoint that somebody else signed."""
    forger.run("UPDATE audit_checkpoints SET note = replace(note, char(10) || '10', char(10) || '11')")


@pytest.mark.threat("T43")
@pytest.mark.parametrize(
    "forge",
    [
        rewrite_after_checkpoint,
        truncate,
        change_an_entry,
        change_a_leaf,
        forget_the_checkpoints_and_rewrite,
        change_an_old_leaf,
        forget_the_checkpoints_and_change_an_old_leaf,
        foreign_checkpoint,
    ],
)
async def test_what_is_forged_is_not_signed(
    service: Service, auditor: dict[str, str], forger: Forger, forge: Forge
) -> None:
    """Nothing is signed, once is said why, `/readyz` says so, and nobody gets an export of it."""
    await grow(service, 10)
    kept = await note(service)
    await grow(service, 5)
    forge(forger)
    before = await service.store.read(lambda tx: tx.audit.tree.newest_checkpoint())
    service.clock.advance(INTERVAL)
    for _ in range(3):
        with pytest.raises(Unavailable):
            await service.resources.transparency.advance(force=False)
    assert (await service.get("/api/v1/audit/checkpoint")).status_code == 503
    assert (await service.get("/api/v1/audit/export", headers=auditor)).status_code == 503
    assert await service.store.read(lambda tx: tx.audit.tree.newest_checkpoint()) == before
    entries = await service.store.read(lambda tx: tx.audit.entries(0, 99))
    (refused,) = [entry for _, entry in entries if entry.action == "checkpoint_refused"]
    assert (refused.operator_cn, bool(refused.detail)) == ("service", True)
    ready = await service.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
    assert ready.json()["checks"]["audit"].startswith("degraded: ")
    assert not (await verify(service, auditor))["valid"]
    assert kept.checkpoint.size == 10


@pytest.mark.threat("T120")
@pytest.mark.parametrize("forge", [rewrite_after_checkpoint, truncate, change_an_old_leaf])
async def test_a_worker_does_not_start_with_another_log(start: Starter, forge: Forge) -> None:
    """The keys remember what they signed, whatever the database says of it."""
    service = await start()
    await grow(service, 10)
    await note(service)
    await grow(service, 5)
    forge(Forger(service.directory / "machines.db"))
    with pytest.raises(
        DatabaseNotRecognised, match=r"entry 9, but 10 were signed|not those that were signed"
    ):
        await start(service.clock)


@pytest.mark.parametrize("forge", [foreign_checkpoint])
async def test_a_worker_that_starts_anew_knows_what_was_signed(start: Starter, forge: Forge) -> None:
    """From the checkpoints in the database, whose signatures it verifies; it signs nothing else."""
    service = await start()
    await grow(service, 10)
    await note(service)
    await grow(service, 5)
    forge(Forger(service.directory / "machines.db"))
    again = await start(service.clock)
    again.app.state.resources, people = introduce(again.resources)
    assert not (await verify(again, people.headers("ada", Duty.AUDITOR)))["valid"]
    await grow(again, 3)
    again.clock.advance(INTERVAL)
    before = await again.store.read(lambda tx: tx.audit.tree.newest_checkpoint())
    assert (await again.get("/api/v1/audit/checkpoint")).status_code == 503
    assert await again.store.read(lambda tx: tx.audit.tree.newest_checkpoint()) == before
    assert again.resources.transparency.refused


async def test_a_tree_that_is_not_whole_proves_nothing(
    service: Service, auditor: dict[str, str], forger: Forger
) -> None:
    """A node is gone that a checkpoint covers: proofs and tiles are 503, nothing is signed, acts go on."""
    await grow(service, 300)
    await note(service)
    forger.run("DELETE FROM audit_nodes WHERE level = 0 AND position > 289 AND position < 295")
    for path in ("proof/inclusion?index=1", "proof/consistency?from=7", "tile/0/001.p/44"):
        answer = await service.get(f"/api/v1/audit/{path}")
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:itl:problem:unavailable")
    assert (await service.get("/api/v1/audit/tile/0/000")).status_code == 200
    await grow(service, 300)
    service.clock.advance(INTERVAL)
    assert (await service.get("/api/v1/audit/checkpoint")).status_code == 503
    assert (await service.get("/readyz")).json()["status"] == "degraded"
    assert "entry 291" in (await verify(service, auditor))["error"]


async def test_it_goes_on_where_the_log_is_whole_again(
    service: Service, auditor: dict[str, str], forger: Forger
) -> None:
    """A leaf that was put back: the next signature is made, and `/readyz` is content."""
    await grow(service, 10)
    await note(service)
    await grow(service, 1)
    (leaf,) = await service.store.read(lambda tx: tx.audit.tree.hashes(0, 10, 1))
    change_a_leaf(forger)
    service.clock.advance(INTERVAL)
    assert (await service.get("/api/v1/audit/checkpoint")).status_code == 503
    forger.run(f"UPDATE audit_nodes SET hash = x'{leaf.hex()}' WHERE level = 0 AND position = 10")
    assert (await note(service)).checkpoint.size == 12
    assert (await service.get("/readyz")).json()["status"] == "ok"
    assert (await verify(service, auditor))["valid"]


@pytest.mark.threat("T42")
async def test_an_older_checkpoint_proves_a_rewritten_log_wrong(start: Starter) -> None:
    """Whoever rewrites all, and makes the service sign that after a restart, is told on by any kept checkpoint.

    By a proof of consistency, which there is none of, and by an export verified offline.
    """
    service = await start()
    await grow(service, 10)
    answer = await service.get("/api/v1/audit/checkpoint")
    kept = checkpoint.parse(answer.content).checkpoint
    keys = await vkeys(service)
    forger = Forger(service.directory / "machines.db")
    forget_the_checkpoints_and_rewrite(forger)
    forget_the_memory(forger)
    again = await start(service.clock)
    again.app.state.resources, people = introduce(again.resources)
    await grow(again, 3)
    again.clock.advance(INTERVAL)
    new = (await note(again)).checkpoint
    proof = await public(again, "proof/consistency", **{"from": kept.size, "to": new.size})
    with pytest.raises(ProofRejected):
        merkle.verify_consistency(kept.size, new.size, kept.root, new.root, _hashes(proof))
    data = await exported(again, people.headers("ada", Duty.AUDITOR))
    assert offline(data, keys).entries == 15  # one tells that keys and database are bound anew
    with pytest.raises(LogBroken, match="entries 1 to 10"):
        offline(data, keys, answer.text)


@pytest.mark.threat("T42")
async def test_an_older_checkpoint_proves_a_truncated_log_wrong(start: Starter) -> None:
    """Cut off and grown again: neither the size nor the root hides it."""
    service = await start()
    await grow(service, 20)
    answer = await service.get("/api/v1/audit/checkpoint")
    kept = checkpoint.parse(answer.content).checkpoint
    keys = await vkeys(service)
    forger = Forger(service.directory / "machines.db")
    forger.run(
        "DELETE FROM audit_checkpoints",
        "DELETE FROM audit_log WHERE id > 15",
        "DELETE FROM audit_nodes WHERE position > 14",
    )
    forget_the_memory(forger)
    again = await start(service.clock)
    again.app.state.resources, people = introduce(again.resources)
    auditor = people.headers("ada", Duty.AUDITOR)
    assert (await again.get("/api/v1/audit/proof/consistency", params={"from": kept.size})).status_code == 422
    with pytest.raises(LogBroken, match="18 to 20 are missing"):
        offline(await exported(again, auditor), keys, answer.text)
    await grow(again, 9, who="eve")
    again.clock.advance(INTERVAL)
    new = (await note(again)).checkpoint
    proof = await public(again, "proof/consistency", **{"from": kept.size, "to": new.size})
    with pytest.raises(ProofRejected):
        merkle.verify_consistency(kept.size, new.size, kept.root, new.root, _hashes(proof))
    with pytest.raises(LogBroken):
        offline(await exported(again, auditor), keys, answer.text)


# ---------------------------------------------------------------- keys that change


@pytest.mark.threat("T165")
async def test_a_service_that_moves_signs_the_same_log(start: Starter) -> None:
    """Another address is another name under the same keys: it continues, and verifies what it signed before."""
    service = await start()
    await grow(service, 3)
    await note(service)
    there = {"service_url": "https://elsewhere.example.test:8443/base"}
    with pytest.raises(
        DatabaseNotRecognised, match=r"has been called attest\.example\.test/audit, and ITL_SERVICE_URL"
    ):
        await start(service.clock, **there)  # not by itself
    moved = await start(service.clock, **there, audit_origin="elsewhere.example.test:8443/audit")
    moved.app.state.resources, people = introduce(moved.resources)
    await grow(moved, 1)
    moved.clock.advance(INTERVAL)
    assert (await note(moved)).checkpoint.origin == "elsewhere.example.test:8443/audit"
    auditor = people.headers("ada", Duty.AUDITOR)
    assert (await verify(moved, auditor))["checkpoints"] == 2
    assert offline(await exported(moved, auditor), await vkeys(moved)).checkpoints == (4, 5)


@pytest.mark.threat("T43")
async def test_new_keys_need_the_old_ones_on_the_list(start: Starter) -> None:
    """Without them nothing says that the older checkpoints are ours; with them the log goes on."""
    service = await start()
    await grow(service, 3)
    kept = (await service.get("/api/v1/audit/checkpoint")).text
    old = [str(key) for key in await vkeys(service)]
    for name in ("audit-ed25519.pem", "audit-mldsa44.pem"):
        (service.directory / "ca" / name).unlink()
    await grow(service, 1)
    service.clock.advance(INTERVAL)
    with pytest.raises(LogKeysMissing):
        await start(service.clock)  # none are made in their place
    (service.directory / "ca" / RETIRED_KEYS).write_text("# keys until today\n\n" + "\n".join(old) + "\n")
    known = await start(service.clock)
    known.app.state.resources, people = introduce(known.resources)
    assert (await note(known)).checkpoint.size == 4
    listed = await public(known, "keys")
    assert listed["retired"] == old
    assert not set(old) & set(listed["vkeys"])
    auditor = people.headers("ada", Duty.AUDITOR)
    assert (await verify(known, auditor))["checkpoints"] == 2
    pinned = tuple(map(parse_vkey, old)) + await vkeys(known)
    assert offline(await exported(known, auditor), pinned, kept).earlier == (3,)


@pytest.mark.parametrize("text", ["not a key\n", b"\xff\xfe"])
async def test_a_list_of_old_keys_that_cannot_be_read_stops_the_start(
    start: Starter, text: str | bytes
) -> None:
    """Otherwise a slip of the pen would look like a forged log."""
    (start.directory / "ca").mkdir()
    (start.directory / "ca" / RETIRED_KEYS).write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(Exception, match=RETIRED_KEYS):
        await start()


async def test_an_origin_may_be_chosen(start: Starter) -> None:
    """ITL_AUDIT_ORIGIN names the log; the keys bear that name."""
    service = await start(audit_origin="log.example/attestation")
    assert (await note(service)).checkpoint.origin == "log.example/attestation"
    assert (await public(service, "keys"))["origin"] == "log.example/attestation"
