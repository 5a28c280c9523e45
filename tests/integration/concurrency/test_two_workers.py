"""Two workers on one database, one of them killed in the middle: nothing is forked, spent twice or lost.

FAULTS R13, R21, E4. Machines are keys in Python: a load of software TPMs would measure the TPMs; a few real ones
are among them.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from attestation.audit import GENESIS_HASH, AuditEntry
from attestation.audit.entry import entry_hash
from attestation_testing import SoftwareNode
from tests.fixtures.machine import Device, Machine, code
from tests.fixtures.service import Operator, ServiceProcess, StartService
from tests.fixtures.tpm import MakeTPM

pytestmark = pytest.mark.slow

MACHINES = 50
REAL = 4
ROUNDS = 6
PATIENCE_SECONDS = 240
THREADS = 24


@pytest.fixture
def two_workers(start_service: StartService) -> ServiceProcess:
    """A service with two worker processes, for one test: what is in its database, that test put there."""
    service = start_service(workers=2)
    _until(lambda: len(service.worker_pids()) == 2, "two workers")
    return service


def _until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


@dataclass(slots=True)
class Acknowledged:
    """What a machine was told with a 200, and therefore must be true for ever."""

    machine_id: str = ""
    activated: bool = False
    approved: bool = False
    attested: int = 0
    token: str = ""
    nonces: list[str] = field(default_factory=list)
    unanswered: int = 0


class Life:
    """One machine from nothing to steady state, whatever happens to the connection.

    A request without an answer may or may not have been done: the machine goes on as a real one would, with a
    new challenge.
    """

    def __init__(self, device: Device, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=60)
        self.machine = Machine(device, self.http)
        self.told = Acknowledged()

    def run(self, approved: threading.Event) -> None:
        """Live."""
        with self.http:
            self._enrol()
            self._attest()
            approved.wait(PATIENCE_SECONDS)
            for _ in range(ROUNDS):
                self._attest()

    def _enrol(self) -> None:
        for offer in self._again(self.machine.introduce):
            body = self.machine.activation(offer.json())
            answer = self._sent(lambda: self.machine.activate(body))  # noqa: B023 -- called at once
            if answer is None:
                continue  # was it done? The same AK may be introduced again
            assert answer.is_success, answer.text
            self.told.machine_id = answer.json()["machine_id"]
            self.told.activated = True
            self.machine.machine_id = self.told.machine_id
            return

    def _attest(self) -> None:
        machine = self.machine
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            challenge, machine.next_challenge = machine.next_challenge, None
            if challenge is None:
                challenge = next(
                    self._again(
                        lambda: self.http.get(
                            "/api/v1/attest/challenge", params={"machine_id": self.told.machine_id}
                        )
                    )
                ).json()
            evidence = machine.evidence(challenge)
            answer = self._sent(lambda: machine.send(evidence))  # noqa: B023 -- called at once
            if answer is None:
                continue
            assert answer.is_success, answer.text
            found = answer.json()
            self.told.nonces.append(challenge["nonce_id"])
            self.told.attested += found["status"] == "attested"
            if found["action"] == "apply-config":
                self.told.token = found["config_token"]
            machine.next_challenge = found["next_challenge"]
            return
        raise AssertionError("no answer in time")

    def _again(self, request: Any) -> Iterator[httpx.Response]:
        """Yield good answers to *request*, sent again where none came."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            answer = self._sent(request)
            if answer is not None:
                assert answer.is_success, answer.text
                yield answer
        raise AssertionError("no answer in time")

    def _sent(self, request: Any) -> httpx.Response | None:
        try:
            answer: httpx.Response = request()
        except httpx.TransportError:
            self.told.unanswered += 1
            time.sleep(random.uniform(0.01, 0.05))
            return None
        if answer.status_code == 503:
            time.sleep(0.05)
            return None
        return answer


def test_fifty_machines_with_operators_and_a_killed_worker(
    two_workers: ServiceProcess, make_tpm: MakeTPM
) -> None:
    """Audit chain valid, no challenge used twice, nothing that was answered lost, no state without its entry."""
    service = two_workers
    with contextlib.ExitStack() as stack:
        devices: list[Device] = [SoftwareNode(seed) for seed in range(MACHINES - REAL)]
        devices += [stack.enter_context(make_tpm().node()) for _ in range(REAL)]
        lives = [Life(device, service.url) for device in devices]
        approved = [threading.Event() for _ in lives]
        stop = threading.Event()
        operators = [stack.enter_context(closing(service.operator().http)) for _ in range(2)]
        pool = stack.enter_context(ThreadPoolExecutor(MACHINES + 2))
        running = [pool.submit(life.run, event) for life, event in zip(lives, approved, strict=True)]
        acts = [
            pool.submit(_approve, Operator(http, service.admin_token), lives, approved, which, stop)
            for which, http in enumerate(operators)
        ]
        _until(lambda: sum(life.told.attested > 0 for life in lives) >= MACHINES // 5, "a fifth to attest")
        victim = random.choice(service.worker_pids())
        os.kill(victim, signal.SIGKILL)
        for future in running:
            future.result(600)
        stop.set()
        for future in acts:
            future.result(60)
    _until(lambda: len(service.worker_pids()) == 2 and victim not in service.worker_pids(), "a new worker")
    assert sum(life.told.attested for life in lives) >= MACHINES * ROUNDS
    print(f"requests without an answer: {sum(life.told.unanswered for life in lives)}")
    _check(service, [life.told for life in lives])


def _approve(
    operator: Operator, lives: list[Life], approved: list[threading.Event], which: int, stop: threading.Event
) -> None:
    """Approve every machine; both operators try all of them, one of them wins."""
    waiting = set(range(len(lives)))
    while waiting and not stop.is_set():
        for i in sorted(waiting, reverse=bool(which)):
            if not lives[i].told.activated:
                continue
            try:
                answer = operator.request(
                    "POST", f"/machines/{lives[i].told.machine_id}/approve", json={"role": "worker-app"}
                )
            except httpx.TransportError:
                continue
            if answer.status_code == 503:
                continue
            assert answer.is_success or code(answer) == "transition-forbidden", answer.text
            lives[i].told.approved = True
            approved[i].set()
            waiting.discard(i)
        time.sleep(0.01)


def _check(service: ServiceProcess, told: list[Acknowledged]) -> None:
    """Hold the database against what machines and operators were told."""
    operator = service.operator()
    assert operator.audit_is_valid()
    if not service.server_url:
        assert service.rows("PRAGMA integrity_check") == [{"integrity_check": "ok"}]
    audit = service.rows("SELECT * FROM audit_log ORDER BY id")
    machines = {row["machine_id"]: row for row in service.rows("SELECT * FROM machines")}
    challenges = {row["challenge_id"]: row for row in service.rows("SELECT * FROM challenges")}
    tokens = service.rows("SELECT * FROM config_tokens")
    outbox = Counter(
        (row["machine_id"], row["event"]) for row in service.rows("SELECT machine_id, event FROM outbox")
    )
    # The chain, walked here a second time without a line of the walker.
    expected = GENESIS_HASH
    for row in audit:
        assert row["prev_hash"] == expected
        entry = AuditEntry(**{name: row[name] for name in AuditEntry.__dataclass_fields__})
        assert entry_hash(entry) == row["entry_hash"]
        expected = row["entry_hash"]
    assert len({row["prev_hash"] for row in audit}) == len(audit)

    # Nothing that was answered is lost, and each id was answered to one machine.
    assert set(machines) == {t.machine_id for t in told}
    for t in told:
        row = machines[t.machine_id]
        assert t.activated
        assert row["ak_activated_at"] is not None
        assert (row["status"], row["role"]) == ("attested", "worker-app")
        # An answer that was lost on the way took its token with it; then an operator redelivers.
        assert t.token or t.unanswered
        # What was redeemed is marked so, and no challenge served two answers.
        assert len(set(t.nonces)) == len(t.nonces)
        for nonce in t.nonces:
            if nonce in challenges:
                assert challenges[nonce]["used_at"] is not None

    # No state without its entry: each machine's life is in the audit, in order, once.
    actions: dict[str, list[tuple[str, str | None, str | None]]] = {}
    for row in audit:
        if row["machine_id"] in machines:
            step = (row["action"], row["prev_state"], row["new_state"])
            actions.setdefault(row["machine_id"], []).append(step)
    for machine_id, row in machines.items():
        steps = [step for step in actions[machine_id] if step[0] in ("register", "approve", "attest")]
        changes = [s for s in steps if s[1] != s[2]]
        assert [s[2] for s in changes] == ["pending_approval", "registered", "attested"], steps
        assert [s[0] for s in changes] == ["register", "approve", "attest"]
        assert changes[-1][2] == row["status"]
        assert outbox[(machine_id, "node.provisioned")] == 1
        assert outbox[(machine_id, "node.online")] == 1
    issued = Counter(token["machine_id"] for token in tokens)
    assert set(issued) == set(machines)
    operator.http.close()


def test_a_hundred_redemptions_over_two_workers_succeed_once(two_workers: ServiceProcess) -> None:
    """One activation proof, then one quote, each sent a hundred times to both workers at once (R13)."""
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(httpx.Client(base_url=two_workers.url, timeout=60)) for _ in range(THREADS)
        ]
        machine = Machine(SoftwareNode(1000), clients[0])
        offer = machine.introduce().json()
        body = machine.activation(offer)
        pool = stack.enter_context(ThreadPoolExecutor(THREADS))

        def send(number: int, path: str, body: dict[str, Any]) -> str:
            return code(clients[number % THREADS].post(f"/api/v1{path}", json=body))

        def race(path: str, body: dict[str, Any]) -> Counter[str]:
            return Counter(pool.map(lambda n: send(n, path, body), range(100)))

        path = f"/machines/{machine.machine_id}/ak-activate"
        assert race(path, body) == {"ok": 1, "challenge-used": 99}
        assert race("/attest", machine.evidence(machine.challenge())) == {"ok": 1, "challenge-used": 99}
    operator = two_workers.operator()
    entries = Counter(e["action"] for e in operator.audit(machine_id=machine.machine_id))
    assert (entries["register"], entries["attest"]) == (1, 1)
    assert operator.audit_is_valid()
    operator.http.close()


def test_two_workers_share_one_key_and_one_token(two_workers: ServiceProcess) -> None:
    """Whichever worker answers, the node pins the same keys, and a delivery happens once (R23, R25)."""
    with contextlib.ExitStack() as stack:
        operator = two_workers.operator()
        stack.enter_context(operator.http)
        # A connection stays with the worker that accepted it: many connections meet both.
        clients = [
            stack.enter_context(httpx.Client(base_url=two_workers.url, timeout=60)) for _ in range(THREADS)
        ]
        machines = [Machine(SoftwareNode(2000 + i), http) for i, http in enumerate(clients[:8])]
        assert len({str(machine.enrol()["service_keys"]) for machine in machines}) == 1
        machine = Machine(SoftwareNode(3000), clients[0])
        token = machine.admitted(operator)["config_token"]
        pool = stack.enter_context(ThreadPoolExecutor(THREADS))
        ways = [Machine(machine.device, http) for http in clients]
        answers = list(pool.map(lambda n: ways[n % THREADS].fetch(token), range(48)))
        assert {a.status_code for a in answers} == {200}
        assert len({a.content for a in answers}) == 1
        actions = [e["action"] for e in operator.audit(machine_id=machine.machine_id)]
        assert actions.count("config_delivered") == 1


def test_a_kill_of_the_whole_service_loses_nothing_that_was_answered(start_service: StartService) -> None:
    """SIGKILL for supervisor and workers between two answers; what was answered is there after the restart."""
    service = start_service(workers=2)
    operator = service.operator()
    with httpx.Client(base_url=service.url, timeout=60) as http:
        machines = [Machine(SoftwareNode(seed), http) for seed in range(5)]
        answers = [machine.admitted(operator) for machine in machines]
    operator.http.close()
    service.kill()
    service.start()
    operator = service.operator()
    assert {m["status"] for m in operator.machines()} == {"attested"}
    assert operator.audit_is_valid()
    with httpx.Client(base_url=service.url, timeout=60) as http:
        for machine, answer in zip(machines, answers, strict=True):
            machine.http = http
            envelope = machine.fetch(answer["config_token"]).json()
            assert service.canary.encode() in machine.unseal(envelope)
            assert machine.attest()["status"] == "attested", "the challenge of the last answer is still good"
    operator.http.close()
