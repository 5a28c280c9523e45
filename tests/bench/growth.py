"""The same costs with 1,000 and with 100,000 machines in the database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from tests.bench import fleet, introduce, steady_state
from tests.bench.report import Measurement

SMALL, LARGE = 1_000, 100_000
LIVE = 1_000
ROUNDS = 3
TURNS = 3


def measure() -> Iterator[Measurement]:
    """Measure steady state and enrolment at both sizes, in turns; the live machines are spread over the fleet."""
    with ExitStack() as stack:
        running, machines = {}, {}
        for size in (SMALL, LARGE):
            directory = stack.enter_context(fleet.directory())
            machines[size] = fleet.seed(directory, size, live=LIVE)
            running[size] = stack.enter_context(fleet.service(directory))
            steady_state.warm_up(running[size], machines[size])
        steady, enrol = [], []
        for _ in range(TURNS):
            costs = {
                size: steady_state.drive(
                    running[size], steady_state.attestations(machines[size]), ROUNDS
                ).cpu_seconds
                for size in (SMALL, LARGE)
            }
            steady.append((costs[LARGE] / costs[SMALL], costs))
            costs = {
                size: introduce.drive(running[size], introduce.new_machines(introduce.COUNT))
                for size in (SMALL, LARGE)
            }
            enrol.append((costs[LARGE] / costs[SMALL], costs))
    for name, unit, scale, turns in (
        ("growth-steady-state", "us", 1e6, steady),
        ("growth-introduce-activate", "ms", 1e3, enrol),
    ):
        ratio, costs = sorted(turns, key=lambda turn: turn[0])[TURNS // 2]
        yield Measurement(
            name=name,
            value=costs[LARGE] * scale,
            unit=unit,
            floor=costs[SMALL] * scale,
            ratio=ratio,
            bar="<= 1.2 x from 1,000 to 100,000 machines",
            ok=ratio <= 1.2,
            note=f"floor: the same with {SMALL:,} machines; {LIVE:,} machines spread over the fleet attest; "
            f"median of {TURNS} turns",
        )
