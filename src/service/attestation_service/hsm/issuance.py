"""Certificates of CA keys in hardware."""

# ruff: noqa: ARG001 -- its parts are being built
from __future__ import annotations

from attestation.api import HSMIssued, HSMRecorded, HSMReserve, HSMReserved
from attestation.errors import Unavailable
from attestation_service.auth import ControllerDep
from attestation_service.resources import Res
from attestation_service.routing.parameters import IssuerId


async def reserve(issuer_id: IssuerId, request: HSMReserve, *, res: Res, who: ControllerDep) -> HSMReserved:
    """Take serial numbers for certificates that are about to be signed."""
    raise Unavailable("this part of the service is being built")


async def record(issuer_id: IssuerId, request: HSMIssued, *, res: Res, who: ControllerDep) -> HSMRecorded:
    """Write down certificates that were signed, before anybody gets them."""
    raise Unavailable("this part of the service is being built")
