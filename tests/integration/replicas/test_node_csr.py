"""Requests of Kubernetes nodes at three replicas on PostgreSQL: whichever is asked, one decision, one certificate."""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from attestation_testing import SoftwareNode
from tests.fixtures.machine import Machine, code
from tests.integration.concurrency.test_node_csr import body, container, token
from tests.integration.replicas.conftest import Replicas

pytestmark = [pytest.mark.nginx, pytest.mark.slow]

REQUESTS = 12


def at_once(replicas: Replicas, account: str, path: str, said: Callable[[int], Any]) -> list[httpx.Response]:
    """Ask the replicas by turns, all at the same moment."""
    start, headers = threading.Barrier(REQUESTS), {"Authorization": f"Bearer {token(account)}"}

    def one(number: int) -> httpx.Response:
        url = f"{replicas.all[number % len(replicas.all)].url}/api/v1/node-csr"
        with httpx.Client(base_url=url, headers=headers, timeout=60) as http:
            start.wait(60)
            return http.post(path, json=said(number))

    with ThreadPoolExecutor(REQUESTS) as pool:
        return list(pool.map(one, range(REQUESTS)))


def approvals(replicas: Replicas, machine: Machine) -> int:
    """Return how many approvals the audit has."""
    (row,) = replicas.all[0].rows(
        "SELECT count(*) AS n FROM audit_log WHERE action = ? AND machine_id = ?",
        "node_csr_approved",
        machine.machine_id,
    )
    return int(row["n"])


@pytest.mark.threat("T106")
def test_three_replicas_decide_and_sign_once(replicas: Replicas) -> None:
    """Of twelve approvers and twelve signers; and of one container under twelve UIDs (§24 m)."""
    number = secrets.randbits(30)
    keys, name = SoftwareNode(number), f"w-{number}"
    machine = Machine(keys, replicas.front)
    machine.admitted(replicas.operators[0], hostname=name)

    same = body(container(machine, keys, name), f"same-{number}")
    decided = [each.json() for each in at_once(replicas, "approver", "/appraise", lambda _: same)]
    assert {(each["decision"], each["result_id"]) for each in decided} == {
        ("approve", decided[0]["result_id"])
    }
    assert approvals(replicas, machine) == 1

    signed = at_once(replicas, "signer", "/sign", lambda _: same)
    assert {code(each) for each in signed} <= {"ok", "rate-limited"}
    assert len({each.json()["serial"] for each in signed if each.is_success}) == 1
    states = replicas.all[0].rows("SELECT state FROM certificates WHERE machine_id = ?", machine.machine_id)
    assert Counter(row["state"] for row in states)["issued"] == 1

    again = container(machine, keys, name)
    answers = at_once(replicas, "approver", "/appraise", lambda n: body(again, f"{number}-{n}"))
    assert Counter(each.json()["reason"] for each in answers) == {
        "TpmAttested": 1,
        "EvidenceStale": REQUESTS - 1,
    }
    assert approvals(replicas, machine) == 2
