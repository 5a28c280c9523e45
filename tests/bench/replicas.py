"""Three replicas behind nginx on one PostgreSQL, one killed every twenty seconds; then one, two and three processes.

All of it runs on one machine: the machines and operators, nginx, the replicas, and the server of the database, whose
files are in memory.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import psycopg
from psycopg.rows import dict_row

from attestation.store import migrate
from tests.bench import fleet, steady_state
from tests.bench.report import Measurement
from tests.bench.server import Server
from tests.bench.software_machine import SoftwareMachine
from tests.fixtures.postgres import server
from tests.fixtures.replicas import known, nginx_before, replicas
from tests.fixtures.traffic import Journal, Traffic, check
from tests.integration.concurrency.test_votes import Provider

SECONDS = 300.0
MACHINES = 200
PAUSE_SECONDS = 1.0
KILL_EVERY_SECONDS = 20.0

THROUGHPUT_MACHINES = 600
THROUGHPUT_TURNS = 3
MEMORY_ATTESTATIONS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a load was told, and what the database says of it.

    Args:
        journal: What was answered.
        seconds: How long it took, until everything that was asked for was answered.
        kills: How often a replica was killed.
        fault: What contradicts the database; empty where nothing does.
    """

    journal: Journal
    seconds: float
    kills: int
    fault: str


def run(
    *, seconds: float, machines: int, kill_every_seconds: float, pause_seconds: float = PAUSE_SECONDS
) -> Ran:
    """Keep *machines* and operators busy with three replicas, one of which is killed again and again."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="attestation-replicas-")))
        provider = Provider()
        threading.Thread(target=provider.server.serve_forever, daemon=True).start()
        stack.callback(provider.server.server_close)
        stack.callback(provider.server.shutdown)
        postgres = stack.enter_context(server())
        url = postgres.create("replicas")
        migrate(url)
        (folder / "service").mkdir()
        (folder / "nginx").mkdir()
        running = stack.enter_context(
            replicas([url.replace("postgresql:", "postgresql+psycopg:", 1)] * 3, provider, folder / "service")
        )
        tokens = [provider.token(name) for name in ("ada", "bob")]
        known(running, tokens)
        nginx, trust = stack.enter_context(nginx_before(running, folder / "nginx"))
        traffic = Traffic([nginx.port], tokens, trust)
        started = time.monotonic()
        kills = 0

        def kill() -> None:
            nonlocal kills
            for victim in itertools.cycle(running):
                due = started + (kills + 1) * kill_every_seconds
                if due > started + seconds:
                    return
                time.sleep(max(0, due - time.monotonic()))
                victim.kill()
                kills += 1
                victim.start()

        async def busy() -> None:
            tasks = [
                *(traffic.lives(n, pause_seconds=pause_seconds, certificates=True) for n in range(machines)),
                traffic.newcomers(range(1_000_000, 2_000_000)),
                traffic.votes(),
            ]
            running_tasks = [asyncio.create_task(each) for each in tasks]
            killing = asyncio.create_task(asyncio.to_thread(kill))
            await asyncio.sleep(seconds)
            await killing
            traffic.over.set()
            await asyncio.gather(*running_tasks)

        asyncio.run(busy())
        took = time.monotonic() - started
        fault = ""
        with psycopg.connect(url, row_factory=dict_row) as connection:
            try:
                check(traffic.journal, lambda sql: connection.execute(sql.encode()).fetchall())
            except AssertionError as e:
                fault = str(e) or repr(e)
        return Ran(journal=traffic.journal, seconds=took, kills=kills, fault=fault)


def _of_load() -> Iterator[Measurement]:
    ran = run(seconds=SECONDS, machines=MACHINES, kill_every_seconds=KILL_EVERY_SECONDS)
    journal, total = ran.journal, sum(ran.journal.answers.values())
    cuts = quantiles(journal.seconds, n=100)
    refused = ", ".join(f"{count} {code}" for code, count in journal.refusals.items())
    yield Measurement(
        name="replicas-load-losses-and-forks",
        value=float(bool(ran.fault)),
        unit="found",
        bar="no write lost that was acknowledged, nothing done twice, one log",
        ok=not ran.fault,
        note=f"{total:,} requests of {MACHINES} machines and two operators in {ran.seconds:.0f} s to three replicas "
        f"behind nginx, {ran.kills} times one of them killed and started again. Not a success: {refused}. "
        f"{len(journal.redeemed):,} challenges redeemed, {len(journal.activated)} machines enrolled, "
        f"{journal.tokens} proposals voted on by two, {len(journal.certificates)} certificates. {ran.fault}",
    )
    for name, value in (("p50", median(journal.seconds)), ("p99", cuts[98])):
        yield Measurement(
            name=f"replicas-load-{name}",
            value=value * 1e3,
            unit="ms",
            bar="-",
            ok=True,
            note="of answers that are a success, as their sender sees them",
        )


def _of_throughput() -> Iterator[Measurement]:
    for processes in (1, 2, 3):
        with server() as postgres, fleet.directory() as directory:
            url = postgres.create("bench")
            machines = fleet.seed(directory, THROUGHPUT_MACHINES, live=THROUGHPUT_MACHINES, url=url)
            own = {"ITL_DB_URL": url.replace("postgresql:", "postgresql+psycopg:", 1)}
            with fleet.service(directory, processes, **own) as running:
                steady_state.warm_up(running, machines)
                loads = [
                    steady_state.drive(running, steady_state.attestations(machines), 3)
                    for _ in range(THROUGHPUT_TURNS)
                ]
                count = THROUGHPUT_MACHINES * (1 + 3 * THROUGHPUT_TURNS)
                if processes == 1:
                    yield from _of_memory(running, machines, count)
        yield Measurement(
            name=f"throughput-postgresql-{processes}",
            value=median(load.per_second for load in loads),
            unit="/s",
            bar="-",
            ok=True,
            note=f"attestations answered by {processes} process(es) of the service on {os.cpu_count()} cores, which "
            "they share with the load generator and the server of the database; CPU of the service "
            f"{median(load.cpu_seconds for load in loads) * 1e6:.0f} us each",
        )


def _of_memory(running: Server, machines: list[SoftwareMachine], done: int) -> Iterator[Measurement]:
    sizes = []
    for goal in (MEMORY_ATTESTATIONS // 2, MEMORY_ATTESTATIONS):
        rounds = -(-(goal - done) // len(machines))
        steady_state.drive(running, steady_state.attestations(machines), rounds)
        done += rounds * len(machines)
        sizes.append(running.resident_bytes())
    half, full = sizes
    yield Measurement(
        name="resident-memory-postgresql",
        value=full / 1e6,
        unit="MB",
        floor=half / 1e6,
        ratio=full / half,
        bar="<= 120 MB after 100,000 attestations, not growing",
        ok=full <= 120e6 and full <= half * 1.02,
        note=f"one process on PostgreSQL after {done:,} attestations; floor: after half of them",
    )


def measure() -> Iterator[Measurement]:
    """Measure all of it: about fifteen minutes."""
    yield from _of_load()
    yield from _of_throughput()
