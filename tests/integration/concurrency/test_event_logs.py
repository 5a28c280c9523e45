"""Event logs with two workers: what one of them was told the other one knows, and a reboot in between (ADR 29)."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from attestation_testing import SoftwareNode
from attestation_testing.event_logs import BootLog, BootOptions, boot, boot_log
from tests.fixtures.machine import Machine, b64, code
from tests.fixtures.service import Operator, ServiceProcess, StartService

pytestmark = pytest.mark.slow

ROUNDS = 12
NORMAL = boot_log(BootOptions())
UPDATED = boot_log(BootOptions(kernel="6.12.0-1"))


def policy(*logs: BootLog) -> dict[str, Any]:
    """Return a policy that wants Secure Boot, and PCR 4 as *logs* leave it."""
    return {
        "format": "itl-tpm-policy/1",
        "name": "measured",
        "version": len(logs),
        "bank": "sha256",
        "pcrs": {"4": {"any_of": [log.pcrs()[4].hex() for log in logs]}},
        "secure_boot": {"required": True},
        "event_log": "required",
    }


class Rebooting:
    """An enrolled machine with an event log, each of its requests over a connection of its own.

    Args:
        seed: Makes its keys.
        url: Of the service.
    """

    def __init__(self, seed: int, url: str) -> None:
        self.node = SoftwareNode(seed)
        self.url = url
        self.log = NORMAL
        self.sent = 0
        with httpx.Client(base_url=url, timeout=60) as http:
            self.machine = Machine(self.node, http)
            self.machine.enrol()

    def boot(self, log: BootLog) -> None:
        """Boot *log*."""
        boot(self.node, log)
        self.log = log

    def attest(self) -> dict[str, Any]:
        """Attest as an agent does: the log goes along where it is demanded."""
        with httpx.Client(base_url=self.url, timeout=60) as http:
            self.machine.http = http
            challenge = self.machine.next_challenge or self.machine.challenge()
            self.machine.next_challenge = None
            more = {}
            if challenge["event_log"] == "required":
                more["event_log"] = b64(self.log.serialise())
                self.sent += 1
            answer = self.machine.send(self.machine.evidence(challenge, **more))
            assert code(answer) == "ok", answer.text
            found: dict[str, Any] = answer.json()
            self.machine.next_challenge = found["next_challenge"]
            return found


@pytest.mark.threat("T73")
def test_what_one_worker_was_told_the_other_knows(start_service: StartService) -> None:
    """A log is sent once a boot whoever answers; after a reboot once more; after a crash not again."""
    service: ServiceProcess = start_service(workers=2)
    with httpx.Client(base_url=service.url, timeout=60) as http:
        operator = Operator(http, service.admin_token)
        operator.call("POST", "/policies", json=policy(NORMAL))
        operator.call("POST", "/policies", json=policy(NORMAL, UPDATED))
        operator.call("PUT", "/policies/assignments/fleet/*", json={"policy": "measured@2"})
        fleet = [Rebooting(seed, service.url) for seed in range(6)]
        for one in fleet:
            one.boot(NORMAL)
            operator.approve(one.machine.machine_id)

        def live(one: Rebooting, rounds: int = ROUNDS) -> None:
            for _ in range(rounds):
                one.attest()

        def trust() -> set[str]:
            return {operator.machine(one.machine.machine_id)["trust"] for one in fleet}

        with ThreadPoolExecutor(len(fleet)) as pool:
            list(pool.map(live, fleet))
            assert [one.sent for one in fleet] == [1] * len(fleet)
            assert trust() == {"verified"}
            for one in fleet:
                one.boot(UPDATED)
            list(pool.map(live, fleet))
            assert [one.sent for one in fleet] == [2] * len(fleet)
            assert trust() == {"verified"}
            # The worker that comes instead has parsed nothing, and asks nobody to send anything again.
            os.kill(service.worker_pids()[0], signal.SIGKILL)
            for one in fleet:
                for _ in range(5):
                    try:
                        one.attest()
                    except httpx.TransportError:
                        one.machine.next_challenge = None
            assert [one.sent for one in fleet] == [2] * len(fleet)
            assert trust() == {"verified"}
        # What changed is explained, whoever is asked.
        for one in fleet:
            newest = operator.pages(f"/machines/{one.machine.machine_id}/results")[0]
            path = f"/machines/{one.machine.machine_id}/results/{newest['result_id']}"
            told = operator.call("GET", path)
            assert [c["pcr"] for c in told["changes"]] == [4]
            assert told["changes"][0]["text"].startswith("PCR 4 changed: ")
            assert operator.request("GET", f"{path}/event-log").content == UPDATED.serialise()


def test_two_answers_at_once_leave_one_log(start_service: StartService) -> None:
    """Machines of one kind send the same log at the same moment: one row, and every one of them is verified."""
    service: ServiceProcess = start_service(workers=2)
    with httpx.Client(base_url=service.url, timeout=60) as http:
        operator = Operator(http, service.admin_token)
        operator.call("POST", "/policies", json=policy(NORMAL))
        operator.call("PUT", "/policies/assignments/fleet/*", json={"policy": "measured@1"})
        fleet = [Rebooting(100 + seed, service.url) for seed in range(16)]
        for one in fleet:
            one.boot(NORMAL)
            operator.approve(one.machine.machine_id)
        with ThreadPoolExecutor(len(fleet)) as pool:
            list(pool.map(Rebooting.attest, fleet))
        found = [operator.machine(one.machine.machine_id) for one in fleet]
    assert {m["trust"] for m in found} == {"verified"}
    assert len({m["event_log_sha256"] for m in found}) == 1
    assert service.rows("SELECT count(*) AS logs FROM measurement_logs") == [{"logs": 1}]
