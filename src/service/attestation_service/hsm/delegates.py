"""OCSP for CA keys in hardware."""

# ruff: noqa: ARG001 -- its parts are being built
from __future__ import annotations

from attestation.api import HSMResponder, HSMResponderPut
from attestation.errors import Unavailable
from attestation_service.auth import ControllerDep
from attestation_service.resources import Res
from attestation_service.routing.parameters import IssuerId


async def ask(issuer_id: IssuerId, *, res: Res, who: ControllerDep) -> HSMResponder:
    """Return what is to be certified, so that the service answers OCSP for an issuer."""
    raise Unavailable("this part of the service is being built")


async def put(issuer_id: IssuerId, request: HSMResponderPut, *, res: Res, who: ControllerDep) -> None:
    """Hand in the certificate of the key that answers OCSP for an issuer."""
    raise Unavailable("this part of the service is being built")
