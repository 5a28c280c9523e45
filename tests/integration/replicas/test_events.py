"""Events over three replicas of two workers each, which are killed while they hand over (FAULTS R26)."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
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

REPLICAS, WORKERS, MACHINES, ROUNDS, KILLS = 3, 2, 4, 6, 5

LEDGER = """
import asyncio, os, pathlib
from attestation import extension as itl
from attestation.store.handovers import Handovers

HERE = pathlib.Path(__file__).parent
claim = Handovers.claim


def claimed(self, *arguments, **more):
    found = claim(self, *arguments, **more)
    with (HERE / "claims").open("a") as claims:
        claims.write("".join(f"{os.getpid()} {each.sequence} {each.attempts}\\n" for each in found))
    return found


# Who holds a claim is nowhere else: only those of the dead may be given to others.
Handovers.claim = claimed


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
        if event.machine_id is not None and (HERE / "hang").exists():
            with (HERE / "hung").open("a") as hung:
                hung.write(f"{os.getpid()}\\n")
            while (HERE / "hang").exists():
                await asyncio.sleep(0.01)
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
    package = tmp_path / "site/ledger_extension"
    dead: set[int] = set()

    def lines(name: str) -> list[list[str]]:
        path = package / name
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def written() -> list[list[str]]:
        return [
            line for line in lines("ledger") if line[1] != "None"
        ]  # of machines; checkpoints tell of themselves

    def release() -> None:
        """Let the claims of who died pass. Those of the living are theirs: one that is slow would tell it later."""
        theirs = [f"{sequence}/{attempt}" for pid, sequence, attempt in lines("claims") if int(pid) in dead]
        fleet[0].rows(
            "update handovers set next_attempt_at = 0"
            " where sequence || '/' || attempts = any(?) and next_attempt_at < 4000000000000000",
            theirs,
        )
        # Confirmed in the unit that hands them over: whoever claims one as well hands nothing over twice.
        fleet[0].rows("update outbox set next_attempt_at = 0 where done_at is null")

    def kill_one() -> None:
        """Kill a worker in the middle of a handler."""
        before = len(lines("hung"))
        (package / "hang").touch()
        until(lambda: len(lines("hung")) > before, "a worker that is told", 60)
        pid = int(lines("hung")[before][0])
        assert any(pid in each.worker_pids() for each in fleet)
        os.kill(pid, signal.SIGKILL)
        dead.add(pid)
        (package / "hang").unlink()
        release()

    with ExitStack() as stack:
        operators = [each.operator() for each in fleet]
        for operator in operators:
            stack.callback(operator.http.close)
        machines = [Machine(SoftwareNode(seed), operators[0].http) for seed in range(1, MACHINES + 1)]
        with ThreadPoolExecutor(MACHINES) as pool:
            list(pool.map(lambda machine: machine.admitted(operators[0]), machines))

            killed = threading.Event()

            def locked(machine: Machine) -> None:
                acts = itertools.cycle(("lock", "unlock"))
                for number, at, act in zip(itertools.count(), itertools.cycle(operators), acts, strict=False):
                    if number >= 2 * ROUNDS and killed.wait(0.2):
                        return
                    # Who answers may be killed; what was committed is asked of the database below.
                    with contextlib.suppress(httpx.TransportError):
                        at.request("POST", f"/machines/{machine.machine_id}/{act}", json={})

            running = [pool.submit(locked, machine) for machine in machines]
            try:
                for _ in range(KILLS):
                    kill_one()
            finally:
                killed.set()
            for each in running:
                each.result(timeout=60)

        def left() -> int:
            rows = fleet[0].rows(
                "select (select count(*) from handovers) + (select count(*) from outbox where done_at is null) as n"
            )
            return int(str(rows[0]["n"]))

        def all_handed_over() -> bool:
            release()  # a claim may be committed after its holder died
            return left() == 0

        until(all_handed_over, "every event to be handed over")
    committed, told = defaultdict[object, list[object]](list), defaultdict[object, list[object]](list)
    for row in fleet[0].rows(
        "select id, machine_id from outbox where machine_id is not null order by sequence"
    ):
        committed[row["machine_id"]].append(row["id"])
    for _, machine_id, event_id in written():
        told[machine_id].append(event_id)
    assert len(committed) == MACHINES
    assert sum(map(len, committed.values())) > MACHINES * ROUNDS
    # One that came again came before the next of its machine.
    assert {m: [event_id for event_id, _ in itertools.groupby(ids)] for m, ids in told.items()} == committed
    assert sum(map(len, told.values())) >= sum(map(len, committed.values())) + KILLS
