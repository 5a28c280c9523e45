"""What controllers ask of the attestation service."""

from __future__ import annotations

from typing import Protocol

from attestation.api.node_csr import NodeCertificate, NodeCSRDecision, NodeCSRRequest, NodeTrust


class Service(Protocol):
    """The service, asked with the token of our ServiceAccount.

    Everything raises `Unavailable` (of `attestation.client`: ServiceUnreachable, a problem with status 5xx or 429)
    where nothing was decided, and another `AttestationError` where the service refused.
    """

    async def appraise(self, request: NodeCSRRequest) -> NodeCSRDecision:
        """Return what is to be done with a certificate request; the same answer each time."""
        ...

    async def sign(self, request: NodeCSRRequest) -> NodeCertificate:
        """Return the certificate for a request that the service judged good; the same each time."""
        ...

    async def trust(self) -> tuple[NodeTrust, ...]:
        """Return what the machines of this cluster are worth now."""
        ...
