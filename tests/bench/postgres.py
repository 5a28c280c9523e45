"""One steady-state attestation on PostgreSQL: what it costs the service beside SQLite, and how often it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from statistics import median

from tests.bench import fleet, steady_state
from tests.bench.load import connect
from tests.bench.report import Measurement
from tests.fixtures import postgres
from tests.fixtures.fault_proxy import FaultProxy

MACHINES = 900
SMALL, LARGE = 1_000, 100_000
ROUNDS = 3
TURNS = 3


def documented(url: str) -> str:
    """Return *url* as operators write it."""
    return url.replace("postgresql:", "postgresql+psycopg:", 1)


def round_trips(server: postgres.Server, attestations: int) -> list[int]:
    """Return how often the service waited for the database in each of some attestations, one after the other."""
    found = []
    with fleet.directory() as directory, FaultProxy(server.socket) as proxy:
        machine = fleet.seed(directory, 1, live=1, url=documented(server.create("trips")))[0]
        url = f"postgresql+psycopg://itl@127.0.0.1:{proxy.port}/trips"

        async def attest(port: int) -> None:
            connection = await connect(port)
            await fleet.first_challenge(machine, connection)
            for _ in range(attestations):
                before = proxy.round_trips
                await fleet.attest(machine, connection)
                found.append(proxy.round_trips - before)
            connection.close()

        with fleet.service(directory, ITL_DB_URL=url) as running:
            asyncio.run(attest(running.port))
    server.drop("trips")
    return found


def measure() -> Iterator[Measurement]:
    """Measure both databases in turns, then PostgreSQL at both sizes, then the waits."""
    with postgres.server() as server, ExitStack() as stack:
        running, machines = {}, {}
        for name, size in (("sqlite", SMALL), ("small", SMALL), ("large", LARGE)):
            directory = stack.enter_context(fleet.directory())
            settings = {} if name == "sqlite" else {"ITL_DB_URL": documented(server.create(name))}
            machines[name] = fleet.seed(directory, size, live=MACHINES, url=settings.get("ITL_DB_URL"))
            running[name] = stack.enter_context(fleet.service(directory, **settings))
        turns: list[dict[str, steady_state.Load]] = [{} for _ in range(TURNS)]
        for turn in turns:
            for name in running:  # a challenge of a turn before would have expired
                steady_state.warm_up(running[name], machines[name])
                jobs = steady_state.attestations(machines[name])
                turn[name] = steady_state.drive(running[name], jobs, ROUNDS)
        trips = round_trips(server, 50)
    for name, over, under, most, bar in (
        ("postgres-cpu", "small", "sqlite", 1.5, "<= 1.5 x SQLite"),
        ("postgres-growth", "large", "small", 1.2, "<= 1.2 x from 1,000 to 100,000 machines"),
    ):
        turn = sorted(turns, key=lambda turn: turn[over].cpu_seconds / turn[under].cpu_seconds)[TURNS // 2]
        ratio = turn[over].cpu_seconds / turn[under].cpu_seconds
        yield Measurement(
            name=name,
            value=turn[over].cpu_seconds * 1e6,
            unit="us",
            floor=turn[under].cpu_seconds * 1e6,
            ratio=ratio,
            bar=bar,
            ok=ratio <= most,
            note=f"CPU of all processes of the service per steady-state attestation, without the database's; median of "
            f"{TURNS} turns; {turn[over].per_second:.0f} /s against {turn[under].per_second:.0f} /s; the server on the "
            "same cores, fsync=off",
        )
    yield Measurement(
        name="postgres-round-trips",
        value=median(trips),
        unit="",
        bar="<= 3 database round trips per attestation",
        ok=median(trips) <= 3,
        note=f"counted on the wire, median of {len(trips)}; what else the service asked in between shows in the most: "
        f"{max(trips)}",
    )
