"""When PostgreSQL goes away, comes back, is slow, or says no: nothing is done twice, all that is answered is stored."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest
from psycopg import errors
from sqlalchemy import text

from attestation.errors import MachineUnknown, RequestInvalid, StoreBusy, StoreUnavailable
from attestation.store import Store, StoreSettings, grant, migrate, open_store, pipeline, postgres
from attestation.store.queues import Unit
from attestation.store.remote_clock import RemoteClock
from attestation.store.sql import Prepared
from tests.contract.store_samples import a_challenge, a_machine, by_hand
from tests.fixtures.operator_pki import OperatorCA
from tests.fixtures.pgbouncer import SERVING, SESSIONS, pooler, through
from tests.fixtures.postgres import Server
from tools.ports import free_port

SETTINGS = StoreSettings(busy_timeout_seconds=0.3)


@pytest.fixture
def url(postgres_server: Server) -> Iterator[str]:
    """The URL of an empty migrated database."""
    yield postgres_server.create("failing", template="empty")
    postgres_server.drop("failing")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """An open store that does not wait long."""
    opened = open_store(url, SETTINGS)
    yield opened
    opened.close()


def pending(store: Store) -> int:
    """Return how many machines are stored."""
    return store.read_sync(lambda tx: tx.machines.pending().rows)


def add(store: Store, number: int) -> None:
    """Store a machine."""
    store.write_sync(lambda tx: tx.machines.add(a_machine(number)))


def test_a_server_that_returns_is_used_again(store: Store, postgres_server: Server) -> None:
    """While it is away everybody learns that at once; afterwards nobody has to do anything."""
    add(store, 1)
    postgres_server.stop()
    try:
        started = time.monotonic()
        for use in (lambda: add(store, 2), lambda: pending(store)):
            with pytest.raises(StoreUnavailable, match="does not answer"):
                use()
        assert time.monotonic() - started < 30
    finally:
        postgres_server.start()
    add(store, 3)
    assert pending(store) == 2


def test_a_restart_in_between_is_not_noticed(store: Store, postgres_server: Server) -> None:
    """What waits is run on new connections."""
    add(store, 1)
    postgres_server.stop()
    postgres_server.start()
    assert pending(store) == 1
    add(store, 2)
    assert pending(store) == 2


def test_a_server_that_crashes_loses_nothing_acknowledged(store: Store, postgres_server: Server) -> None:
    """Also where it is set to answer before it wrote, as this one is."""
    for number in range(1, 20):
        store.write_sync(lambda tx, n=number: tx.challenges.issue(a_challenge(n)))  # type: ignore[misc]
    postgres_server.stop(signal.SIGQUIT)  # an immediate shutdown, as after a crash
    postgres_server.start()
    found = store.read_sync(lambda tx: [tx.challenges.get(a_challenge(n).challenge_id) for n in range(1, 20)])
    assert None not in found


def test_who_keeps_the_lock_is_waited_for_and_then_given_up(store: Store, url: str) -> None:
    """By the busy timeout, not for ever; reads go on, and the next write does."""
    with psycopg.connect(url) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", (postgres.WRITE_LOCK,))
        started = time.monotonic()
        with pytest.raises(StoreBusy):
            add(store, 1)
        assert time.monotonic() - started >= 0.3
        assert pending(store) == 0
    add(store, 1)
    assert pending(store) == 1


def test_who_stops_with_the_lock_loses_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server takes it away; the one who stopped begins anew, so its unit is done once."""
    monkeypatch.setattr(postgres, "_STALLED_SECONDS", 0.2)
    slow, quick = open_store(url, SETTINGS), open_store(url, StoreSettings(busy_timeout_seconds=30))
    began, goes_on, runs = threading.Event(), threading.Event(), []

    def stall(tx: Any) -> None:
        tx.machines.add(a_machine(1))
        began.set()
        runs.append(1)
        if len(runs) == 1:
            goes_on.wait(60)

    thread = threading.Thread(target=slow.write_sync, args=(stall,))
    thread.start()
    try:
        assert began.wait(30)
        add(quick, 2)
    finally:
        goes_on.set()
        thread.join()
    assert len(runs) == 2
    assert pending(quick) == 2
    for store in (slow, quick):
        store.close()


class Losing(pipeline.Pipeline):
    """It loses its connection at the first COMMIT: before it reaches the server, or after."""

    before = True
    lost = 0

    def run(self, text: str) -> None:
        """As the real one, but once."""
        if text != "COMMIT" or type(self).lost:
            super().run(text)
            return
        type(self).lost += 1
        if not self.before:
            super().run(text)
        self.close()
        raise errors.OperationalError("lost")


@pytest.mark.threat("T27")
@pytest.mark.parametrize("before", [True, False])
def test_a_lost_answer_is_asked_for(url: str, before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was committed is not done again, what was not is; the caller learns that it is stored."""
    monkeypatch.setattr(postgres, "Pipeline", type("Losing", (Losing,), {"before": before}))
    store = open_store(url, SETTINGS)
    runs = []

    def work(tx: Any) -> str:
        runs.append(1)
        tx.machines.add(a_machine())
        return "done"

    assert store.write_sync(work) == "done"
    assert len(runs) == (2 if before else 1)
    assert pending(store) == 1
    store.close()


def test_a_lost_answer_that_nobody_knows_is_told_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is repeated blindly: it may have been done."""
    monkeypatch.setattr(postgres, "Pipeline", type("Losing", (Losing,), {"before": False}))
    store = open_store(url, SETTINGS)
    monkeypatch.setattr(postgres, "connect", Mock(side_effect=StoreUnavailable("away")))
    runs: list[int] = []

    def work(tx: Any) -> None:
        runs.append(1)
        tx.machines.add(a_machine())

    with pytest.raises(StoreUnavailable, match="is not known"):
        store.write_sync(work)
    assert len(runs) == 1
    assert pending(store) == 1
    store.close()


@pytest.mark.threat("T27")
@pytest.mark.parametrize("whole", [True, False])
def test_a_number_that_was_given_away_again_proves_nothing(
    url: str, postgres_server: Server, whole: bool
) -> None:
    """A server that crashed, or one session of it, forgets what was not written: then another has the number."""
    _, _, *before = by_hand(url, postgres._WHO_ANSWERS)[0]
    with closing(postgres._Writer(url, SETTINGS, RemoteClock())) as writer:
        if whole:
            postgres_server.stop(signal.SIGQUIT)
            postgres_server.start()
        else:
            os.kill(writer._pipeline.connection.info.backend_pid, signal.SIGKILL)
        # Which numbers it forgets is chance: what it wrote in time it knows. So we ask of one that another has now.
        life = before
        while life == before:
            with contextlib.suppress(psycopg.OperationalError):  # it crashes, and recovers
                _, _, *life = by_hand(url, postgres._WHO_ANSWERS)[0]
        [(number,)] = by_hand(url, "SELECT pg_current_xact_id()::text")
        writer._pipeline.close()
        with pytest.raises(StoreUnavailable, match="is not known"):
            writer._was_committed(number)


def test_a_number_that_the_server_never_heard_of_was_not_committed(url: str) -> None:
    """It crashed, and lost what it had not written."""
    writer = postgres._Writer(url, SETTINGS, RemoteClock())
    writer._pipeline.close()
    assert not writer._was_committed(str((1 << 40) + 5))
    writer.close()


@pytest.mark.parametrize("conflict", [errors.DeadlockDetected, errors.SerializationFailure])
def test_a_conflict_with_a_stranger_is_repeated(store: Store, conflict: type[psycopg.Error]) -> None:
    """Twice; after the third the caller learns that nothing was stored."""
    runs: list[int] = []

    def work(tx: Any, times: int) -> None:
        runs.append(1)
        tx.machines.add(a_machine(times))
        if len(runs) <= times:
            raise conflict

    store.write_sync(lambda tx: work(tx, 2))
    assert len(runs) == 3
    runs.clear()
    with pytest.raises(StoreUnavailable):
        store.write_sync(lambda tx: work(tx, 3))
    assert len(runs) == 3
    assert pending(store) == 1


def test_a_unit_that_passes_over_a_failed_statement_fails(store: Store) -> None:
    """PostgreSQL has ended the transaction: what the unit did is not stored, and nobody is told that it is."""

    def work(tx: Any) -> None:
        for _ in range(2):
            with contextlib.suppress(psycopg.Error):
                tx.challenges.issue(a_challenge())

    for use in (store.write_sync, store.read_sync):
        with pytest.raises(StoreUnavailable, match="went on"):
            use(work)
    assert store.read_sync(lambda tx: tx.challenges.get(a_challenge().challenge_id)) is None


def test_what_a_read_raises_leaves_the_others_theirs(url: str) -> None:
    """Those that are answered with it, also where a statement failed."""

    def none(tx: Any) -> None:
        tx.machines.require("nobody")

    def written(tx: Any) -> None:
        tx.machines.add(a_machine())

    group = [Unit(work, Future(), None) for work in (none, written, lambda tx: tx.machines.pending().rows)]
    reader = postgres._Reader(url, SETTINGS, RemoteClock())
    reader.serve(group)
    assert [type(unit.error) for unit in group] == [MachineUnknown, StoreUnavailable, type(None)]
    assert group[2].value == 0
    reader.close()


def test_a_database_without_tables_is_unavailable(postgres_server: Server) -> None:
    """A store that was not migrated says so at the first use, also to who writes nothing."""
    store = open_store(postgres_server.create("bare"), SETTINGS)
    for use in (store.read_sync, store.write_sync):
        with pytest.raises(StoreUnavailable):
            use(lambda tx: tx.machines.pending().rows)
    assert store.read_sync(lambda tx: 1) == 1
    with pytest.raises(StoreUnavailable, match="database_identity"):
        store.write_sync(lambda tx: 1)
    store.close()
    postgres_server.drop("bare")


def test_who_may_not_come_in_learns_no_password(postgres_server: Server) -> None:
    """Neither from a server nor from a URL that is none."""
    for wrong in (
        f"postgresql://itl:hunter2@/absent?host={postgres_server.folder}",
        "postgresql://itl:hunter2@[::1]:1/absent",
        "postgresql://itl:hunter2@host:port/absent",
        "postgresql://itl:hunter2@host",
        "postgresql://itl:hunter2@/x?sslmode=hunter3",
    ):
        with pytest.raises((StoreUnavailable, ValueError)) as refused:
            open_store(wrong)
        assert not re.search("hunter2", f"{refused.value!r} {refused.value.__cause__!r}")


def test_what_a_failed_statement_quotes_is_not_told(store: Store, url: str) -> None:
    """Only the first line of what the database says: the others quote rows."""
    by_hand(url, "ALTER TABLE challenges ADD CONSTRAINT c EXCLUDE (nonce WITH =)")
    store.write_sync(lambda tx: tx.challenges.issue(a_challenge(1)))
    with pytest.raises(Exception, match="c") as refused:
        store.write_sync(lambda tx: tx.challenges.issue(a_challenge(2, nonce=a_challenge(1).nonce)))
    assert a_challenge(1).nonce.hex() not in str(refused.value)  # type: ignore[union-attr]


def test_the_documented_form_of_the_url(url: str) -> None:
    """It is SQLAlchemy's, for the store as for the migrations; what follows the question mark is for libpq."""
    documented = url.replace("postgresql:", "postgresql+psycopg:", 1) + "&application_name=ours"
    migrate(documented)
    store = open_store(documented)
    add(store, 1)
    assert ("ours",) in by_hand(url, "SELECT application_name FROM pg_stat_activity")
    store.close()
    for other in ("postgresql+psycopg2:", "postgresql+asyncpg:"):
        with pytest.raises(ValueError, match=r"postgresql\+psycopg://"):
            open_store(url.replace("postgresql:", other, 1))


def test_behind_a_pooler_nothing_is_left_to_a_session(url: str, pooled: Path) -> None:
    """Nothing is prepared, and what the lock's transaction sets ends with it: the next one meets another session."""
    with closing(open_store(through(pooled, url), SETTINGS)) as store:
        for number in range(2 * SESSIONS):
            add(store, number)
        shown = store.read_sync(
            lambda tx: tx.of(
                lambda sql: [
                    sql.row(Prepared(text(f"SELECT {what}")))
                    for what in ("count(*) FROM pg_prepared_statements", "current_setting('lock_timeout')")
                ]
            )
        )
    assert shown == [(0,), ("0",)]


def test_without_a_pooler_statements_are_prepared(store: Store) -> None:
    """Else each of them would be planned anew."""
    add(store, 1)
    prepared = Prepared(text("SELECT count(*) FROM pg_prepared_statements WHERE name <> ''"))
    assert store.write_sync(lambda tx: tx.of(lambda sql: sql.rows(prepared)))[0][0] > 1


@pytest.mark.threat("T26")
def test_the_role_of_the_service_reaches_no_guard(url: str, pooled: Path) -> None:
    """What the log holds, and the trigger that keeps it, is out of its reach; so is every table's definition."""
    serving = f"{url}&user={SERVING}"
    assert by_hand(serving, "SELECT count(*) FROM audit_log") == [(0,)]
    for statement in (
        "UPDATE audit_log SET detail = 'x'",
        "DELETE FROM audit_nodes",
        "TRUNCATE audit_log CASCADE",
        "ALTER TABLE audit_log DISABLE TRIGGER ALL",
        "SET session_replication_role = replica",
        "DROP TABLE challenges",
        "CREATE TABLE mine (x int)",
        "UPDATE alembic_version SET version_num = '0009'",
    ):
        with pytest.raises(errors.InsufficientPrivilege):
            by_hand(serving, statement)


def test_rights_are_given_by_the_owner_to_who_exists_and_only_in_ours(
    url: str, postgres_server: Server
) -> None:
    """And what the role had beyond them is taken away."""
    by_hand(url, f"GRANT ALL ON audit_log TO {SERVING}")
    assert grant(url, SERVING) > 30
    with pytest.raises(errors.InsufficientPrivilege):
        by_hand(f"{url}&user={SERVING}", "UPDATE audit_log SET detail = 'x'")
    with pytest.raises(StoreUnavailable, match="no_such"):
        grant(url, "no_such")
    with pytest.raises(StoreUnavailable, match="only the owner"):
        grant(f"{url}&user={SERVING}", SERVING)
    with pytest.raises(ValueError, match="no roles"):
        grant("sqlite:////tmp/x.db", SERVING)
    with pytest.raises(ValueError, match="everybody"):
        grant(url, "public")
    bare = postgres_server.create("bare")
    with pytest.raises(StoreUnavailable, match="no tables"):
        grant(bare, SERVING)
    postgres_server.drop("bare")


@pytest.mark.threat("T120")
def test_who_was_cut_off_while_the_database_moved_writes_nothing_more(url: str, store: Store) -> None:
    """Its copy goes on: here would grow a second history of one log. Who takes the database back may write."""
    add(store, 1)
    by_hand(url, "UPDATE database_identity SET moved_to = 'x at y', moved_at = 1")
    with pytest.raises(StoreUnavailable, match="goes on elsewhere"):
        add(store, 2)
    assert pending(store) == 1
    with closing(open_store(url, StoreSettings(moved_too=True))) as taking_back:
        taking_back.write_sync(lambda tx: tx.identity.bind(datetime.now(UTC)))
    add(store, 2)
    assert pending(store) == 2


def test_a_deadlock_with_a_stranger_is_ended_and_repeated(url: str) -> None:
    """The server chooses us to give way; the unit is run again, and the stranger has what it wanted."""
    by_hand(url, "ALTER DATABASE failing SET deadlock_timeout = '10ms'")
    with closing(open_store(url, StoreSettings())) as store, psycopg.connect(url) as stranger:
        add(store, 1)
        add(store, 2)
        stranger.execute("SET deadlock_timeout = '1min'")
        stranger.execute(
            "UPDATE machines SET hostname = 'x' WHERE machine_id = %s", (a_machine(2).machine_id,)
        )
        runs: list[int] = []
        holds, goes_on = threading.Event(), threading.Event()

        def work(tx: Any) -> None:
            runs.append(1)
            tx.machines.update(tx.machines.require(a_machine(1).machine_id), kept_bytes=1)
            second = tx.machines.require(a_machine(2).machine_id)
            holds.set()
            goes_on.wait(30)
            tx.machines.update(second, kept_bytes=2)

        def want_first() -> None:
            stranger.execute(
                "UPDATE machines SET hostname = 'x' WHERE machine_id = %s", (a_machine(1).machine_id,)
            )
            stranger.commit()

        threads = [
            threading.Thread(target=store.write_sync, args=(work,)),
            threading.Thread(target=want_first),
        ]
        threads[0].start()
        assert holds.wait(30)
        threads[1].start()
        deadline = time.monotonic() + 30
        while not by_hand(url, "SELECT 1 FROM pg_locks WHERE NOT granted") and time.monotonic() < deadline:
            time.sleep(0.01)
        goes_on.set()  # we close the circle, so we find it
        for thread in threads:
            thread.join(60)
        assert len(runs) > 1
        found = store.read_sync(lambda tx: [tx.machines.require(a_machine(n).machine_id) for n in (1, 2)])
    assert [(machine.kept_bytes, machine.hostname) for machine in found] == [(1, "x"), (2, "x")]


@pytest.mark.parametrize(("times", "runs"), [(2, 3), (9, 3)])
def test_a_serialization_failure_of_the_server_is_repeated_within_a_bound(
    url: str, times: int, runs: int
) -> None:
    """After that the caller learns that nothing was stored."""
    by_hand(
        url,
        "CREATE SEQUENCE fails",  # what a transaction took from it stays taken
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF nextval('fails') <= "
        f"{times} THEN RAISE EXCEPTION 'not now' USING ERRCODE = '40001'; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER fails BEFORE INSERT ON challenges FOR EACH ROW EXECUTE FUNCTION fail()",
    )
    with closing(open_store(url, SETTINGS)) as store:
        ran: list[int] = []

        def work(tx: Any) -> None:
            ran.append(1)
            tx.challenges.issue(a_challenge())

        with contextlib.nullcontext() if times < 3 else pytest.raises(StoreUnavailable, match="not now"):
            store.write_sync(work)
        assert len(ran) == runs
        assert (store.read_sync(lambda tx: tx.challenges.get(a_challenge().challenge_id)) is None) == (
            times > 3
        )


def test_a_server_without_room_refuses_and_is_asked_again(url: str, postgres_server: Server) -> None:
    """Who finds no connection is told so at once, and served as soon as there is one."""
    with closing(open_store(f"{url}&user={SERVING}", SETTINGS)) as store:
        add(store, 1)
        postgres_server.admin("ALTER ROLE {} CONNECTION LIMIT 0", SERVING)
        try:
            by_hand(
                url, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{SERVING}'"
            )
            for use in (lambda: add(store, 2), lambda: pending(store)):
                with pytest.raises(StoreUnavailable, match="too many connections"):
                    use()
        finally:
            postgres_server.admin("ALTER ROLE {} CONNECTION LIMIT -1", SERVING)
        add(store, 2)
        assert pending(store) == 2


@pytest.fixture(scope="module")
def authority() -> OperatorCA:
    """Who vouches for the server of the database."""
    return OperatorCA(datetime.now(UTC))


@pytest.mark.threat("T27")
@pytest.mark.parametrize("protected", [True, False])
@pytest.mark.usefixtures("url")
def test_who_the_server_is_is_verified(
    postgres_server: Server, authority: OperatorCA, tmp_path: Path, protected: bool
) -> None:
    """By its name and by who vouches for it; without TLS nothing is accepted. The server of the wheel has no TLS."""
    ours, others = tmp_path / "ca.pem", tmp_path / "other.pem"
    ours.write_bytes(authority.pem)
    others.write_bytes(OperatorCA(datetime.now(UTC)).pem)
    issued, port = authority.server("db.example"), free_port()
    listening = "listen_addr = 127.0.0.1\n"
    if protected:
        listening += "client_tls_sslmode = require\n"
        listening += "client_tls_cert_file = {folder}/cert.pem\nclient_tls_key_file = {folder}/key.pem\n"

    def named(host: str, root: Path) -> str:
        way = f"host={host}&hostaddr=127.0.0.1&port={port}&sslmode=verify-full&sslrootcert={root}"
        return f"postgresql+psycopg://itl@/failing?{way}"

    files = {"cert.pem": issued.pem, "key.pem": issued.key_pem}
    with pooler(postgres_server, listening, port=port, files=files):
        if protected:
            with closing(open_store(named("db.example", ours), SETTINGS)) as store:
                add(store, 1)
                assert pending(store) == 1
            refused = {
                named("other.example", ours): "does not match",
                named("db.example", others): "verify failed",
            }
        else:
            refused = {named("db.example", ours): "does not support SSL"}
        for wrong, why in refused.items():
            with pytest.raises(StoreUnavailable, match=why):
                open_store(wrong, SETTINGS)


def test_text_that_no_database_holds_is_the_callers_mistake(store: Store) -> None:
    """A NUL, which SQLite would take: no 500, for reads and writes."""
    for use in (store.read_sync, store.write_sync):
        with pytest.raises(RequestInvalid, match="NUL"):
            use(lambda tx: tx.machines.by_id("\0"))
        assert use(lambda tx: tx.machines.by_id("x")) is None


def test_two_migrations_do_not_run_at_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits, and says for whom if that takes long."""
    monkeypatch.setattr(import_module("attestation.store.migrate"), "LOCK_SECONDS", 0.1)
    by_hand(url, "UPDATE alembic_version SET version_num = '0009'")
    with psycopg.connect(url) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s)", (postgres.WRITE_LOCK,))
        with pytest.raises(StoreBusy, match="pg_locks"):
            migrate(url)
