"""Nonces of evidence for CA keys."""

# ruff: noqa: ARG001 -- its parts are being built
from __future__ import annotations

from attestation.api import HSMNonce, HSMNonceRequest
from attestation.errors import Unavailable
from attestation_service.auth import ControllerDep
from attestation_service.resources import Res


async def issue(request: HSMNonceRequest, *, res: Res, who: ControllerDep) -> HSMNonce:
    """Return a fresh nonce for evidence of one issuer."""
    raise Unavailable("this part of the service is being built")
