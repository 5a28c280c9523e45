"""Events over three replicas of two workers each, which are killed while they hand over (FAULTS R26)."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from attestation_testing import SoftwareNode
from tests.fixtures.extension import install
from tests.fixtures.machine import Machine
from tests.fixtures.service import ServiceProcess
from tests.integration.replicas.conftest import StartFleet, until

pytestmark = pytest.mark.slow

REPLICAS, WORKERS, MACHINES, ROUNDS = 3, 2, 4, 6

LEDGER = """
import asyncio, os, pathlib
from attestation import extension as itl

HERE = pathlib.Path(__file__).parent


class Extension(itl.AttestationExtension):
    contract = 1
    name = "ledger"
    version = "1.0.0"
    description = "Writes down what it is told."

    def get_subscriptions(self):
        return {"*": self.told}

    async def told(self, event):
        with (HERE / "ledger").open("a") as ledger:
            ledger.write(f"{os.getpid()} {event.machine_id} {event.id}\\n")
        await asyncio.sleep(0.1)
"""


@pytest.fixture
def fleet(tmp_path: Path, start_fleet: StartFleet) -> tuple[ServiceProcess, ...]:
    """Three services on one database, each with two workers, that write down what they hand over."""
    site = tmp_path / "site"
    site.mkdir()
    install(site, "ledger", LEDGER.replace("\\\\n", "\\n"))
    environment = {
        "PYTHONPATH": str(site),
        "ITL_EXTENSIONS": "ledger",
        "ITL_MAINTENANCE_SECONDS": "0.1",
        "ITL_AUDIT_CHECKPOINT_SECONDS": "3600",
    }
    return start_fleet(REPLICAS, WORKERS, environment)


@pytest.mark.threat("T183")
def test_killed_workers_lose_no_event_and_keep_the_order(
    fleet: tuple[ServiceProcess, ...], tmp_path: Path
) -> None:
    """Each event at least once, those of a machine in their order, the same id when it comes again."""
    ledger = tmp_path / "site/ledger_extension/ledger"

    def written() -> list[list[str]]:
        return [line.split() for line in ledger.read_text().splitlines()] if ledger.exists() else []

    def kill_one() -> None:
        """Kill the worker that is told next, in the middle of it."""
        before, give_up_at = len(written()), time.monotonic() + 5
        while not written() or (len(written()) == before and time.monotonic() < give_up_at):
            time.sleep(0.002)
        pid = int(written()[-1][0])
        if any(pid in each.worker_pids() for each in fleet):
            os.kill(pid, signal.SIGKILL)
        # The claims of who died have passed.
        fleet[0].rows("update handovers set next_attempt_at = 0 where next_attempt_at < 4000000000000000")
        fleet[0].rows("update outbox set next_attempt_at = 0 where done_at is null")

    with ExitStack() as stack:
        operators = [each.operator() for each in fleet]
        for operator in operators:
            stack.callback(operator.http.close)
        machines = [Machine(SoftwareNode(seed), operators[0].http) for seed in range(1, MACHINES + 1)]
        with ThreadPoolExecutor(MACHINES) as pool:
            list(pool.map(lambda machine: machine.admitted(operators[0]), machines))

            def locked(machine: Machine) -> None:
                acts = itertools.islice(itertools.cycle(("lock", "unlock")), 2 * ROUNDS)
                for at, act in zip(itertools.cycle(operators), acts, strict=False):
                    # Who answers may be killed; what was committed is asked of the database below.
                    with contextlib.suppress(httpx.TransportError):
                        at.request("POST", f"/machines/{machine.machine_id}/{act}", json={})

            running = [pool.submit(locked, machine) for machine in machines]
            for _ in range(5):
                kill_one()
            for each in running:
                each.result(timeout=60)

        def left() -> int:
            rows = fleet[0].rows(
                "select (select count(*) from handovers) + (select count(*) from outbox where done_at is null) as n"
            )
            return int(str(rows[0]["n"]))

        deadline = time.monotonic() + 5
        while left() and time.monotonic() < deadline:
            time.sleep(0.1)
        fleet[0].rows("update handovers set next_attempt_at = 0 where next_attempt_at < 4000000000000000")
        fleet[0].rows("update outbox set next_attempt_at = 0 where done_at is null")
        until(lambda: left() == 0, "every event to be handed over", 60)
    committed, told = defaultdict[object, list[object]](list), defaultdict[object, list[object]](list)
    for row in fleet[0].rows(
        "select id, machine_id from outbox where machine_id is not null order by sequence"
    ):
        committed[row["machine_id"]].append(row["id"])
    for _, machine_id, event_id in written():
        told[machine_id].append(event_id)
    told.pop("None", None)
    assert len(committed) == MACHINES
    assert sum(map(len, committed.values())) > MACHINES * ROUNDS
    # One that came again came before the next of its machine.
    assert {m: [event_id for event_id, _ in itertools.groupby(ids)] for m, ids in told.items()} == committed
    assert sum(map(len, told.values())) > sum(map(len, committed.values()))
