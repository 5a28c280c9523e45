"""A restart storm: a thousand agents attest at once behind one address, with the limits that a service has unless set.

Their pauses are those of the agent (`attestation_agent.rhythm`), in real time; each has a connection of its own.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

from attestation_agent.rhythm import Rhythm
from tests.bench import fleet
from tests.bench.load import connect
from tests.bench.report import Measurement
from tests.bench.software_machine import SoftwareMachine

AGENTS: Final = 1_000
SPLAY_SECONDS: Final = 3.0
BAR_SECONDS: Final = 60.0


async def _once(machine: SoftwareMachine, port: int) -> tuple[int, int | None]:
    """Ask for a challenge and answer it; return the status that ended it, and `Retry-After`."""
    connection = await connect(port)
    try:
        asked = f"/api/v1/attest/challenge?machine_id={machine.machine_id}"
        status, answer = await connection.request("GET", asked)
        if status == 200:
            found = json.loads(answer)
            machine.challenge = (found["nonce_id"], base64.b64decode(found["nonce"]))
            status, _ = await connection.request("POST", "/api/v1/attest", fleet.attest_body(machine))
        _, there, rest = connection.head.partition(b"\r\nretry-after:")
        return status, int(rest.split(b"\r\n", 1)[0]) if there else None
    finally:
        connection.close()


async def _agent(machine: SoftwareMachine, port: int, statuses: Counter[int], began: float) -> float:
    """Attest until it is done; return how long after the beginning that was."""
    rhythm, failures = Rhythm(), 0
    await asyncio.sleep(random.uniform(0.0, SPLAY_SECONDS))
    while True:
        try:
            status, retry_after = await _once(machine, port)
        except OSError:
            status, retry_after = 0, None
        statuses[status] += 1
        if status == 200:
            return time.monotonic() - began
        failures += 1
        await asyncio.sleep(rhythm.after_failure(failures, retry_after))


async def _storm(machines: list[SoftwareMachine], port: int) -> tuple[list[float], Counter[int]]:
    statuses: Counter[int] = Counter()
    began = time.monotonic()
    done = await asyncio.gather(*(_agent(each, port, statuses, began) for each in machines))
    return sorted(done), statuses


def measure() -> Iterator[Measurement]:
    """Measure once; the load is on the same cores."""
    with fleet.directory() as directory:
        machines = fleet.seed(directory, AGENTS, live=AGENTS)
        limits = {
            "ITL_RATE_LIMIT_ADDRESS_PER_SECOND": "100",
            "ITL_RATE_LIMIT_ADDRESS_BURST": "500",
            "ITL_RATE_LIMIT_MACHINE_PER_SECOND": "1",
            "ITL_RATE_LIMIT_MACHINE_BURST": "20",
        }
        with fleet.service(directory, **limits) as running:
            done, statuses = asyncio.run(_storm(machines, running.port))
    ended = ", ".join(f"{count} x {status or 'no answer'}" for status, count in sorted(statuses.items()))
    yield Measurement(
        name="restart-storm-1000",
        value=done[-1],
        unit="s",
        bar="<= 60 s",
        ok=len(done) == AGENTS and done[-1] <= BAR_SECONDS,
        note=f"until each of 1,000 agents behind one address attested; half in {done[AGENTS // 2]:.1f} s; {ended}",
    )
