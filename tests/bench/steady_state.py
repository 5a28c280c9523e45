"""One steady-state attestation over HTTP: evidence in, verdict, durable write, next challenge out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from tests.bench import fleet, server
from tests.bench.load import Connection, spread
from tests.bench.quotes import bare_verify_seconds
from tests.bench.report import Measurement
from tests.bench.software_machine import SoftwareMachine

MACHINES = 900
ROUNDS = 4
TURNS = 5
CONCURRENCY = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one round of requests cost a server.

    Args:
        cpu_seconds: User and system time per request, all processes of the server.
        per_second: Requests per second.
        answer_bytes: Mean size of an answer.
    """

    cpu_seconds: float
    per_second: float
    answer_bytes: int


Job = Callable[[Connection], Awaitable[int]]
"""One request; returns the size of its answer in bytes."""


def drive(running: server.Server, jobs: Sequence[Job], rounds: int) -> Load:
    """Run *jobs* *rounds* times over `CONCURRENCY` connections; any refusal is an error."""
    sizes: list[int] = []

    def counted(job: Job) -> Callable[[Connection], Awaitable[None]]:
        async def run(connection: Connection) -> None:
            sizes.append(await job(connection))

        return run

    cpu, start = running.cpu_seconds(), time.perf_counter()
    asyncio.run(spread(running.port, CONCURRENCY, [counted(job) for job in jobs], rounds=rounds))
    wall = time.perf_counter() - start
    return Load(
        cpu_seconds=(running.cpu_seconds() - cpu) / len(sizes),
        per_second=len(sizes) / wall,
        answer_bytes=sum(sizes) // len(sizes),
    )


def attestations(machines: Sequence[SoftwareMachine]) -> list[Job]:
    """Return one attestation of each machine."""

    def job(machine: SoftwareMachine) -> Job:
        return lambda connection: fleet.attest(machine, connection)

    return [job(machine) for machine in machines]


def warm_up(running: server.Server, machines: Sequence[SoftwareMachine]) -> Load:
    """Give every machine its first challenge and let it attest once."""

    def fetch(machine: SoftwareMachine) -> Callable[[Connection], Awaitable[None]]:
        return lambda connection: fleet.first_challenge(machine, connection)

    asyncio.run(spread(running.port, CONCURRENCY, [fetch(machine) for machine in machines]))
    return drive(running, attestations(machines), 1)


def bare_requests(body: bytes, count: int) -> list[Job]:
    """Return *count* requests to the bare endpoint."""

    async def job(connection: Connection) -> int:
        status, answer = await connection.request("POST", "/bare", body)
        assert status == 200
        return len(answer)

    return [job] * count


def measure() -> Iterator[Measurement]:
    """Measure cost, throughput and memory.

    The bare endpoint runs beside the service, and both are driven in turns: what the computer does besides
    slows both down alike, so the median of the ratios is what it would be on a quiet one.
    """
    with fleet.directory() as directory:
        machines = fleet.seed(directory, 1000, live=MACHINES)
        with fleet.service(directory) as running:
            answer_bytes = warm_up(running, machines).answer_bytes
            body = fleet.attest_body(machines[0])
            arguments = ["tests.bench.bare", "--workers", str(fleet.WORKERS)]
            environment = {"BENCH_ANSWER_BYTES": str(answer_bytes)}
            with server.run(arguments, environment, directory / "bare.log") as bare_server:
                drive(bare_server, bare_requests(body, 1000), 1)
                turns = []
                for _ in range(TURNS):
                    load = drive(running, attestations(machines), ROUNDS)
                    bare = drive(bare_server, bare_requests(body, MACHINES), ROUNDS)
                    turns.append((load, bare.cpu_seconds, bare_verify_seconds()))
            resident = running.resident_bytes()
    load, bare_cpu, verify = sorted(turns, key=lambda t: t[0].cpu_seconds / (t[1] + t[2]))[TURNS // 2]
    floor = bare_cpu + verify
    per_second = median(load.per_second for load, _, _ in turns)
    count = MACHINES * (TURNS * ROUNDS + 1)
    yield Measurement(
        name="steady-state-cpu",
        value=load.cpu_seconds * 1e6,
        unit="us",
        floor=floor * 1e6,
        ratio=load.cpu_seconds / floor,
        bar="<= 2.5 x (bare JSON endpoint + bare verify)",
        ok=load.cpu_seconds <= 2.5 * floor,
        note=f"CPU of all server processes per attestation, median of {TURNS} turns; floor = bare endpoint "
        f"{bare_cpu * 1e6:.0f} us ({len(body)} bytes in, {load.answer_bytes} out, same server) + verification "
        f"{verify * 1e6:.0f} us",
    )
    yield Measurement(
        name="steady-state-throughput",
        value=per_second,
        unit="/s",
        bar=">= 1,200/s, 2 workers, SQLite, no error",
        ok=per_second >= 1200,
        note=f"{count} attestations by {MACHINES} machines over {CONCURRENCY} connections, none refused; "
        "the load generator runs on the same cores; synchronous=FULL",
    )
    yield Measurement(
        name="resident-memory",
        value=resident / 1e6,
        unit="MB",
        bar="<= 120 MB",
        ok=resident <= 120e6,
        note=f"largest process after {count} attestations",
    )
