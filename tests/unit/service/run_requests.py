"""Attestation runs as a controller and the agents on nodes ask about them; nodes whose TPM is Python."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import httpx

from attestation.wire import b64decode, b64encode
from tests.unit.service.conftest import HeldClock, Service, Starter
from tests.unit.service.node import SoftwareNode
from tests.unit.service.test_service_accounts import claims, cluster, token

UID = "0f6b3c1e-0000-4000-8000-000000000001"
NODE_UID = "5a1d9d7e-0000-4000-8000-00000000000a"
QUOTE = "application/vnd.itl.tpm-quote"


async def serving(start: Starter, clock: HeldClock | None = None, **changed: Any) -> Service:
    """Start a service that knows one cluster with runs; `rule` changes it."""
    rule = cluster(**changed.pop("rule", {}))
    return await start(clock, kubernetes_clusters=json.dumps([rule]), **changed)


def of_controller(service: Service, key: Any = None) -> dict[str, str]:
    """Return the credential of the controller; *key* signs, of another cluster than the first."""
    return {"Authorization": f"Bearer {token(claims(service.clock, 'itl:runs'), key)}"}


def of_agent(
    service: Service, name: str = "w-1", uid: str = NODE_UID, key: Any = None, **bound: Any
) -> dict[str, str]:
    """Return the credential of the agent on a node, as an API server from 1.32 on binds it; `bound` changes that."""
    said = claims(service.clock, "priv:agent")
    said["kubernetes.io"] |= {"node": {"name": name, "uid": uid}} | bound
    said["kubernetes.io"] = {k: v for k, v in said["kubernetes.io"].items() if v is not None}
    return {"Authorization": f"Bearer {token(said, key)}"}


def opening(service: Service, policy: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Return what a controller says of a run."""
    said: dict[str, Any] = {
        "cluster_id": "default",
        "namespace": "seed",
        "name": "check-w-1",
        "node_name": "w-1",
        "node_uid": NODE_UID,
        "backend": "tpm",
        "policy": policy,
        "policy_source": "none" if policy is None else "ref",
        "policy_name": None if policy is None else "workers",
        "deadline": (service.clock.at + timedelta(minutes=2)).isoformat(),
    }
    return said | changes


def pinning(node: SoftwareNode, *pcrs: int, **members: Any) -> dict[str, Any]:
    """Return a policy that names the values that PCRs of *node* have now."""
    return {"tpm": {"pcrs": {str(i): node.pcrs[i].hex() for i in pcrs or (0, 7)}}, **members}


async def ask(
    service: Service, method: str, path: str, content: Any = None, *, as_: dict[str, str] | None = None
) -> httpx.Response:
    """Ask about a run; as the controller, unless somebody else is named."""
    headers = as_ or of_controller(service)
    return await service.http.request(method, f"/api/v1/runs/{path}", json=content, headers=headers)


async def opened(service: Service, said: dict[str, Any], uid: str = UID) -> dict[str, Any]:
    """Open a run; it must be answered 200."""
    answer = await ask(service, "PUT", uid, said)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def challenged(service: Service, run: str = UID, **agent: Any) -> dict[str, Any]:
    """Fetch the challenge as the agent of the node; it must be answered 200."""
    answer = await ask(service, "GET", f"{run}/challenge", as_=of_agent(service, **agent))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def quoted(node: SoftwareNode, challenge: dict[str, Any], **members: str | None) -> dict[str, Any]:
    """Return the body that answers *challenge* with a quote of *node*; None leaves a member out."""
    selection = {challenge["pcr_bank"]: list(challenge["pcrs"])}
    values = {"sha256": {str(i): node.pcrs[i].hex() for i in challenge["pcrs"]}}
    value = {
        **node.quote(selection, b64decode(challenge["nonce"], "nonce")),
        "pcr_values": b64encode(json.dumps(values).encode()),
        **members,
    }
    item = {"media_type": QUOTE, "value": {k: v for k, v in value.items() if v is not None}}
    return {"challenge_id": challenge["id"], "evidence": [item]}


async def posted(service: Service, body: dict[str, Any], run: str = UID, **agent: Any) -> httpx.Response:
    """Post an answer as the agent of the node."""
    return await ask(service, "POST", f"{run}/evidence", body, as_=of_agent(service, **agent))


async def detail(service: Service, uid: str = UID) -> dict[str, Any]:
    """Return the run as its controller sees it."""
    answer = await ask(service, "GET", uid)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def result(service: Service, uid: str = UID) -> dict[str, Any]:
    """Return the result of the last attempt."""
    found: dict[str, Any] = (await detail(service, uid))["attempts"][-1]["result"]
    return found


async def judged(
    service: Service, node: SoftwareNode, said: dict[str, Any], run: str = UID, **agent: Any
) -> dict[str, Any]:
    """Open a run, answer it honestly with *node*, and return the result."""
    await opened(service, said, run)
    answer = await posted(service, quoted(node, await challenged(service, run, **agent)), run, **agent)
    assert answer.status_code == 202, answer.text
    assert answer.content == b""
    return await result(service, run)


async def admitted(service: Service, hostname: str = "w-1") -> SoftwareNode:
    """Return a machine that attested."""
    node = SoftwareNode()
    await service.admitted(node, hostname=hostname)
    return node
