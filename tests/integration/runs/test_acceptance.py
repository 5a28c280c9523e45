"""Acceptance tests of attestation runs at the service (CONFIDENTIAL §5), by their numbers: nodes whose TPM is swtpm."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from attestation.device import TPM, NodeTPM, open_transport
from attestation.wire import b64decode
from tests.fixtures.in_process import in_process_service
from tests.fixtures.machine import Machine, b64, refused
from tests.fixtures.tpm import MakeTPM
from tests.integration.runs.clusters import RULE, Cluster, Node

pytestmark = pytest.mark.swtpm


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster, and the service that it asks."""
    with in_process_service(
        tmp_path / "service", kubernetes_clusters=json.dumps([RULE]), rate_limits=False
    ) as service:
        yield Cluster(service)


@pytest.fixture
def nodes(cluster: Cluster, make_tpm: MakeTPM) -> Iterator[tuple[Node, Node]]:
    """Two nodes whose machines attested."""
    with ExitStack() as stack:
        made = []
        for name in ("w-1", "w-2"):
            device = stack.enter_context(NodeTPM(TPM(open_transport(make_tpm(name).uri))))
            machine = Machine(device, cluster.http)
            machine.admitted(cluster.service.operator(), hostname=name)
            made.append(Node(cluster, name, machine))
        yield made[0], made[1]


def pinning(node: Node, **members: Any) -> dict[str, Any]:
    """Return a policy that names what PCRs of *node* hold."""
    return {"tpm": {"pcrs": node.values()["sha256"]}, **members}


@pytest.mark.threat("T264")
def test_c1_verified_only_from_evidence_that_was_read_and_checked(nodes: tuple[Node, Node]) -> None:
    """Random bytes, and a hash of the nonce, are no quotes, under any policy; the honest one beside them is."""
    node, _ = nodes
    cluster = node.cluster
    for policy in (None, pinning(node, mode="report"), pinning(node)):
        for hashed in (False, True):
            run = cluster.open(node, policy)
            challenge = node.challenge(run).json()
            nonce = b64decode(challenge["nonce"], "nonce")
            quote = b64(hashlib.sha256(nonce).digest() if hashed else secrets.token_bytes(129))
            answer = node.post(run, node.evidence(challenge, pcr_quote=quote))
            assert refused(answer) == (400, "malformed-evidence")
            found = cluster.result(run)
            assert (found["verdict"], found["rejected"]) == ("failed", "malformed-evidence")
        # Well-formed and signed, and over another nonce.
        run = cluster.open(node, policy)
        challenge = node.challenge(run).json()
        answer = node.post(run, node.evidence({**challenge, "nonce": b64(bytes(32))}))
        assert answer.status_code == 202
        found = cluster.result(run)
        assert (found["verdict"], found["rejected"]) == ("failed", "challenge-mismatch")
    found = node.answered(cluster.open(node, pinning(node)))
    assert (found["verdict"], found["rejected"]) == ("verified", None)


@pytest.mark.threat("T264")
def test_c2_runs_of_a_tpm_reach_verified_and_failed(nodes: tuple[Node, Node]) -> None:
    """Good values; another value; the key of another TPM."""
    node, other = nodes
    cluster, good = node.cluster, pinning(node)
    assert node.answered(cluster.open(node, good))["verdict"] == "verified"
    found = node.answered(cluster.open(node, {"tpm": {"pcrs": {"7": "11" * 32}}}))
    assert found["verdict"] == "failed"
    assert [(each["id"], each["code"]) for each in found["checks"] if each["outcome"] == "fail"] == [
        ("pcr7", "reference-mismatch")
    ]
    run = cluster.open(node, good)
    challenge = node.challenge(run).json()
    assert node.post(run, other.evidence(challenge)).status_code == 202
    assert cluster.result(run)["verdict"] == "failed"


@pytest.mark.threat("T264")
def test_c4_a_verdict_inside_of_evidence_is_ignored(nodes: tuple[Node, Node]) -> None:
    """Wherever the agent writes one; and it can neither open a run nor read what became of it."""
    node, _ = nodes
    cluster = node.cluster
    policy = {"tpm": {"pcrs": {"7": "11" * 32}}}
    run = cluster.open(node, policy)
    body = node.evidence(node.challenge(run).json())
    for lying in ({**body, "verdict": "verified"}, {**body, "result": {"verdict": "verified"}}):
        assert refused(node.post(run, lying)) == (422, "schema-violation")
    assert node.post(run, body).status_code == 202
    assert cluster.result(run)["verdict"] == "failed"
    run = cluster.open(node, policy)
    inside = node.evidence(node.challenge(run).json(), verdict=b64(b"verified"))
    assert refused(node.post(run, inside)) == (400, "malformed-evidence")
    assert cluster.result(run)["verdict"] == "failed"
    http = cluster.http
    assert refused(http.put(f"/api/v1/runs/{run}", json={}, headers=node.credential)) in (
        (403, "forbidden"),
        (422, "schema-violation"),
    )
    assert refused(http.get(f"/api/v1/runs/{run}", headers=node.credential)) == (403, "forbidden")


@pytest.mark.threat("T263", "T264")
def test_c5_evidence_is_that_of_the_named_node(nodes: tuple[Node, Node]) -> None:
    """A token of node A for B is refused; genuine evidence of A under B's own token is another machine's."""
    node, other = nodes
    cluster = node.cluster
    run = cluster.open(node, pinning(node))
    assert refused(other.challenge(run)) == (403, "node-mismatch")
    challenge = node.challenge(run).json()
    assert refused(other.post(run, node.evidence(challenge))) == (403, "node-mismatch")
    # Of a node of that name that was made anew, and of an API server that names none.
    stale = cluster.token("agent", node={"name": node.name, "uid": "another"})
    nameless = cluster.token("agent")
    for credential in (stale, nameless):
        answer = cluster.http.get(f"/api/v1/runs/{run}/challenge", headers=credential)
        assert refused(answer) == (403, "node-mismatch")
    assert node.post(run, other.evidence(challenge)).status_code == 202
    found = cluster.result(run)
    assert found["verdict"] == "failed"
    assert [(each["id"], each["code"]) for each in found["checks"] if each["outcome"] == "fail"] == [
        ("tpm-quote", "machine-not-allowed")
    ]


@pytest.mark.threat("T264")
def test_c9_a_challenge_is_unique_expires_and_is_used_once(nodes: tuple[Node, Node]) -> None:
    """Replay 409; after 61 s 410; of those who post at once one wins."""
    node, _ = nodes
    cluster = node.cluster
    runs = [cluster.open(node, pinning(node)) for _ in range(3)]
    challenges = [node.challenge(run).json() for run in runs]
    assert len({each["nonce"] for each in challenges}) == 3
    body = node.evidence(challenges[0])
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: node.post(runs[0], body).status_code, range(4)))
    assert sorted(answers) == [202, 409, 409, 409]
    assert refused(node.post(runs[0], body)) == (409, "challenge-used")
    assert refused(node.post(runs[1], body)) == (404, "challenge-unknown")
    late = node.evidence(challenges[1])
    cluster.service.clock.pass_(seconds=61)
    assert refused(node.post(runs[1], late)) == (410, "challenge-expired")
    assert cluster.result(runs[0])["verdict"] == "verified"


def test_c13_what_a_device_says_is_told(nodes: tuple[Node, Node]) -> None:
    """Each code of a device is taken, and is the result; there is no quote."""
    node, _ = nodes
    for what in ("absent", "denied", "busy", "no-provider", "malformed", "failed"):
        run = node.cluster.open(node, pinning(node))
        challenge = node.challenge(run).json()
        why = {"code": f"device-{what}", "detail": "/dev/tpmrm0"}
        answer = node.post(run, {"challenge_id": challenge["id"], "unavailable": why})
        assert answer.status_code == 202
        found = node.cluster.result(run)
        assert (found["verdict"], found["quote"], found["unavailable"]) == ("indeterminate", None, why)
