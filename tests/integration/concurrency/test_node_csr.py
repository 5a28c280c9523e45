"""Requests of Kubernetes nodes from many controllers at once, by two workers: one decision, one certificate."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import httpx
import pytest

from attestation.tpm import PCRSelection
from attestation.wire import b64decode, b64encode
from attestation_testing import SoftwareNode
from attestation_testing.node_csr import node_csr_container
from tests.fixtures.machine import Machine, code
from tests.fixtures.openid.provider import new_key, sign
from tests.fixtures.service import ServiceProcess, StartService

pytestmark = pytest.mark.slow

T = TypeVar("T")

KEY = new_key("RS256", kid="cluster")
ISSUER = "https://kubernetes.default.svc"
DUTIES = {"approver": "attestation-approver", "signer": "attestation-signer"}
REQUESTS, THREADS = 60, 20


def token(account: str) -> str:
    """Return a bound token."""
    now = int(time.time())
    said = {
        "aud": ["itl-attestation"],
        "iss": ISSUER,
        "sub": f"system:serviceaccount:itl:{account}",
        "iat": now,
        "nbf": now,
        "exp": now + 3600,
        "kubernetes.io": {
            "namespace": "itl",
            "serviceaccount": {"name": account, "uid": "1"},
            "pod": {"name": f"{account}-0", "uid": "2"},
        },
    }
    return sign(KEY, said, header={"typ": None})


def clusters() -> str:
    """Return the setting that lets the two controllers of a cluster ask."""
    rule = {
        "cluster_id": "default",
        "issuer": ISSUER,
        "jwks": {"keys": [KEY.as_dict(private=False)]},
        "service_accounts": {duty: [f"itl:{name}"] for name, duty in DUTIES.items()},
    }
    return json.dumps([rule])


@pytest.fixture(scope="module")
def service(start_service: StartService) -> ServiceProcess:
    """Two workers with one CA, for one cluster."""
    return start_service(workers=2, ITL_ENROLLMENT_CA_UNENCRYPTED="true", ITL_KUBERNETES_CLUSTERS=clusters())


def container(machine: Machine, keys: SoftwareNode, hostname: str) -> str:
    """Return a request of *machine* that answers a fresh challenge."""
    challenge = machine.certificate_challenge("node-csr")
    made = node_csr_container(
        keys,
        hostname=hostname,
        machine_id=machine.machine_id,
        nonce=b64decode(challenge["nonce"], "nonce"),
        nonce_id=challenge["nonce_id"],
        selection=PCRSelection.from_names(challenge["pcr_selection"]),
    )
    return b64encode(made)


def body(request: str, uid: str) -> dict[str, Any]:
    """Return what a controller sends."""
    csr = {
        "name": f"node-csr-{uid}",
        "uid": uid,
        "signer_name": "attestation.itl.io/node-client",
        "username": "system:bootstrap:abc",
        "groups": ["system:bootstrappers"],
        "usages": ["digital signature", "client auth"],
        "created_at": "2026-11-21T12:00:00Z",
        "request": request,
    }
    return {"csr": csr, "node": None}


def at_once(service: ServiceProcess, account: str, ask: Callable[[httpx.Client, int], T]) -> list[T]:
    """Ask many times, the first of them at the same moment."""
    start, headers = threading.Barrier(THREADS), {"Authorization": f"Bearer {token(account)}"}

    def one(number: int) -> T:
        with httpx.Client(base_url=f"{service.url}/api/v1/node-csr", headers=headers, timeout=60) as http:
            if number < THREADS:
                start.wait(60)
            return ask(http, number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(one, range(REQUESTS)))


def audited(service: ServiceProcess, action: str, machine_id: str) -> int:
    rows = service.rows(
        "SELECT count(*) AS n FROM audit_log WHERE action = ? AND machine_id = ?", action, machine_id
    )
    return int(rows[0]["n"])


@pytest.mark.threat("T106")
def test_one_decision_and_one_certificate(service: ServiceProcess) -> None:
    """Of sixty approvers and sixty signers, whichever worker each meets; and of one container under sixty UIDs."""
    operator, keys = service.operator(), SoftwareNode(71)
    with httpx.Client(base_url=service.url, timeout=60) as http, operator.http:
        machine = Machine(keys, http)
        machine.admitted(operator, hostname="w-71")

        same = body(container(machine, keys, "w-71"), "same")
        decided = at_once(service, "approver", lambda http, _: http.post("/appraise", json=same).json())
        assert {(each["decision"], each["result_id"]) for each in decided} == {
            ("approve", decided[0]["result_id"])
        }
        assert audited(service, "node_csr_approved", machine.machine_id) == 1

        signed = at_once(service, "signer", lambda http, _: http.post("/sign", json=same))
        # Twenty certificates may live at a time, and each signer that is beaten has reserved one for a moment.
        assert {code(each) for each in signed} <= {"ok", "rate-limited"}
        assert len({each.json()["serial"] for each in signed if each.is_success}) == 1
        states = service.rows("SELECT state FROM certificates WHERE machine_id = ?", machine.machine_id)
        found = Counter(row["state"] for row in states)
        assert found["issued"] == 1
        assert found.keys() <= {"issued", "void"}

        again = container(machine, keys, "w-71")
        answers = at_once(
            service, "approver", lambda http, n: http.post("/appraise", json=body(again, f"uid-{n}")).json()
        )
        assert Counter(each["reason"] for each in answers) == {
            "TpmAttested": 1,
            "EvidenceStale": REQUESTS - 1,
        }
        assert audited(service, "node_csr_approved", machine.machine_id) == 2
