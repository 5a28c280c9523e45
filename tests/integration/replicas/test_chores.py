"""Chores pass on where their holder dies or is stopped, and nothing is done twice (docs/adr/0108)."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

from tests.fixtures.machine import Machine
from tests.fixtures.service import ServiceProcess
from tests.integration.replicas.conftest import Replicas, until

pytestmark = [pytest.mark.nginx, pytest.mark.slow]


def holder(replicas: Replicas) -> ServiceProcess | None:
    """Return the replica that holds both chores, None while nobody does."""
    rows = replicas.all[1].rows("SELECT holder FROM chores")
    pids = {int(row["holder"].split("/")[1]) for row in rows}
    return next((each for each in replicas.all if {each.pid} == pids), None)


def held(replicas: Replicas) -> ServiceProcess:
    """Return it once there is one."""
    until(lambda: holder(replicas) is not None, "a holder of both chores")
    found = holder(replicas)
    assert found is not None
    return found


def waiting(replicas: Replicas, machine: Machine) -> int:
    """Return how many events of *machine* nobody handed over yet."""
    (row,) = replicas.all[1].rows(
        "SELECT count(*) AS n FROM outbox WHERE done_at IS NULL AND machine_id = ?", machine.machine_id
    )
    found: int = row["n"]
    return found


def events_told(replicas: Replicas, machine: Machine) -> Counter[str]:
    """Return how often each event of *machine* was told, in the logs of all."""
    lines = (line for each in replicas.all for line in each.log_file.read_text().splitlines())
    return Counter(
        line.split('"event_id": ', 1)[1].split(",", 1)[0].rstrip("}")
        for line in lines
        if '"event_id": ' in line and machine.machine_id in line
    )


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_holder_that_falls_silent_is_replaced(replicas: Replicas, how: signal.Signals) -> None:
    """Another one does its work; woken up, the first one does no harm.

    What it had told and not confirmed when it fell silent is told again: an event comes at least once.
    """
    first = held(replicas)
    os.killpg(first.pid, how)
    try:
        until(lambda: holder(replicas) not in (None, first), "another holder")
        others = [number for number, each in enumerate(replicas.all) if each is not first]
        machine = replicas.at(replicas.machine(), others[0])
        machine.admitted(replicas.operators[others[1]])
        until(lambda: waiting(replicas, machine) == 0, "the events of an act")
    finally:
        if how is signal.SIGKILL:
            first.kill()
            first.start()
        else:
            os.killpg(first.pid, signal.SIGCONT)
    until(first.is_ready, "the first one")
    second = held(replicas)
    assert second is not first
    replicas.at(machine, replicas.all.index(first)).attest()
    assert set(events_told(replicas, machine).values()) == {1}
    sizes = [row["size"] for row in replicas.all[1].rows("SELECT size FROM audit_checkpoints ORDER BY size")]
    assert len(sizes) == len(set(sizes)) > 0
    assert all(operator.audit_is_valid() for operator in replicas.operators)
    for each in replicas.all:
        assert '"audit": "degraded' not in replicas.client(replicas.all.index(each)).get("/readyz").text
