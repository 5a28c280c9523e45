"""Two replicas on one database and twenty operators who vote at once: one approval per proposal (FAULTS R19).

The operators come with signed tokens of a provider that this module serves: two documents, one key.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey

from attestation.audit import AuditEntry, canonical_bytes, verify_chain
from attestation.audit.merkle import leaf_hash
from attestation_testing import SoftwareNode
from tests.fixtures.machine import Machine, code
from tests.fixtures.service import ServiceProcess, StartService

pytestmark = pytest.mark.slow

OPERATORS = 20
MACHINES = 4
PATIENCE_SECONDS = 60
REALM = "/realms/itl"


@dataclass
class Provider:
    """An identity provider reduced to what the service asks of it."""

    key: ECKey = field(
        default_factory=lambda: ECKey.generate_key("P-256", {"kid": "k1", "use": "sig", "alg": "ES256"})
    )
    server: ThreadingHTTPServer = field(init=False)

    def __post_init__(self) -> None:
        documents: dict[str, Any] = {}

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = documents.get(self.path)
                self.send_response(200 if body is not None else 404)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        documents[f"{REALM}/.well-known/openid-configuration"] = {
            "issuer": self.issuer,
            "jwks_uri": f"{self.issuer}/certs",
        }
        documents[f"{REALM}/certs"] = {"keys": [self.key.as_dict(private=False)]}

    @property
    def issuer(self) -> str:
        """Its name."""
        return f"http://127.0.0.1:{self.server.server_port}{REALM}"

    def token(self, name: str) -> str:
        """Return an access token of an operator."""
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "sub": f"id-of-{name}",
            "aud": "attestation-service",
            "azp": "attestation-cli",
            "typ": "Bearer",
            "preferred_username": name,
            "realm_access": {"roles": ["attestation-operator"]},
            "iat": now,
            "exp": now + 36_000,
        }
        return jwt.encode({"alg": "ES256", "kid": "k1", "typ": "JWT"}, claims, self.key)


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    """Serve the provider while the module runs."""
    found = Provider()
    thread = threading.Thread(target=found.server.serve_forever, daemon=True)
    thread.start()
    yield found
    found.server.shutdown()
    found.server.server_close()
    thread.join(PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def replicas(
    start_service: StartService, provider: Provider
) -> Iterator[tuple[ServiceProcess, ServiceProcess]]:
    """Two services, each a process of its own, with one database between them."""
    environment = {
        "ITL_OIDC_ISSUER": provider.issuer,
        "ITL_DUAL_CONTROL_ROLES": "controlplane",
        "ITL_DUAL_CONTROL_QUORUM": "3",
    }
    one = start_service(**environment)
    other = ServiceProcess(
        directory=one.directory,
        environment={**environment, "ITL_SERVICE_URL": one.url},
        admin_token=one.admin_token,
        server_url=one.server_url,
    )
    try:
        other.start()
        yield one, other
    finally:
        other.kill()


class Committee:
    """Twenty operators, each with a connection to each replica."""

    def __init__(self, replicas: tuple[ServiceProcess, ServiceProcess], provider: Provider) -> None:
        self.names = [f"operator-{n}" for n in range(OPERATORS)]
        self.stack = ExitStack()
        self.clients = [
            [
                self.stack.enter_context(
                    httpx.Client(
                        base_url=f"{replica.url}/api/v1",
                        headers={
                            "Authorization": f"Bearer {provider.token(name)}",
                            "Content-Type": "application/json",
                        },
                        timeout=60,
                    )
                )
                for replica in replicas
            ]
            for name in self.names
        ]
        self._known(provider)

    def _known(self, provider: Provider) -> None:
        """Wait until each replica has the provider's key."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        for client in self.clients[0]:
            while client.get("/machines").status_code != 200:
                assert time.monotonic() < deadline, "the replicas do not know the provider's key"
                time.sleep(0.1)

    def storm(self, requests: list[tuple[int, str, Any]], method: str = "POST") -> list[httpx.Response]:
        """Send all *requests* (operator, path, body) at once, half of them to either replica."""
        start = threading.Barrier(len(requests))

        def send(number: int, operator: int, path: str, body: Any) -> httpx.Response:
            start.wait(PATIENCE_SECONDS)
            return self.clients[operator][number % 2].request(method, path, json=body)

        with ThreadPoolExecutor(len(requests)) as pool:
            sent = [pool.submit(send, number, *request) for number, request in enumerate(requests)]
            return [each.result(240) for each in sent]


@pytest.fixture(scope="module")
def committee(replicas: tuple[ServiceProcess, ServiceProcess], provider: Provider) -> Iterator[Committee]:
    """The operators."""
    found = Committee(replicas, provider)
    with found.stack:
        yield found


def pending(replica: ServiceProcess, seed: int) -> str:
    """Introduce a machine and return its id."""
    with httpx.Client(base_url=replica.url, timeout=60) as http:
        machine = Machine(SoftwareNode(seed), http)
        machine.enrol()
        return machine.machine_id


def log_is_whole(replica: ServiceProcess) -> None:
    """Chain and tree: each entry follows the one before, and each is the leaf of its number."""
    found = replica.rows("SELECT * FROM audit_log ORDER BY id")
    names = AuditEntry.__dataclass_fields__
    log = [(row["id"], AuditEntry(**{name: row[name] for name in names})) for row in found]
    assert [number for number, _ in log] == list(range(1, len(log) + 1))
    assert verify_chain(log).valid
    leaves = replica.rows("SELECT hash FROM audit_nodes WHERE level = 0 ORDER BY position")
    assert [row["hash"] for row in leaves] == [leaf_hash(canonical_bytes(entry)) for _, entry in log]


@pytest.mark.threat("T53")
def test_one_approval_per_machine(
    replicas: tuple[ServiceProcess, ServiceProcess], committee: Committee
) -> None:
    """Twenty vote for each of four machines over both replicas: the third completes it, once, for all to see."""
    machines = [pending(replicas[0], 100 + n) for n in range(MACHINES)]
    bodies = {
        machine: {"role": "controlplane", "hostname": f"agreed-{n}", "accept_ek": True}
        for n, machine in enumerate(machines)
    }
    answers = committee.storm(
        [
            (n, f"/machines/{machine}/approve", body)
            for n in range(OPERATORS)
            for machine, body in bodies.items()
        ]
    )
    for machine in machines:
        about = [a for a in answers if machine in a.request.url.path]
        assert Counter(a.status_code for a in about) == {202: 2, 200: 1, 409: OPERATORS - 3}
        assert {code(a) for a in about if a.status_code == 409} == {"transition-forbidden"}
        entries = replicas[0].rows("SELECT * FROM audit_log WHERE machine_id = ? ORDER BY id", machine)
        acts = [row for row in entries if row["operator_cn"].startswith("operator-")]
        # Whoever came too late is on record as well: the machine was registered already.
        denied = ["denied"] * (OPERATORS - 3)
        assert [row["action"] for row in acts] == ["approve_vote"] * 3 + ["approve"] + denied
        voters = [row["operator_cn"] for row in acts[:3]]
        assert len(set(voters)) == 3
        assert f"agreed by {', '.join(voters)}; proposal " in acts[3]["detail"]
        votes = replicas[0].rows("SELECT * FROM approvals WHERE machine_id = ?", machine)
        assert [row["operator_cn"] for row in votes] == voters
        assert all(row["consumed_at"] for row in votes)
        provisioned = "SELECT * FROM outbox WHERE machine_id = ? AND event = 'node.provisioned'"
        assert len(replicas[0].rows(provisioned, machine)) == 1
    log_is_whole(replicas[0])


def test_different_proposals_do_not_add_up(
    replicas: tuple[ServiceProcess, ServiceProcess], committee: Committee
) -> None:
    """Five names for one machine, four votes for each: one name wins, with three votes of its own."""
    machine = pending(replicas[1], 200)
    answers = committee.storm(
        [
            (
                n,
                f"/machines/{machine}/approve",
                {"role": "controlplane", "hostname": f"cp-{n % 5}", "accept_ek": True},
            )
            for n in range(OPERATORS)
        ]
    )
    counted = Counter(a.status_code for a in answers)
    assert counted[200] == 1
    assert counted[202] + counted[409] == OPERATORS - 1
    assert 2 <= counted[202] <= 2 * 5
    (won,) = [a.json() for a in answers if a.status_code == 200]
    used = replicas[0].rows(
        "SELECT * FROM approvals WHERE machine_id = ? AND consumed_at IS NOT NULL", machine
    )
    assert {row["hostname"] for row in used} == {won["hostname"]}
    assert len({row["operator_sub"] for row in used}) == len(used) == 3
    open_ = "SELECT * FROM approvals WHERE machine_id = ? AND consumed_at IS NULL AND withdrawn_at IS NULL"
    assert replicas[0].rows(open_, machine) == []
    log_is_whole(replicas[0])


@pytest.mark.threat("T53")
def test_every_token_costs_three_votes(
    replicas: tuple[ServiceProcess, ServiceProcess], committee: Committee
) -> None:
    """The same terms asked for twenty times are six tokens and two votes that wait, never a seventh token."""
    body = {"role": "controlplane", "uses": 1, "expires_in_seconds": 3600}
    answers = committee.storm([(n, "/registration-tokens", body) for n in range(OPERATORS)])
    assert Counter(a.status_code for a in answers) == {201: 6, 202: 14}
    assert len({a.json()["token"] for a in answers if a.status_code == 201}) == 6
    votes = replicas[0].rows("SELECT * FROM approvals WHERE action = 'registration_token'")
    assert Counter(row["consumed_at"] is not None for row in votes) == {True: 18, False: 2}
    assert len(replicas[0].rows("SELECT * FROM registration_tokens")) == 6
    log_is_whole(replicas[0])


@pytest.mark.threat("T71")
def test_a_policy_is_activated_once(
    replicas: tuple[ServiceProcess, ServiceProcess], committee: Committee
) -> None:
    """Twenty vote at once: the third activates it, and all who come later are told that it applies already."""
    document = {
        "format": "itl-tpm-policy/1",
        "name": "cp",
        "version": 1,
        "bank": "sha256",
        "pcrs": {"7": {"any_of": ["ab" * 32]}},
    }
    assert committee.clients[0][0].post("/policies", json=document).status_code == 201
    place = "/policies/assignments/role/controlplane"
    answers = committee.storm([(n, place, {"policy": "cp@1"}) for n in range(OPERATORS)], "PUT")
    assert Counter(a.status_code for a in answers) == {202: 2, 200: OPERATORS - 2}
    assert len({a.text for a in answers if a.status_code == 200}) == 1
    [kept] = replicas[0].rows("SELECT * FROM policy_history")
    assert (kept["scope"], kept["subject"], kept["policy_name"]) == ("role", "controlplane", "cp")
    [act] = replicas[0].rows("SELECT * FROM audit_log WHERE action = 'policy_assign'")
    votes = replicas[0].rows("SELECT * FROM approvals WHERE action = 'policy_assign' ORDER BY id")
    assert len(votes) == 3
    assert all(row["consumed_at"] for row in votes)
    oldest_first = sorted(votes, key=lambda row: (row["created_at"], row["operator_cn"]))
    assert f"agreed by {', '.join(row['operator_cn'] for row in oldest_first)}; proposal " in act["detail"]
    assert act["operator_cn"] == kept["by"] == votes[2]["operator_cn"]
    # And back, at once: one way back, however many ask for it.
    answers = committee.storm([(n, f"{place}/rollback", None) for n in range(3)])
    assert Counter(a.status_code for a in answers) == {202: 2, 204: 1}
    assert replicas[0].rows("SELECT * FROM policy_assignments") == []
    log_is_whole(replicas[0])


@pytest.mark.threat("T51")
def test_one_operator_everywhere_at_once_is_one(
    replicas: tuple[ServiceProcess, ServiceProcess], committee: Committee
) -> None:
    """Forty requests of one person over both replicas: one vote, one entry, forty times the same answer."""
    machine = pending(replicas[0], 300)
    body = {"role": "controlplane", "accept_ek": True}
    answers = committee.storm([(0, f"/machines/{machine}/approve", body)] * 40)
    assert {a.status_code for a in answers} == {202}
    assert len({a.text for a in answers}) == 1
    entries = replicas[0].rows("SELECT * FROM audit_log WHERE machine_id = ?", machine)
    assert Counter(row["action"] for row in entries)["approve_vote"] == 1
    assert len(replicas[0].rows("SELECT * FROM approvals WHERE machine_id = ?", machine)) == 1
    times = [row["timestamp"] for row in entries]
    assert all(one <= other for one, other in pairwise(times))
    log_is_whole(replicas[0])
