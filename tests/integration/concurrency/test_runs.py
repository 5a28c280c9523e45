"""Attestation runs by two workers: opened once, one attempt at a time, each challenge answered once."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import httpx
import pytest

from attestation.tpm import PCRSelection
from attestation.wire import b64decode, b64encode
from attestation_testing import SoftwareNode
from tests.fixtures.machine import Machine
from tests.fixtures.openid.provider import new_key, sign
from tests.fixtures.service import ServiceProcess, StartService
from tests.unit.service.seal_requests import result_spec, sealing_of

pytestmark = pytest.mark.slow

T = TypeVar("T")

KEY = new_key("RS256", kid="cluster")
ISSUER = "https://kubernetes.default.svc"
THREADS = 16
NODE = {"name": "w-81", "uid": "uid-of-w-81"}
RULE = {
    "cluster_id": "default",
    "issuer": ISSUER,
    "jwks": {"keys": [KEY.as_dict(private=False)]},
    "service_accounts": {"attestation-runs": ["itl:runs"], "attestation-run-agent": ["itl:agent"]},
}


def token(account: str) -> dict[str, str]:
    """Return a credential."""
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
            "node": NODE,
        },
    }
    return {"Authorization": f"Bearer {sign(KEY, said, header={'typ': None})}"}


@pytest.fixture(scope="module")
def service(start_service: StartService) -> ServiceProcess:
    """Two workers, for one cluster."""
    return start_service(workers=2, ITL_KUBERNETES_CLUSTERS=json.dumps([RULE]))


def at_once(service: ServiceProcess, account: str, ask: Callable[[httpx.Client], T]) -> list[T]:
    """Ask from as many threads at the same moment."""
    start, headers = threading.Barrier(THREADS), token(account)

    def one(_: int) -> T:
        with httpx.Client(base_url=f"{service.url}/api/v1/runs", headers=headers, timeout=60) as http:
            start.wait(60)
            return ask(http)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(one, range(THREADS)))


def answer(keys: SoftwareNode, challenge: dict[str, Any]) -> dict[str, Any]:
    """Return an honest answer to *challenge*."""
    selection = PCRSelection.from_names({challenge["pcr_bank"]: challenge["pcrs"]})
    quote = keys.quote(b64decode(challenge["nonce"], "nonce"), selection)
    values = {bank: {str(i): v.hex() for i, v in each.items()} for bank, each in quote.pcr_values.items()}
    value = {
        "pcr_quote": b64encode(quote.attest),
        "pcr_signature": b64encode(quote.signature),
        "pcr_values": b64encode(json.dumps(values).encode()),
    }
    item = {"media_type": "application/vnd.itl.tpm-quote", "value": value}
    return {"challenge_id": challenge["id"], "evidence": [item]}


def opening() -> dict[str, Any]:
    """Return what a controller says of a run of the node."""
    return {
        "cluster_id": "default",
        "namespace": "seed",
        "name": "check",
        "node_name": NODE["name"],
        "node_uid": NODE["uid"],
        "backend": "tpm",
        "policy_source": "none",
        "deadline": (datetime.now(UTC) + timedelta(minutes=3)).isoformat(),
    }


@pytest.mark.threat("T264")
def test_one_run_one_attempt_one_result(service: ServiceProcess) -> None:
    """Of sixteen controllers and sixteen agents, whichever worker each meets."""
    operator, keys = service.operator(), SoftwareNode(81)
    with httpx.Client(base_url=service.url, timeout=60) as http, operator.http:
        machine = Machine(keys, http)
        machine.admitted(operator, hostname=NODE["name"])
        said = opening()
        opened = at_once(service, "runs", lambda http: http.put("/r-1", json=said))
        assert {each.status_code for each in opened} == {200}
        assert len({each.json()["challenge_id"] for each in opened}) == 1

        challenge = http.get("/api/v1/runs/r-1/challenge", headers=token("agent")).json()
        body = answer(keys, challenge)
        posted = at_once(service, "agent", lambda http: http.post("/r-1/evidence", json=body).status_code)
        assert Counter(posted) == {202: 1, 409: THREADS - 1}
        found = http.get("/api/v1/runs/r-1", headers=token("runs")).json()
    (attempt,) = found["attempts"]
    assert (attempt["state"], attempt["result"]["machine_id"]) == ("judged", machine.machine_id)
    rows = service.rows(
        "SELECT action, count(*) AS n FROM audit_log WHERE action IN ('run_opened', 'run_judged') GROUP BY action"
    )
    assert {row["action"]: row["n"] for row in rows} == {"run_opened": 1, "run_judged": 1}
    assert service.rows("SELECT count(*) AS n FROM run_blobs")[0]["n"] == 1


@pytest.mark.threat("T264")
def test_c12_a_service_that_is_killed_at_each_arrow_goes_on(start_service: StartService) -> None:
    """SIGKILL after each answer, and while evidence is judged: one attempt, one result, one seal."""
    service = start_service(ITL_KUBERNETES_CLUSTERS=json.dumps([RULE]), ITL_AUDIT_CHECKPOINT_SECONDS="1")
    operator, keys = service.operator(), SoftwareNode(82)
    with httpx.Client(base_url=service.url, timeout=60) as http, operator.http:
        machine = Machine(keys, http)
        machine.admitted(operator, hostname=NODE["name"])
    run = opening()

    def ask(account: str, method: str, part: str = "", **more: Any) -> httpx.Response:
        where = f"{service.url}/api/v1/runs/r-2{part}"
        return httpx.request(method, where, headers=token(account), timeout=60, **more)

    def twice(account: str, method: str, part: str = "", **more: Any) -> dict[str, Any]:
        found: dict[str, Any] = ask(account, method, part, **more).raise_for_status().json()
        service.kill()
        service.start()
        assert ask(account, method, part, **more).json() == found
        return found

    assert twice("runs", "PUT", json=run)["attempt"] == 1
    body = answer(keys, twice("agent", "GET", "/challenge"))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, "agent", "POST", "/evidence", json=body)
        service.kill()
        first.exception()  # it was taken, or nobody heard
    service.start()
    assert ask("agent", "POST", "/evidence", json=body).status_code in (202, 409)
    assert ask("agent", "POST", "/evidence", json=body).status_code == 409
    found = twice("runs", "GET")
    (attempt,) = found["attempts"]
    assert (attempt["state"], attempt["result"]["machine_id"]) == ("judged", machine.machine_id)
    sealing = sealing_of(found, result_spec(found, attempt))
    digests = set()
    phase, end = "", time.monotonic() + 60
    while phase != "Sealed":
        assert time.monotonic() < end, phase
        told = ask("runs", "PUT", "/bundle", json=sealing).raise_for_status().json()
        digests.add(told["statement_digest"])
        if not phase:
            service.kill()
            service.start()
        phase = told["phase"]
        time.sleep(0.2)
    assert len(digests) == 1
    rows = service.rows(
        "SELECT action, count(*) AS n FROM audit_log"
        " WHERE action IN ('run_opened', 'run_judged', 'run_sealed') GROUP BY action"
    )
    assert {row["action"]: row["n"] for row in rows} == {"run_opened": 1, "run_judged": 1, "run_sealed": 1}
    assert service.rows("SELECT count(*) AS n FROM run_blobs")[0]["n"] == 1
