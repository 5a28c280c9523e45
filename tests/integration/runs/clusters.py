"""A cluster whose controller and nodes ask about attestation runs, with the credentials that its API server binds."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import httpx

from attestation.clock import Clock
from attestation.tpm import PCRSelection
from attestation.wire import b64decode
from tests.fixtures.attestation_double import Answer
from tests.fixtures.in_process import InProcessService
from tests.fixtures.machine import Machine, b64
from tests.fixtures.openid.provider import new_key, sign
from tests.fixtures.run_double import answering

KEY = new_key("RS256", kid="cluster")
ISSUER = "https://kubernetes.default.svc"
RULE = {
    "cluster_id": "default",
    "issuer": ISSUER,
    "jwks": {"keys": [KEY.as_dict(private=False)]},
    "service_accounts": {"attestation-runs": ["itl:runs"], "attestation-run-agent": ["itl:agent"]},
}
QUOTE = "application/vnd.itl.tpm-quote"
PCRS = (0, 7)


class Node:
    """A node with a TPM, and the credentials that its agent has."""

    def __init__(self, cluster: Cluster, name: str, machine: Machine) -> None:
        self.cluster, self.name, self.uid, self.machine = cluster, name, f"uid-of-{name}", machine

    @property
    def credential(self) -> dict[str, str]:
        """The agent's token, as an API server binds it to the node."""
        return self.cluster.token("agent", node={"name": self.name, "uid": self.uid})

    def challenge(self, run: str) -> httpx.Response:
        """Fetch the challenge of a run."""
        return self.cluster.http.get(f"/api/v1/runs/{run}/challenge", headers=self.credential)

    def post(self, run: str, body: dict[str, Any]) -> httpx.Response:
        """Post what *body* says."""
        return self.cluster.http.post(f"/api/v1/runs/{run}/evidence", json=body, headers=self.credential)

    def evidence(self, challenge: dict[str, Any], **members: Any) -> dict[str, Any]:
        """Return an honest answer, `members` of its item changed."""
        selection = PCRSelection.from_names({challenge["pcr_bank"]: challenge["pcrs"]})
        quote = self.machine.device.quote(b64decode(challenge["nonce"], "nonce"), selection)
        value = {
            "pcr_quote": b64(quote.attest),
            "pcr_signature": b64(quote.signature),
            "pcr_values": b64(json.dumps(self.values(challenge["pcrs"])).encode()),
        }
        return {
            "challenge_id": challenge["id"],
            "evidence": [{"media_type": QUOTE, "value": value | members}],
        }

    def values(self, pcrs: Any = PCRS) -> dict[str, dict[str, str]]:
        """Return what its PCRs hold."""
        quote = self.machine.device.quote(bytes(32), PCRSelection.from_names({"sha256": list(pcrs)}))
        return {"sha256": {str(i): value.hex() for i, value in quote.pcr_values["sha256"].items()}}

    def answered(self, run: str, **members: Any) -> dict[str, Any]:
        """Fetch the challenge, answer it honestly but for *members*, and return the result."""
        challenge = self.challenge(run).json()
        assert self.post(run, self.evidence(challenge, **members)).is_success
        return self.cluster.result(run)


class Cluster:
    """A cluster: its controller, and nodes that operators introduced.

    Args:
        service: The service.
        clock: That of its API server, which writes the times of tokens; without, the service's own.
    """

    def __init__(self, service: InProcessService, clock: Clock | None = None) -> None:
        self.service, self.http = service, service.client()
        self.clock = clock or service.clock

    def token(self, account: str, **bound: Any) -> dict[str, str]:
        """Return the credential of a ServiceAccount."""
        now = int(self.clock.now().timestamp())
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
                **bound,
            },
        }
        return {"Authorization": f"Bearer {sign(KEY, said, header={'typ': None})}"}

    def open(self, node: Node, policy: dict[str, Any] | None = None, backend: str = "tpm") -> str:
        """Open a run of *node*; return its UID."""
        run = f"run-{secrets.token_hex(8)}"
        said = {
            "cluster_id": "default",
            "namespace": "seed",
            "name": run,
            "node_name": node.name,
            "node_uid": node.uid,
            "backend": backend,
            "policy": policy,
            "policy_source": "none" if policy is None else "inline",
            "deadline": (self.service.clock.now() + timedelta(minutes=3)).isoformat(),
        }
        answer = self.http.put(f"/api/v1/runs/{run}", json=said, headers=self.token("runs"))
        assert answer.is_success, answer.text
        return run

    def result(self, run: str) -> dict[str, Any]:
        """Return the result of the last attempt, as the controller sees it."""
        answer = self.http.get(f"/api/v1/runs/{run}", headers=self.token("runs"))
        found: dict[str, Any] = answer.json()["attempts"][-1]["result"]
        return found


@contextmanager
def on_loopback(service: InProcessService) -> Iterator[str]:
    """Let the service answer on a port, as a program asks it, until the block ends; yield the address."""
    forward = service.client()

    def bridge(method: str, where: str, body: bytes, token: str) -> Answer:
        headers = {"Content-Type": "application/json"} | ({"Authorization": token} if token else {})
        answer = forward.request(method, where, content=body, headers=headers)
        kept = {"Content-Type": answer.headers.get("content-type", "application/json")}
        return Answer(body=answer.content, status=answer.status_code, headers=kept)

    with answering(bridge) as url:
        yield url
