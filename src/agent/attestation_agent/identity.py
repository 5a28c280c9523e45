"""`attestation-agent identity token`: a token for one audience, given for a quote (docs/operate/identity.md)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from pydantic import BaseModel

from attestation.api.operation import operation
from attestation.client import NodeClient
from attestation_agent.proving import Proving


class Token(BaseModel):
    """A token, and until when it is good."""

    token: str
    expires_at: datetime


class Issuer:
    """The route of the extension `machine_identity` for machines."""

    @operation("machine_identity_token", "POST /identity/token")
    def token(self, request: Mapping[str, object]) -> Token:
        """Return a token for one audience."""
        raise NotImplementedError


def token(node: Proving, client: NodeClient, audience: str) -> Token:
    """Return a token for *audience*.

    Raises:
        AttestationError: The service gives none to this machine now.
    """
    with node.begun() as known:
        proof, _ = node.proof(known)
        return client.ask(
            Issuer.token, {**proof.model_dump(mode="json", exclude_none=True), "audience": audience}
        )
