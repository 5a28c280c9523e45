"""What the agent of a node asks of the service: the challenge of a run, and takes its evidence there.

The token is bound to the agent's pod and names its node: the service compares that with the run's, and so nothing
that is configured here can make one node another.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from attestation.api.runs import RunChallenge, RunEvidence
from attestation_operator.errors import TokenMissing
from attestation_operator.service import HTTPService, read_token


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClaim:
    """The node that a token names (`kubernetes.io.node`; Kubernetes 1.32 and later)."""

    name: str
    uid: str


class RunService(Protocol):
    """The service, as an agent asks it; what it raises is that of `attestation_operator.service.Service`."""

    async def challenge(self, uid: str) -> RunChallenge:
        """Return what hardware is to sign for a run of this node; the same again until it is answered."""
        ...

    async def deliver(self, uid: str, evidence: RunEvidence) -> None:
        """Answer it."""
        ...


class HTTPRunService(HTTPService):
    """The service over HTTP."""

    async def challenge(self, uid: str) -> RunChallenge:
        """Return what hardware is to sign for a run of this node; the same again until it is answered."""
        return await self._ask("get_run_challenge", lambda: self._service.run_challenge(uid))

    async def deliver(self, uid: str, evidence: RunEvidence) -> None:
        """Answer it."""
        await self._ask("post_run_evidence", lambda: self._service.post_run_evidence(uid, evidence))


def claim_of(token_file: Path) -> NodeClaim | None:
    """Return the node that our own token names now; None where it names none.

    Nothing is verified: the service does that. Here it tells early what would be refused later.

    Raises:
        TokenMissing: There is no token, or it cannot be read.
    """
    try:
        text = read_token(token_file).split(".")[1]
        claims: Any = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (IndexError, binascii.Error, ValueError, RecursionError) as e:
        raise TokenMissing(f"{token_file}: no token of a ServiceAccount") from e
    said = claims.get("kubernetes.io") if isinstance(claims, dict) else None
    node = said.get("node") if isinstance(said, dict) else None
    if not isinstance(node, dict):
        return None
    name, uid = node.get("name"), node.get("uid")
    return NodeClaim(name=name, uid=uid) if isinstance(name, str) and isinstance(uid, str) else None
