"""CA keys in hardware, for operators."""

# ruff: noqa: ARG001 -- its parts are being built
from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query

from attestation.api import (
    HSMCertificateDetail,
    HSMCertificatePage,
    HSMIssuerPage,
    HSMRevokeRequest,
    QuoteAttestationPage,
)
from attestation.errors import Unavailable
from attestation_service.auth import OperatorDep
from attestation_service.resources import Res
from attestation_service.routing.parameters import Cursor, IssuerId, Limit, Serial

State = Annotated[
    Literal["reserved", "issued", "revoked", "void"] | None, Query(description="Only those in this state")
]


async def issuers(cursor: Cursor = None, limit: Limit = 50, *, res: Res) -> HSMIssuerPage:
    """List CA keys in hardware, newest first."""
    raise Unavailable("this part of the service is being built")


async def certificates(
    issuer_id: IssuerId, state: State = None, cursor: Cursor = None, limit: Limit = 50, *, res: Res
) -> HSMCertificatePage:
    """List the certificates of a CA key in hardware, newest first."""
    raise Unavailable("this part of the service is being built")


async def revoke(
    serial: Serial, request: HSMRevokeRequest, *, res: Res, who: OperatorDep
) -> HSMCertificateDetail:
    """Revoke one certificate of a CA key in hardware for good."""
    raise Unavailable("this part of the service is being built")


async def quote_attestations(cursor: Cursor = None, limit: Limit = 50, *, res: Res) -> QuoteAttestationPage:
    """List QuoteAttestations, newest first."""
    raise Unavailable("this part of the service is being built")
