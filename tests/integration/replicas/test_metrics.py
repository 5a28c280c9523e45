"""Numbers are right over three replicas of two workers each: whoever is asked says the same (FAULTS R28)."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from attestation.keys import create_kek
from attestation_extensions.metrics import KEPT
from attestation_testing import SoftwareNode
from tests.fixtures.machine import Machine
from tests.fixtures.service import ServiceProcess
from tests.integration.extensions.test_webhooks import Receiver
from tests.integration.replicas.conftest import StartFleet, until

pytestmark = pytest.mark.slow

REPLICAS, WORKERS, MACHINES, ROUNDS = 3, 2, 3, 4

Key = tuple[str, tuple[str, ...]]
Samples = dict[Key, float]


@pytest.fixture
def fleet(start_fleet: StartFleet, tmp_path: Path) -> tuple[ServiceProcess, ...]:
    """Three services on one database, each with two workers, and with all that counts."""
    kek = f"file:{tmp_path}/kek"
    create_kek(kek).close()
    counting = {
        "ITL_MAINTENANCE_SECONDS": "1",
        "ITL_EXTENSIONS": "metrics,secret_vault,webhooks",
        "ITL_EXT_SECRET_VAULT_KEK": kek,
        "ITL_EXT_WEBHOOKS_KEK": kek,
        "ITL_EXT_WEBHOOKS_ALLOW_HTTP": "true",
        "ITL_EXT_WEBHOOKS_POLL_SECONDS": "0.2",
        "ITL_WEBHOOK_ALLOW_NETS": "127.0.0.0/8",
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


def secret_operations(
    fleet: Sequence[ServiceProcess], machines: Sequence[Machine], stack: ExitStack
) -> Mapping[Key, int]:
    """Create, read and refuse at every replica, each machine's its own; return what they must show."""
    for number, machine in enumerate(machines):
        operator = fleet[number % REPLICAS].operator()
        stack.callback(operator.http.close)
        body = {"name": "own", "value": "v"}
        operator.call("POST", f"/secrets/machines/{machine.machine_id}/secrets", json=body)
        operator.call("POST", "/shared-secrets/", json={"name": f"shared-{number}", "value": "v"})
        machine.http = stack.enter_context(
            httpx.Client(base_url=fleet[(number + 1) % REPLICAS].url, timeout=60, trust_env=False)
        )
        own = f"/secrets/machines/{machine.machine_id}/secrets/own/read"
        assert machine.post(own, machine.evidence(machine.challenge())).is_success
        shared = f"/shared-secrets/by-name/shared-{number}/read"
        assert machine.post(shared, machine.evidence(machine.challenge())).status_code == 403
    name, each = "attestation_secret_operations_total", len(machines)
    return {
        (name, ("create", "done")): 2 * each,
        (name, ("read", "done")): each,
        (name, ("read", "refused")): each,
        # Whichever worker delivered it.
        ("attestation_webhook_deliveries_total", ("node.registered", "delivered")): each,
        ("attestation_webhook_deliveries_total", ("extension", "delivered")): 2 * each,
    }


@pytest.fixture
def receiver() -> Iterator[str]:
    """What webhooks are sent to, by its URL."""
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def test_two_workers_and_three_replicas_show_one_number(
    fleet: tuple[ServiceProcess, ...], receiver: str
) -> None:
    """Each counter is moved over HTTP at all of them, and each of them shows the sum: nothing twice, nothing lost."""
    with ExitStack() as stack:
        clients = [
            stack.enter_context(httpx.Client(base_url=each.url, timeout=60, trust_env=False))
            for each in fleet
        ]
        operator = fleet[0].operator()
        stack.callback(operator.http.close)
        told = ["machine.registered", "secret.created"]
        operator.call("POST", "/webhooks/", json={"url": receiver, "events": told})
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
            60,
        )
        moved = secret_operations(fleet, machines, stack)
        until(lambda: shown(fleet[2].url).items() >= moved.items(), f"{moved}", 60)
        entries = int(fleet[0].rows("SELECT count(*) AS n FROM audit_log")[0]["n"])
        until(
            lambda: summed(shown(fleet[1].url), "attestation_audit_log_entries_total") >= entries,
            "the log",
            60,
        )
        time.sleep(KEPT.total_seconds())
        for each in fleet:
            for _ in range(4):
                found = shown(each.url)
                assert summed(found, "attestation_machine_attestations_total") == expected
                assert found["attestation_quote_age_seconds_count", ()] == expected
                assert summed(found, "attestation_machine_registrations_total") == MACHINES
                assert summed(found, "attestation_audit_log_entries_total") == entries
                assert {key: found[key] for key in moved} == moved
                assert found["attestation_machines_by_status", ("attested",)] == MACHINES
                assert found["attestation_active_sessions", ()] == MACHINES
        # What a worker counted it writes down when it ends.
        machines[0].http = clients[0]
        machines[0].attest()
        assert fleet[0].stop() == 0
        until(
            lambda: summed(shown(fleet[2].url), "attestation_machine_attestations_total") == expected + 1,
            "the last",
            60,
        )
