"""One steady-state attestation over HTTP: evidence in, verdict, durable write, next challenge out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench import fleet, server
from tests.bench.load import Connection, spread
from tests.bench.quotes import bare_verify_seconds
from tests.bench.report import Measurement
from tests.bench.software_machine import SoftwareMachine

MACHINES = 900
ROUNDS = 12
CONCURRENCY = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a run of attestations cost the server.

    Args:
        cpu_seconds: User and system time per attestation, all processes of the server.
        per_second: Attestations per second.
        answer_bytes: Mean size of an answer.
        resident_bytes: Largest process afterwards.
        count: Attestations made.
    """

    cpu_seconds: float
    per_second: float
    answer_bytes: int
    resident_bytes: int
    count: int


def drive(running: server.Server, machines: list[SoftwareMachine], rounds: int) -> Load:
    """Let *machines* attest *rounds* times after a warm-up and return the cost; any refusal is an error."""
    sizes: list[int] = []

    def job(machine: SoftwareMachine) -> Callable[[Connection], Awaitable[None]]:
        async def attest(connection: Connection) -> None:
            sizes.append(await fleet.attest(machine, connection))

        return attest

    def fetch(machine: SoftwareMachine) -> Callable[[Connection], Awaitable[None]]:
        return lambda connection: fleet.first_challenge(machine, connection)

    async def run() -> tuple[float, float]:
        await spread(running.port, CONCURRENCY, [fetch(m) for m in machines])
        await spread(running.port, CONCURRENCY, [job(m) for m in machines])
        sizes.clear()
        cpu, start = running.cpu_seconds(), time.perf_counter()
        await spread(running.port, CONCURRENCY, [job(m) for m in machines], rounds=rounds)
        return running.cpu_seconds() - cpu, time.perf_counter() - start

    cpu, wall = asyncio.run(run())
    return Load(
        cpu_seconds=cpu / len(sizes),
        per_second=len(sizes) / wall,
        answer_bytes=sum(sizes) // len(sizes),
        resident_bytes=running.resident_bytes(),
        count=len(sizes),
    )


def bare_cpu_seconds(body: bytes, answer_bytes: int, log: Path) -> float:
    """Return the server's CPU per request of a bare JSON endpoint with bodies of these sizes."""
    count = MACHINES * ROUNDS

    async def run(running: server.Server) -> float:
        async def job(connection: Connection) -> None:
            status, _ = await connection.request("POST", "/bare", body)
            assert status == 200

        await spread(running.port, CONCURRENCY, [job] * 1000)
        cpu = running.cpu_seconds()
        await spread(running.port, CONCURRENCY, [job] * count)
        return running.cpu_seconds() - cpu

    arguments = ["tests.bench.bare", "--workers", str(fleet.WORKERS)]
    with server.run(arguments, {"BENCH_ANSWER_BYTES": str(answer_bytes)}, log) as running:
        return asyncio.run(run(running)) / count


def measure() -> Iterator[Measurement]:
    """Measure cost, throughput and memory."""
    with fleet.directory() as directory:
        machines = fleet.seed(directory, 1000, live=MACHINES)
        with fleet.service(directory) as running:
            load = drive(running, machines, ROUNDS)
            body = fleet.attest_body(machines[0])
        bare = bare_cpu_seconds(body, load.answer_bytes, directory / "bare.log")
    verify = bare_verify_seconds()
    floor = bare + verify
    yield Measurement(
        name="steady-state-cpu",
        value=load.cpu_seconds * 1e6,
        unit="us",
        floor=floor * 1e6,
        ratio=load.cpu_seconds / floor,
        bar="<= 2.5 x (bare JSON endpoint + bare verify)",
        ok=load.cpu_seconds <= 2.5 * floor,
        note=f"CPU of all server processes per attestation; floor = bare endpoint {bare * 1e6:.0f} us "
        f"({len(body)} bytes in, {load.answer_bytes} out, same server) + verification {verify * 1e6:.0f} us",
    )
    yield Measurement(
        name="steady-state-throughput",
        value=load.per_second,
        unit="/s",
        bar=">= 1,200/s, 2 workers, SQLite, no error",
        ok=load.per_second >= 1200,
        note=f"{load.count} attestations by {MACHINES} machines over {CONCURRENCY} connections, none refused; "
        "the load generator runs on the same cores; synchronous=FULL",
    )
    yield Measurement(
        name="resident-memory",
        value=load.resident_bytes / 1e6,
        unit="MB",
        bar="<= 120 MB",
        ok=load.resident_bytes <= 120e6,
        note=f"largest process after {load.count + MACHINES} attestations",
    )
