"""The primary is killed and its synchronous standby takes over: what was acknowledged is there, nothing is twice."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import psycopg
import pytest

from attestation.errors import StoreUnavailable
from attestation.store import StoreSettings, migrate, open_store
from tests.faults.conftest import Scene, gone
from tests.faults.test_store_connection import note
from tests.fixtures.fault_proxy import FaultProxy
from tests.fixtures.postgres import Server, server
from tests.fixtures.replicas import known, replicas, through
from tests.integration.concurrency.test_votes import Provider
from tools.postgres import standby_of

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster() -> Iterator[tuple[Server, Server]]:
    """A primary with an empty migrated database, and the standby that it waits for."""
    with server(wal_level="replica", max_wal_senders="4", autovacuum="on") as primary:
        migrate(primary.create("faults"))
        with standby_of(primary, "standby") as standby:
            with psycopg.connect(primary.url("faults"), autocommit=True) as connection:
                found: object = None
                deadline = time.monotonic() + 60
                while found != ("sync",):
                    assert time.monotonic() < deadline
                    found = connection.execute("SELECT sync_state FROM pg_stat_replication").fetchone()
            yield primary, standby


def test_a_standby_takes_over(
    cluster: tuple[Server, Server], provider: Provider, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One replica knows both hosts and finds the one that takes writes; for the other one the address moves."""
    primary, standby = cluster
    with ExitStack() as stack:
        ways = [stack.enter_context(FaultProxy(each.socket)) for each in (primary, standby, primary)]
        both = f"postgresql+psycopg://itl@/faults?host=127.0.0.1,127.0.0.1&port={ways[0].port},{ways[1].port}"
        running = stack.enter_context(
            replicas([both, through(ways[2], "faults")], provider, tmp_path_factory.mktemp("failover"))
        )
        tokens = [provider.token(name) for name in ("ada", "bob")]
        known(running, tokens)
        scene = Scene(primary, primary.url("faults"), ways, running, tokens)

        def fail_over() -> None:
            pids = primary.pids()
            primary.stop(signal.SIGKILL)
            gone(pids)
            scene.answered("store-unavailable")
            standby.admin("SELECT pg_promote()")
            ways[2].target = standby.socket
            scene.url = standby.url("faults")

        scene.endures(fail_over)
        primary.start()  # for its fixture, which ends it


def test_what_only_the_primary_has_is_not_acknowledged(cluster: tuple[Server, Server]) -> None:
    """A commit that waits for the standby, and whose session is ended, is said by the primary to be committed."""
    primary, standby = cluster
    with ExitStack() as stack:
        connection = stack.enter_context(psycopg.connect(primary.url("faults"), autocommit=True))
        store = stack.enter_context(
            closing(open_store(primary.url("faults"), StoreSettings(busy_timeout_seconds=2)))
        )
        note(store, 1)
        pids = standby.pids()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            waits = stack.enter_context(ThreadPoolExecutor(1)).submit(note, store, 2)
            deadline = time.monotonic() + 60
            while not connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            ).fetchall():
                assert time.monotonic() < deadline
            with pytest.raises(StoreUnavailable, match="not known"):
                waits.result(60)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        note(store, 3)
