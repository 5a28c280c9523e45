"""CA keys in hardware: which there are."""

# ruff: noqa: ARG001 -- its parts are being built
from __future__ import annotations

from typing import Annotated

from fastapi import Path

from attestation.api import HSMIssuer, HSMIssuerPut
from attestation.api.node_csr import ObjectUID
from attestation.errors import Unavailable
from attestation_service.auth import ControllerDep
from attestation_service.resources import Res

IssuerUID = Annotated[ObjectUID, Path(description="`metadata.uid` of the issuer")]


async def put(uid: IssuerUID, request: HSMIssuerPut, *, res: Res, who: ControllerDep) -> HSMIssuer:
    """Register the CA certificate of an issuer whose key is in hardware."""
    raise Unavailable("this part of the service is being built")
