"""The service while PostgreSQL, or the way to it, fails: 503 and Retry-After or a right answer, and nothing is lost."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from tests.faults.conftest import PATIENCE_SECONDS, Scene, gone
from tests.fixtures.fault_proxy import Fault, Trap

pytestmark = pytest.mark.slow

CUTS = 60


@pytest.mark.parametrize("slowness", [{"latency_seconds": 0.02}, {"drip_bytes_per_second": 40_000}])
def test_slow(scene: Scene, slowness: dict[str, float]) -> None:
    """One replica is far away; both serve."""

    def slow() -> None:
        for name, value in slowness.items():
            setattr(scene.ways[0], name, value)
        scene.answered("ok", 30)
        scene.ways[0].latency_seconds, scene.ways[0].drip_bytes_per_second = 0, None

    scene.endures(slow)


def test_cut_again_and_again(scene: Scene) -> None:
    """At any byte, of any connection of either replica."""
    chosen = random.Random(1)

    def cut() -> None:
        for _ in range(CUTS):
            way = chosen.choice(scene.ways)
            way.cut_after_bytes = chosen.randrange(20_000)
            scene.answered("ok")
        for way in scene.ways:
            way.cut_after_bytes = None

    scene.endures(cut)


@pytest.mark.threat("T27")
def test_cut_in_the_middle_of_commits(scene: Scene) -> None:
    """Before the server hears of it, and after; the replica learns which, and nobody else notices."""
    before = scene.journal.answers["store-unavailable"]

    def cut() -> None:
        for number in range(16):
            way = scene.ways[number % 2]
            fault = Fault.RESET if number % 4 < 2 else Fault.FIN
            trap = way.trap = Trap(said=b"COMMIT\0", delivered=number % 8 < 4, fault=fault)
            assert trap.sprung.wait(60)

    scene.endures(cut)
    assert scene.journal.answers["store-unavailable"] == before


def test_half_open(scene: Scene) -> None:
    """The way of one replica takes everything and answers nothing: it says so with 503, and the other one serves."""

    def silence() -> None:
        scene.ways[0].silent = True
        scene.answered("store-unavailable")
        scene.answered("ok", 20)
        scene.ways[0].silent = False

    scene.endures(silence)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_the_server_is_restarted(scene: Scene, how: signal.Signals) -> None:
    """Fast, and at once: in the middle of whatever it was doing."""

    def restart() -> None:
        for _ in range(2):
            scene.postgres.stop(how)
            scene.answered("store-unavailable")
            scene.postgres.start()
            scene.answered("ok", 10)

    scene.endures(restart)


def test_the_server_is_killed(scene: Scene) -> None:
    """One of its sessions, which makes it recover, and all of it."""

    def kill() -> None:
        with psycopg.connect(scene.url) as connection:
            sessions = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'itl-attestation'"
            ).fetchall()
        os.kill(random.choice(sessions)[0], signal.SIGKILL)
        scene.answered("ok", 10)
        pids = scene.postgres.pids()
        scene.postgres.stop(signal.SIGKILL)
        gone(pids)
        scene.answered("store-unavailable")
        scene.postgres.start()

    scene.endures(kill)


def test_others_have_all_connections(scene: Scene) -> None:
    """A replica that needs new ones says so, and has them once there are some."""

    def crowd() -> None:
        way, server = scene.ways[0], scene.ways[0].target
        with ExitStack() as others:
            way.target = Path("/nowhere")  # until somebody else has its connections
            way.cut()
            with contextlib.suppress(psycopg.OperationalError):
                while True:
                    others.enter_context(psycopg.connect(scene.url))
            way.target = server
            told = scene.journal.answers["store-unavailable"]
            deadline = time.monotonic() + PATIENCE_SECONDS
            while scene.journal.answers["store-unavailable"] < told + 5:
                assert time.monotonic() < deadline, scene.journal.answers
                # What was cut is free once the server notices: others have that as well.
                with contextlib.suppress(psycopg.OperationalError):
                    others.enter_context(psycopg.connect(scene.url))
                time.sleep(0.01)
            scene.answered("ok", 20)

    scene.endures(crowd)


def test_a_replica_is_killed(scene: Scene) -> None:
    """In the middle of whatever it was doing; the other one serves, and it comes back."""

    def kill() -> None:
        scene.replicas[1].kill()
        scene.answered("ok", 20)
        scene.replicas[1].start()

    scene.endures(kill)


def test_a_replica_is_stopped_and_wakes_up(scene: Scene) -> None:
    """While it has the write lock: the other one waits, and then serves; what it had begun is not done twice."""

    def stop() -> None:
        for _ in range(3):
            pid = stopped_with_the_lock(scene)
            scene.answered("ok", 20)
            os.kill(pid, signal.SIGCONT)

    scene.endures(stop)


def stopped_with_the_lock(scene: Scene) -> int:
    """Stop the second replica while it has the write lock, and return its id."""
    pid = scene.replicas[1].pid
    deadline = time.monotonic() + 60
    with psycopg.connect(scene.url, autocommit=True) as connection:
        while time.monotonic() < deadline:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.01)  # what it sent is done
            if connection.execute(
                "SELECT 1 FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND granted"
                " AND state = 'idle in transaction'"
            ).fetchone():
                return pid
            os.kill(pid, signal.SIGCONT)
            time.sleep(random.uniform(0, 0.01))
    raise AssertionError("it never had the lock")
