"""The same costs with 1,000 and with 100,000 machines in the database."""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench import fleet, introduce, steady_state
from tests.bench.report import Measurement

SMALL, LARGE = 1_000, 100_000
LIVE = 1_000
ROUNDS = 8


def measure() -> Iterator[Measurement]:
    """Measure steady state and enrolment at both sizes; the live machines are spread over the whole fleet."""
    steady: dict[int, float] = {}
    enrol: dict[int, float] = {}
    for size in (SMALL, LARGE):
        with fleet.directory() as directory:
            machines = fleet.seed(directory, size, live=LIVE)
            introductions = introduce.new_machines(introduce.COUNT)
            with fleet.service(directory) as running:
                steady[size] = steady_state.drive(running, machines, ROUNDS).cpu_seconds
                enrol[size] = introduce.drive(running, introductions)
    for name, unit, scale, costs in (
        ("growth-steady-state", "us", 1e6, steady),
        ("growth-introduce-activate", "ms", 1e3, enrol),
    ):
        yield Measurement(
            name=name,
            value=costs[LARGE] * scale,
            unit=unit,
            floor=costs[SMALL] * scale,
            ratio=costs[LARGE] / costs[SMALL],
            bar="<= 1.2 x from 1,000 to 100,000 machines",
            ok=costs[LARGE] <= 1.2 * costs[SMALL],
            note=f"floor: the same with {SMALL:,} machines; {LIVE:,} machines spread over the fleet attest",
        )
