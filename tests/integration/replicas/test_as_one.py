"""Three replicas behave as one, whatever the clocks of their hosts say (docs/adr/0107)."""

from __future__ import annotations

import secrets
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from attestation.clock import parse_rfc3339, to_micros
from tests.fixtures.machine import code
from tests.integration.replicas.conftest import Replicas

pytestmark = [pytest.mark.nginx, pytest.mark.slow]

TTL_SECONDS = 60
"""A challenge is good for so long: a fifth of what the hosts' clocks differ by."""


@pytest.mark.parametrize(("asks", "answers"), [(0, 2), (2, 0), (1, 2)])
def test_a_challenge_of_one_is_redeemed_at_another_once(replicas: Replicas, asks: int, answers: int) -> None:
    """Also where one host's clock is ten minutes ahead of the other's; spent for all three then."""
    machine = replicas.at(replicas.admitted(), asks)
    evidence = machine.evidence(machine.challenge())
    assert code(replicas.at(machine, answers).send(evidence)) == "ok"
    for each in range(3):
        assert code(replicas.at(machine, each).send(evidence)) == "challenge-used"


def test_a_late_answer_is_late_everywhere(replicas: Replicas) -> None:
    """Also where the host's clock still shows the time before."""
    machine = replicas.admitted()
    for each in range(3):
        evidence = machine.evidence(replicas.at(machine, each).challenge())
        replicas.all[0].rows(
            "UPDATE challenges SET expires_at = expires_at - ? WHERE challenge_id = ?",
            (TTL_SECONDS + 1) * 1_000_000,
            evidence["nonce_id"],
        )
        for other in range(3):
            assert code(replicas.at(machine, other).send(evidence)) == "challenge-expired"


def test_a_lease_is_as_long_from_each(replicas: Replicas) -> None:
    """It ends by the database's clock, so no host prolongs it."""
    machine = replicas.admitted()
    lengths = set()
    for each in range(3):
        before = replicas.now_us()
        replicas.at(machine, each).attest()
        after = replicas.now_us()
        said = replicas.operators[(each + 1) % 3].machine(machine.machine_id)["trust_expires_at"]
        ends = to_micros(parse_rfc3339(said))
        lengths.add(round((ends - after) / 1e6 / 60))
        assert ends - after <= max(lengths) * 60e6 + 30e6 <= ends - before + 60e6
    assert len(lengths) == 1


def test_of_many_answers_to_one_challenge_one_counts(replicas: Replicas) -> None:
    """A hundred at once, over all replicas."""
    machine = replicas.admitted()
    evidence = machine.evidence(machine.challenge())
    clients = [replicas.client(each) for each in range(3)]

    def send(number: int) -> str:
        return code(clients[number % 3].post("/api/v1/attest", json=evidence))

    with ThreadPoolExecutor(24) as pool:
        told = Counter(pool.map(send, range(100)))
    assert told["ok"] == 1
    assert set(told) <= {"ok", "challenge-used", "service-busy", "rate-limited"}


def test_what_started_together_has_the_same_keys(replicas: Replicas) -> None:
    """One CA, one key of the service, one of the log: each replica publishes the same."""
    for path in ("/api/v1/service-keys", "/pki/ca", "/api/v1/audit/keys"):
        answers = [replicas.client(each).get(path) for each in range(3)]
        assert [(each.status_code, each.text) for each in answers] == [(200, answers[0].text)] * 3, path
    made = [each for each in replicas.operators[0].audit() if each["action"] == "ca_created"]
    assert len(made) == len({each["detail"].partition(" CA ")[0] for each in made})


def test_an_act_at_one_is_in_force_at_the_others_next_request(replicas: Replicas) -> None:
    """A lock, and its end; no replica goes by what it remembers."""
    machine = replicas.admitted()
    for acting in range(3):
        for each in range(3):
            replicas.at(machine, each).attest()
        replicas.operators[acting].act(machine.machine_id, "lock", reason="trying")
        for each in range(3):
            assert replicas.operators[each].machine(machine.machine_id)["status"] == "locked"
            answer = replicas.at(machine, each).send(machine.evidence(machine.challenge()))
            assert answer.json().get("action") != "none" or not answer.is_success
        replicas.operators[acting].act(machine.machine_id, "unlock", reason="trying")
        machine.next_challenge = None


def test_an_act_that_two_replicas_are_asked_for_is_done_once(replicas: Replicas) -> None:
    """By its key: both answers are the first one's."""
    machine = replicas.admitted()
    key = {"Idempotency-Key": f'"{secrets.token_hex(8)}"'}

    def lock(replica: int) -> Any:
        operator = replicas.operators[replica]
        path = f"/machines/{machine.machine_id}/lock"
        return operator.request("POST", path, json={"reason": "once"}, headers=key)

    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lock, range(3)))
    assert {each.status_code for each in answers} <= {200, 409}
    assert 200 in {each.status_code for each in answers}
    locked = replicas.operators[0].audit(machine_id=machine.machine_id, action="lock")
    assert len(locked) == 1


def test_the_audit_log_is_one_and_its_times_never_run_backwards(replicas: Replicas) -> None:
    """Whoever wrote: chain, tree and times follow one another, by the database's clock."""
    machines = [replicas.admitted() for _ in range(2)]
    for each in range(9):
        replicas.at(machines[each % 2], each % 3).attest()
        replicas.operators[each % 3].act(machines[0].machine_id, "lock", reason="r")
        replicas.operators[(each + 1) % 3].act(machines[0].machine_id, "unlock", reason="r")
    assert all(operator.audit_is_valid() for operator in replicas.operators)
    entries = replicas.all[0].rows("SELECT timestamp FROM audit_log ORDER BY id")
    times = [to_micros(parse_rfc3339(each["timestamp"])) for each in entries]
    assert all(before <= after for before, after in pairwise(times))
    assert times[-1] <= replicas.now_us() + 5_000_000
