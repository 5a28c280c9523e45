"""Two replicas on one PostgreSQL of their own, each with a way to it that can be made to fail, under traffic."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from attestation.store import migrate
from tests.fixtures.fault_proxy import FaultProxy
from tests.fixtures.postgres import Server, server
from tests.fixtures.replicas import known, replicas, through
from tests.fixtures.service import ServiceProcess
from tests.fixtures.traffic import Journal, Traffic, check
from tests.integration.concurrency.test_votes import Provider

PATIENCE_SECONDS = 90
MACHINES = 6
ENOUGH = 25
"""Successes that show that traffic flows."""
_SEEDS = itertools.count(1_000_000, 1_000)


@dataclass
class Scene:
    """Replicas, their ways to the database, and what all traffic so far was told.

    Args:
        postgres: The server.
        url: Of the database, by no proxy.
        ways: A proxy for each replica.
        replicas: They share a folder of keys.
        tokens: Of two operators.
    """

    postgres: Server
    url: str
    ways: list[FaultProxy]
    replicas: list[ServiceProcess]
    tokens: list[str]
    journal: Journal = field(default_factory=Journal)

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Return rows of the database."""
        with psycopg.connect(self.url, row_factory=dict_row) as connection:
            return connection.execute(sql.encode()).fetchall()

    def endures(self, fault: Callable[[], object]) -> None:
        """Keep machines and operators busy with all replicas before, during and after *fault*, and check."""
        self.journal.outstanding.clear()
        asyncio.run(self._busy(fault))
        check(self.journal, self.rows)

    async def _busy(self, fault: Callable[[], object]) -> None:
        traffic = Traffic([each.port for each in self.replicas], self.tokens, journal=self.journal)
        seed = next(_SEEDS)
        tasks = [
            asyncio.create_task(each)
            for each in (
                *(traffic.lives(seed + n, pause_seconds=0.02, certificates=True) for n in range(MACHINES)),
                traffic.newcomers(range(seed + MACHINES, seed + 1000)),
                traffic.votes(),
            )
        ]
        try:
            await self._flows(tasks)
            await asyncio.to_thread(fault)
            await self._flows(tasks)
        finally:
            traffic.over.set()
            await asyncio.gather(*tasks)

    async def _flows(self, tasks: list[asyncio.Task[None]]) -> None:
        wanted = self.journal.answers["ok"] + ENOUGH
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.journal.answers["ok"] < wanted:
            assert time.monotonic() < deadline, self.journal.answers
            assert not any(each.done() for each in tasks), self.journal.wrong
            await asyncio.sleep(0.02)

    def answered(self, code: str, times: int = 1) -> None:
        """Wait until *code* was answered so often from now on."""
        wanted = self.journal.answers[code] + times
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.journal.answers[code] < wanted:
            assert time.monotonic() < deadline, self.journal.answers
            time.sleep(0.01)


def gone(pids: list[int]) -> None:
    """Wait until these processes are."""
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="package")
def provider() -> Iterator[Provider]:
    """Who vouches for operators."""
    found = Provider()
    thread = threading.Thread(target=found.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield found
    found.server.shutdown()
    found.server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def scene(
    provider: Provider, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Scene]:
    """Two replicas on a server that may be stopped."""
    failed_before = request.session.testsfailed
    with ExitStack() as stack:
        postgres = stack.enter_context(server())
        url = postgres.create("faults")
        migrate(url)
        ways = [stack.enter_context(FaultProxy(postgres.socket)) for _ in range(2)]
        urls = [through(way, "faults") for way in ways]
        running = stack.enter_context(replicas(urls, provider, tmp_path_factory.mktemp("faults")))
        tokens = [provider.token(name) for name in ("ada", "bob")]
        known(running, tokens)
        yield Scene(postgres, url, ways, running, tokens)
        if request.session.testsfailed > failed_before:
            print("\n".join(line for line in running[0].log().splitlines() if "info" not in line)[-5000:])
