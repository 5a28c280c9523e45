"""CA keys in hardware by two workers: one serial number, one certificate, one list, one key that answers."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, TypeVar

import httpx
import pytest

from attestation.wire import b64encode
from tests.fixtures.service import ServiceProcess, StartService
from tests.integration.concurrency.test_runs import RULE, THREADS, token
from tests.unit.service import hsm_requests as hsm

pytestmark = pytest.mark.slow

T = TypeVar("T")


@pytest.fixture(scope="module")
def service(start_service: StartService) -> ServiceProcess:
    """Two workers, for one cluster."""
    rule = RULE | {"service_accounts": {"attestation-hsm": ["itl:hsm"]}}
    return start_service(workers=2, ITL_KUBERNETES_CLUSTERS=json.dumps([rule]))


def at_once(service: ServiceProcess, ask: Callable[[httpx.Client, int], T]) -> list[T]:
    """Ask from as many threads at the same moment."""
    start, headers = threading.Barrier(THREADS), token("hsm")

    def one(number: int) -> T:
        with httpx.Client(base_url=f"{service.url}/api/v1/hsm", headers=headers, timeout=60) as http:
            start.wait(60)
            return ask(http, number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(one, range(THREADS)))


def test_two_workers_keep_one_log(service: ServiceProcess) -> None:
    """Of sixteen controllers of one key, whichever worker each meets, at each step."""
    at = datetime.now(UTC).replace(microsecond=0)
    issuer, key = hsm.Issuer(at), hsm.a_key()
    body = issuer.put()
    put = at_once(service, lambda http, _: http.put(f"/issuers/{hsm.UID}", json=body).json()["issuer_id"])
    (issuer.issuer_id,) = set(put)
    base = f"/issuers/{issuer.issuer_id}"

    world: Any = SimpleNamespace(clock=SimpleNamespace(at=at))
    said = hsm.request(world, key)
    taken = at_once(
        service, lambda http, _: http.post(f"{base}/certificates", json={"requests": [said]}).json()
    )
    (serial,) = {each["reserved"][0]["serial"] for each in taken}

    made = [
        b64encode(issuer.leaf(serial, said, key)) for _ in range(THREADS)
    ]  # no two signatures are the same

    def record(http: httpx.Client, number: int) -> int:
        certificates = [{"request_uid": said["request_uid"], "certificate": made[number]}]
        return http.post(f"{base}/certificates/issued", json={"certificates": certificates}).status_code

    assert Counter(at_once(service, record)) == {200: 1, 409: THREADS - 1}

    lists = at_once(service, lambda http, _: http.get(f"{base}/crl").json())
    assert {each["number"] for each in lists} == {1}
    asked = at_once(service, lambda http, _: http.get(f"{base}/responder").json())
    assert len({each["request"] for each in asked}) == 1
    certificate = {"certificate": b64encode(issuer.responder(asked[0]))}
    handed = at_once(service, lambda http, _: http.put(f"{base}/responder", json=certificate).status_code)
    assert set(handed) <= {204, 409}
    assert 204 in handed

    rows = service.rows(
        "SELECT action, count(*) AS n FROM audit_log"
        " WHERE action IN ('hsm_issuer_registered', 'hsm_certificate_issued') GROUP BY action"
    )
    # One certificate, and the key that answers.
    assert {row["action"]: row["n"] for row in rows} == {
        "hsm_issuer_registered": 1,
        "hsm_certificate_issued": 2,
    }
