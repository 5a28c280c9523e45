"""Numbers are right over three replicas of two workers each: whoever is asked says the same (FAULTS R28)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from attestation_extensions.metrics import KEPT
from attestation_testing import SoftwareNode
from tests.fixtures.machine import Machine
from tests.fixtures.service import ServiceProcess
from tests.integration.replicas.conftest import StartFleet, until

pytestmark = pytest.mark.slow

REPLICAS, WORKERS, MACHINES, ROUNDS = 3, 2, 3, 4

Samples = dict[tuple[str, tuple[str, ...]], float]


@pytest.fixture
def fleet(start_fleet: StartFleet) -> tuple[ServiceProcess, ...]:
    """Three services on one database, each with two workers."""
    counting = {
        "ITL_MAINTENANCE_SECONDS": "1",
        "ITL_EXTENSIONS": "metrics",
        "ITL_METRICS_OPEN": "true",
        "ITL_EXT_METRICS_FLUSH_SECONDS": "0.2",
    }
    return start_fleet(REPLICAS, WORKERS, counting)


def shown(url: str) -> Samples:
    """Return what one worker shows; a connection of its own, so that any may answer."""
    answer = httpx.get(f"{url}/metrics", timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def summed(found: Mapping[tuple[str, tuple[str, ...]], float], name: str) -> int:
    """Return the sum of *name* over its labels."""
    return int(sum(value for (each, _), value in found.items() if each == name))


def test_two_workers_and_three_replicas_show_one_number(fleet: tuple[ServiceProcess, ...]) -> None:
    """Each counter is moved over HTTP at all of them, and each of them shows the sum: nothing twice, nothing lost."""
    with ExitStack() as stack:
        clients = [
            stack.enter_context(httpx.Client(base_url=each.url, timeout=60, trust_env=False))
            for each in fleet
        ]
        operator = fleet[0].operator()
        stack.callback(operator.http.close)
        machines = []
        for number in range(MACHINES):
            machine = Machine(SoftwareNode(secrets.randbits(30)), clients[number])
            machine.admitted(operator)
            machines.append(machine)
        first = int(fleet[0].rows("SELECT count(*) AS n FROM audit_log WHERE action = 'register'")[0]["n"])
        assert first == MACHINES
        until(
            lambda: summed(shown(fleet[0].url), "attestation_machine_attestations_total") >= MACHINES, "them"
        )
        begun = MACHINES  # another worker may still show what was a second ago

        def attests(number: int) -> None:
            for turn in range(ROUNDS):
                # New connections: any worker of that replica.
                with httpx.Client(
                    base_url=fleet[(number + turn) % REPLICAS].url, timeout=60, trust_env=False
                ) as http:
                    machines[number].http = http
                    machines[number].attest()

        with ThreadPoolExecutor(MACHINES) as pool:
            list(pool.map(attests, range(MACHINES)))
        expected = begun + MACHINES * ROUNDS
        until(
            lambda: summed(shown(fleet[1].url), "attestation_machine_attestations_total") >= expected,
            "the counts",
            30,
        )
        entries = int(fleet[0].rows("SELECT count(*) AS n FROM audit_log")[0]["n"])
        until(
            lambda: summed(shown(fleet[1].url), "attestation_audit_log_entries_total") >= entries,
            "the log",
            30,
        )
        time.sleep(KEPT.total_seconds())
        for each in fleet:
            for _ in range(4):
                found = shown(each.url)
                assert summed(found, "attestation_machine_attestations_total") == expected
                assert found["attestation_quote_age_seconds_count", ()] == expected
                assert summed(found, "attestation_machine_registrations_total") == MACHINES
                assert summed(found, "attestation_audit_log_entries_total") == entries
                assert found["attestation_machines_by_status", ("attested",)] == MACHINES
                assert found["attestation_active_sessions", ()] == MACHINES
        # What a worker counted it writes down when it ends.
        machines[0].http = clients[0]
        machines[0].attest()
        assert fleet[0].stop() == 0
        until(
            lambda: summed(shown(fleet[2].url), "attestation_machine_attestations_total") == expected + 1,
            "the last",
            30,
        )
