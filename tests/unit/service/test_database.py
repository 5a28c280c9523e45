"""The keys remember their database: another one, an older copy or none at all stops the start, and says so."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.audit import AuditEvent
from attestation.audit.checkpoint import Checkpoint
from attestation.errors import LogBroken, Unavailable
from attestation.keys import load_ed25519, load_mldsa44
from attestation.store import Tx, migrate, open_store
from attestation_service.keys.known_keys import KeysDiffer
from attestation_service.keys.service_keys import MEMORY_FILE
from attestation_service.main import main
from attestation_service.settings import Settings
from attestation_service.storage import database
from attestation_service.storage.database import (
    DatabaseNotRecognised,
    LogKeysMissing,
    accept,
    demand_present,
    recognise,
)
from attestation_service.transparency import memory
from attestation_service.transparency.memory import FILE, Memory, MemoryFile, MemoryUnusable
from tests.unit.service.conftest import HeldClock, Service, Starter, settings_for

pytestmark = pytest.mark.anyio

HERE = "attest.example.test/audit"


async def signed(service: Service, entries: int) -> None:
    """Append *entries* entries and let the log be signed."""

    def work(tx: Tx) -> None:
        for n in range(entries):
            tx.audit.append(AuditEvent(operator_cn="anna", action="x", detail=f"{n}"), service.clock.now())

    await service.store.write(work)
    await service.resources.transparency.advance(force=True)


def remembered(directory: Path) -> Memory:
    """Return what the keys remember."""
    return memory.parse((directory / "ca" / FILE).read_bytes())


def copied(directory: Path) -> Path:
    """Back the database up as operators do."""
    copy = directory / "backup.db"
    with closing(sqlite3.connect(directory / "machines.db")) as db, closing(sqlite3.connect(copy)) as into:
        db.backup(into)
    return copy


def put_back(directory: Path, copy: Path) -> None:
    """Restore a backup, with nothing left of what was there."""
    for path in directory.glob("machines.db*"):
        path.unlink()
    shutil.copy(copy, directory / "machines.db")


async def stop(starter: Starter) -> None:
    """Stop the services that run."""
    await starter.stack.aclose()


def taken(settings: Settings) -> None:
    """Take the database as it is, as `--accept-restored-database` does."""
    store = open_store(settings.db_url)
    try:
        accept(settings, store, HeldClock())
    finally:
        store.close()


def audit(directory: Path, action: str) -> list[str]:
    """Return the details of entries."""
    with closing(sqlite3.connect(directory / "machines.db")) as db:
        found = db.execute("SELECT detail FROM audit_log WHERE action = ? ORDER BY id", (action,))
        return [detail for (detail,) in found]


@pytest.mark.threat("T120")
async def test_the_keys_remember_a_checkpoint_before_anybody_sees_it(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not remembered, durably, is neither signed nor stored."""
    service = await start()
    await signed(service, 3)
    last = remembered(start.directory).last
    newest = await service.resources.transparency.newest()
    assert newest is not None
    assert (last.origin, last.size, last.root) == (HERE, 3, newest.stored.root)

    def no_room(_: MemoryFile, __: Memory) -> None:
        raise MemoryUnusable("no room")

    monkeypatch.setattr(MemoryFile, "write", no_room)
    with pytest.raises(Unavailable):
        await signed(service, 2)
    assert await service.resources.transparency.newest() == newest
    assert service.resources.transparency.refused == "no room"
    assert (await service.get("/readyz")).json()["status"] == "degraded"


@pytest.mark.threat("T120")
async def test_workers_share_what_the_keys_remember(start: Starter) -> None:
    """The second signs only what continues what the first one signed, though its own database says nothing of it."""
    one = await start()
    two = await start(one.clock)
    await signed(one, 5)
    with closing(sqlite3.connect(start.directory / "machines.db")) as db, db:
        for kind in ("update", "delete"):
            db.execute(f"DROP TRIGGER IF EXISTS audit_checkpoints_no_{kind}")
        for (trigger,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f"DROP TRIGGER {trigger}")
        db.execute("DELETE FROM audit_checkpoints")
        db.execute("DELETE FROM audit_nodes WHERE position > 1")
        db.execute("DELETE FROM audit_log WHERE id > 2")
    with pytest.raises(Unavailable):
        await two.resources.transparency.advance(force=True)
    assert two.resources.transparency.refused == "entries 3 to 5 are missing: a checkpoint covers 5"


async def test_a_memory_that_goes_away_stops_the_signing(start: Starter) -> None:
    """A running service does not take its absence for a first start."""
    service = await start()
    await signed(service, 1)
    (start.directory / "ca" / FILE).unlink()
    with pytest.raises(Unavailable):
        await signed(service, 1)
    assert "is gone" in (service.resources.transparency.refused or "")
    with pytest.raises(LogBroken):
        await service.resources.transparency.demand_continued()


@pytest.mark.threat("T120")
async def test_a_missing_database_is_not_made_anew(start: Starter) -> None:
    """Nothing is made in its place: no database, no second CA, no second history."""
    service = await start()
    await signed(service, 2)
    await stop(start)
    keys = {path: path.read_bytes() for path in (start.directory / "ca").iterdir() if path.is_file()}
    for path in start.directory.glob("machines.db*"):
        path.unlink()
    with pytest.raises(DatabaseNotRecognised, match=r"machines\.db is missing.*2 entries.*Bring the right"):
        await start()
    assert not (start.directory / "machines.db").exists()
    (start.directory / "machines.db").touch()  # what a mistyped `touch` or a failed restore leaves
    with pytest.raises(DatabaseNotRecognised, match="is missing"):
        demand_present(settings_for(start.directory))
    assert keys == {path: path.read_bytes() for path in (start.directory / "ca").iterdir() if path.is_file()}


@pytest.mark.threat("T120")
async def test_another_database_is_refused(start: Starter) -> None:
    """An empty one, beside the keys of the old one, and whichever other."""
    await signed(await start(), 2)
    await stop(start)
    for path in start.directory.glob("machines.db*"):
        path.unlink()
    migrate(f"sqlite:///{start.directory}/machines.db")
    with pytest.raises(DatabaseNotRecognised, match="this is another database"):
        await start()
    assert audit(start.directory, "settings_weakened") == []  # it was asked before anything happened


@pytest.mark.threat("T120")
async def test_an_older_copy_is_refused_until_somebody_accepts_it(start: Starter) -> None:
    """The act is audited, the log goes on under another name, and no size is signed twice under one."""
    service = await start()
    await signed(service, 2)
    copy = copied(start.directory)
    await signed(service, 3)
    lost = remembered(start.directory).last
    await stop(start)
    put_back(start.directory, copy)
    with pytest.raises(DatabaseNotRecognised, match="ends at entry 2, but 5 were signed"):
        await start()
    # 1. Two histories under one name: never.
    with pytest.raises(DatabaseNotRecognised, match=f"ITL_AUDIT_ORIGIN={HERE}/2"):
        taken(settings_for(start.directory))
    assert audit(start.directory, "database_accepted") == []
    # 2. Under another one it is told.
    renamed = settings_for(start.directory, audit_origin=f"{HERE}/2")
    taken(renamed)
    (told,) = audit(start.directory, "database_accepted")
    for part in ("ends at entry 2, but 5 were signed", lost.root.hex(), f"goes on as {HERE}/2", "uid "):
        assert part in told
    assert remembered(start.directory).ended == (lost,)
    # 3. It starts, signs, and verifies; the name that ended stays ended.
    again = await start(audit_origin=f"{HERE}/2")
    await signed(again, 4)
    newest = await again.resources.transparency.newest()
    assert newest is not None
    assert (newest.note.splitlines()[0], newest.stored.size) == (f"{HERE}/2", 7)
    await again.resources.transparency.demand_continued()
    await stop(start)
    with pytest.raises(DatabaseNotRecognised, match="give the log a name that it never had"):
        await start()
    # 4. What is accepted is remembered as any other: the older copy is one again.
    put_back(start.directory, copy)
    with pytest.raises(DatabaseNotRecognised, match="but 7 were signed"):
        await start(audit_origin=f"{HERE}/2")


async def test_a_database_from_before_is_bound_once(start: Starter) -> None:
    """Keys and database know of nobody: an upgrade. It is told once, and needs no ceremony."""
    service = await start()
    await signed(service, 2)
    await stop(start)
    (start.directory / "ca" / FILE).unlink()
    with closing(sqlite3.connect(start.directory / "machines.db")) as db, db:
        db.execute("UPDATE database_identity SET bound_at = NULL")
    for _ in range(2):
        await signed(await start(), 1)
        await stop(start)
    assert len(audit(start.directory, "database_bound")) == 1
    # And keys that forgot a database that is bound to them are refused.
    (start.directory / "ca" / FILE).unlink()
    with pytest.raises(DatabaseNotRecognised, match="is missing: restore the folder of the keys"):
        await start()
    taken(settings_for(start.directory))
    await start()
    assert "nothing was remembered" in audit(start.directory, "database_accepted")[0]


LOG_KEYS = ("audit-ed25519.pem", "audit-mldsa44.pem")


@pytest.mark.threat("T170")
async def test_no_keys_are_made_for_a_log_that_others_signed(start: Starter) -> None:
    """They would take its checkpoints for forged. Put back, the service starts as if nothing had been."""
    await signed(await start(), 3)
    await stop(start)
    for names in (LOG_KEYS[:1], LOG_KEYS):
        kept = {start.directory / "ca" / name: (start.directory / "ca" / name).read_bytes() for name in names}
        for path in kept:
            path.unlink()
        with pytest.raises(
            LogKeysMissing, match=rf"{LOG_KEYS[0]}.*up to entry 3. Put the folder of the keys back"
        ):
            await start()
        for path, content in kept.items():
            assert not path.exists()
            path.write_bytes(content)
            path.chmod(0o600)
    service = await start()
    await signed(service, 1)
    assert service.resources.transparency.refused is None


@pytest.mark.threat("T170")
async def test_a_log_whose_keys_are_lost_for_good_ends_and_another_begins(start: Starter) -> None:
    """The restored database had no folder of keys with it: accepted under another name it is signed and verified."""
    await signed(await start(), 3)
    await stop(start)
    shutil.rmtree(start.directory / "ca")
    with pytest.raises(DatabaseNotRecognised, match="is missing: restore the folder of the keys"):
        await start()
    assert [path.name for path in (start.directory / "ca").glob("*.pem")] == []
    with pytest.raises(DatabaseNotRecognised, match=f"ITL_AUDIT_ORIGIN={HERE}/2"):
        taken(settings_for(start.directory))
    taken(settings_for(start.directory, audit_origin=f"{HERE}/2"))
    (told,) = audit(start.directory, "database_accepted")
    assert "audit-ed25519.pem and " in told
    assert f"{HERE} of this database was signed up to entry 3" in told
    again = await start(audit_origin=f"{HERE}/2")
    await signed(again, 2)
    newest = await again.resources.transparency.newest()
    assert newest is not None
    assert newest.note.startswith(f"{HERE}/2\n6\n")
    verified = (await again.operator("GET", "/audit/verify")).json()
    assert (verified["valid"], verified["error"]) == (True, None)
    # What the lost keys signed counts only as far as their log went.
    with closing(sqlite3.connect(start.directory / "machines.db")) as db, db:
        (note,) = db.execute("SELECT note FROM audit_checkpoints WHERE size = 3").fetchone()
        longer = note.replace(f"{HERE}\n3\n", f"{HERE}\n5\n")
        assert longer != note
        for (trigger,) in db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'audit_checkpoints'"
        ).fetchall():
            db.execute(f"DROP TRIGGER {trigger}")
        db.execute("UPDATE audit_checkpoints SET note = ? WHERE size = 6", (longer,))
    assert "signature" in (await again.operator("GET", "/audit/verify")).json()["error"]


@pytest.mark.threat("T170")
async def test_a_checkpoint_of_other_keys_is_told_once_with_what_to_do(
    start: Starter, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other files than before in the folder of the keys: no word of tampering alone, and not every second."""
    await signed(await start(), 1)
    await stop(start)
    for name in LOG_KEYS:
        (start.directory / "ca" / name).unlink()
    load_ed25519(f"file:{start.directory}/ca/{LOG_KEYS[0]}", create=True)
    load_mldsa44(f"file:{start.directory}/ca/{LOG_KEYS[1]}", create=True)
    with pytest.raises(KeysDiffer, match=r"audit-retired-vkeys\.txt"):
        await start()
    # Where the keys were exchanged before the database knew them.
    with closing(sqlite3.connect(start.directory / "machines.db")) as db, db:
        db.execute("DELETE FROM known_keys")
    service = await start()
    capsys.readouterr()
    for _ in range(3):
        with pytest.raises(Unavailable):
            await signed(service, 1)
    refused = [line for line in capsys.readouterr().err.splitlines() if "audit.checkpoint_refused" in line]
    assert len(refused) <= 1  # the task in the background may have told before
    told = service.resources.transparency.refused or ""
    assert f"is not signed by the keys in {start.directory}/ca" in told
    assert "put those of your backup back" in told
    service.clock.advance(3601)
    with pytest.raises(Unavailable):
        await service.resources.transparency.advance(force=True)
    assert "audit.checkpoint_refused" in capsys.readouterr().err


async def test_a_crash_between_the_two_is_finished(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys remember, the database does not know yet: the next start goes on."""
    with monkeypatch.context() as patched:
        patched.setattr(database, "_bind", lambda *_: pytest.fail("crash"))
        with pytest.raises(pytest.fail.Exception, match="crash"):
            await start()
    service = await start()
    found = await service.store.read(lambda tx: tx.identity.get())
    assert found is not None
    assert found.bound_at is not None
    assert remembered(start.directory).database == found.database_id


async def test_a_database_without_identity_is_none(start: Starter) -> None:
    """Whoever removes the row gets neither a first start nor an acceptance."""
    await start()
    await stop(start)
    with closing(sqlite3.connect(start.directory / "machines.db")) as db, db:
        db.execute("DELETE FROM database_identity")
    with pytest.raises(DatabaseNotRecognised, match="lost its identity"):
        await start()
    with pytest.raises(DatabaseNotRecognised, match="lost its identity"):
        taken(settings_for(start.directory))


def test_the_command_says_what_happened_and_accepts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`--prepare` fails with words; `--accept-restored-database` takes what there is and serves nothing."""
    monkeypatch.setenv("ITL_SERVICE_URL", "http://127.0.0.1:8080")
    monkeypatch.setenv("ITL_DB_URL", f"sqlite:///{tmp_path}/machines.db")
    monkeypatch.setenv("ITL_ENROLLMENT_CA_DIR", str(tmp_path / "ca"))
    assert main(["--prepare"]) == 0
    assert main(["--accept-restored-database"]) == 0  # there is nothing to accept
    for path in tmp_path.glob("machines.db*"):
        path.unlink()
    capsys.readouterr()
    assert main(["--prepare"]) == 1
    told = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert told["event"] == "service.unusable"
    assert "machines.db is missing" in told["reason"]
    assert "--accept-restored-database" in told["reason"]
    assert not (tmp_path / "machines.db").exists()
    # Nothing was signed yet, so the log keeps its name.
    assert main(["--accept-restored-database"]) == 0
    assert "another database" in audit(tmp_path, "database_accepted")[0]
    assert main(["--prepare"]) == 0


@given(
    st.text("0123456789abcdef", min_size=32, max_size=32),
    st.lists(st.tuples(st.integers(1, 1 << 40), st.binary(min_size=32, max_size=32)), min_size=1, max_size=3),
)
def test_what_is_written_is_read(name: str, points: list[tuple[int, bytes]]) -> None:
    """A memory survives its file."""
    last, *ended = (Checkpoint(origin="a/b", size=size, root=root) for size, root in points)
    written = Memory(database=name, last=last, ended=tuple(ended))
    assert memory.parse(memory.serialise(written)) == written


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"{}", b"[]", b"null", b"\xff", b"[" * 100_000),
        b'{"format":"itl-audit-memory-v1","database":"x","last":"","ended":[]}',
        b'{"format":"itl-audit-memory-v2","database":"' + b"a" * 32 + b'","last":"a\\n0\\n","ended":[]}',
        b'{"format":"itl-audit-memory-v1","database":"'
        + b"a" * 32
        + b'","last":"a\\n1\\nAA==\\n","ended":[]}',
        b'{"format":"itl-audit-memory-v1","database":"' + b"a" * 32 + b'","last":1,"ended":0}',
    ],
)
def test_what_is_no_memory_is_none(tmp_path: Path, data: bytes) -> None:
    """A cut or foreign file stops the start; it is never taken for an empty memory."""
    (tmp_path / FILE).write_bytes(data)
    with pytest.raises(MemoryUnusable):
        MemoryFile(tmp_path / FILE).read()


def test_a_memory_that_cannot_be_kept_stops_the_start(tmp_path: Path) -> None:
    """A folder in its place, or none that can be made."""
    (tmp_path / FILE).mkdir()
    with pytest.raises(MemoryUnusable, match="cannot be read"):
        MemoryFile(tmp_path / FILE).read()
    known = Memory(database="a" * 32, last=Checkpoint(origin="a/b", size=0, root=b"\0" * 32))
    with pytest.raises(MemoryUnusable, match="cannot be written"):
        MemoryFile(tmp_path / FILE).write(known)
    (tmp_path / "file").touch()
    with (
        pytest.raises(MemoryUnusable, match="cannot be locked"),
        MemoryFile(tmp_path / "file" / FILE).locked(),
    ):
        pass


async def test_recognising_twice_changes_nothing(start: Starter) -> None:
    """Each worker asks; the second has nothing to do."""
    service = await start()
    before = (start.directory / "ca" / FILE).read_bytes()
    recognise(service.resources.settings, service.store, service.clock)
    assert (start.directory / "ca" / FILE).read_bytes() == before
    assert await service.store.read(lambda tx: tx.audit.tree.size()) == 0


async def test_a_service_key_that_is_lost_for_good_is_replaced(start: Starter) -> None:
    """The log goes on, with its keys and its memory; what the database knew of the service key is forgotten, once."""
    await signed(await start(), 1)
    await stop(start)
    for name in ("service-key.pem", MEMORY_FILE):
        (start.directory / "ca" / name).unlink()
    with pytest.raises(KeysDiffer, match="--accept-restored-database"):
        await start()
    taken(settings_for(start.directory))
    (told,) = audit(start.directory, "database_accepted")
    assert told.endswith("which keys the service has is forgotten, and the next start says it")
    taken(settings_for(start.directory))
    assert len(audit(start.directory, "database_accepted")) == 1, "there is nothing more to accept"
    await signed(await start(), 1)
    assert await (await start()).resources.transparency.newest() is not None
