"""What relying parties ask of CA keys in hardware."""

# ruff: noqa: ARG001 -- its parts are being built
from __future__ import annotations

from fastapi import Response

from attestation.errors import Unavailable
from attestation_service.context.request import From
from attestation_service.resources import Res
from attestation_service.routing.parameters import IfNoneMatch, IssuerId


async def crl(issuer_id: IssuerId, res: Res, origin: From, if_none_match: IfNoneMatch = None) -> Response:
    """The revocation list of a CA key in hardware."""
    raise Unavailable("this part of the service is being built")


async def ca(issuer_id: IssuerId, res: Res, origin: From, if_none_match: IfNoneMatch = None) -> Response:
    """The certificate of a CA key in hardware."""
    raise Unavailable("this part of the service is being built")
