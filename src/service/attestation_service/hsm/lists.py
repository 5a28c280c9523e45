"""Revocation lists of CA keys in hardware."""

# ruff: noqa: ARG001 -- its parts are being built
from __future__ import annotations

from attestation.api import HSMList, HSMListPut
from attestation.errors import Unavailable
from attestation_service.auth import ControllerDep
from attestation_service.resources import Res
from attestation_service.routing.parameters import IssuerId


async def begin(issuer_id: IssuerId, *, res: Res, who: ControllerDep) -> HSMList:
    """Begin a revocation list of an issuer, where one is due."""
    raise Unavailable("this part of the service is being built")


async def put(issuer_id: IssuerId, request: HSMListPut, *, res: Res, who: ControllerDep) -> None:
    """Hand in the revocation list that was begun, signed."""
    raise Unavailable("this part of the service is being built")
