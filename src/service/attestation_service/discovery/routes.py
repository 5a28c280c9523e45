"""HTTP of discovery."""

from __future__ import annotations

from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse

from attestation_service.resources import Res
from attestation_service.routing.openapi import access, answers, machine_router

router = machine_router("discovery")

JWK_SET: dict[str, Any] = {
    "description": "JWK set (RFC 7517)",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["keys"],
                "properties": {"keys": {"type": "array", "items": {"type": "object"}}},
            }
        }
    },
}


@router.get(
    "/service-keys",
    operation_id="service_keys",
    summary="The public keys that sign directives and results",
    response_class=Response,
    responses={**answers(kind="public"), 200: JWK_SET},
    openapi_extra=access("public"),
)
async def service_keys(res: Res) -> Response:
    """Nodes pin what the activation gave them; relying parties read this over TLS."""
    return JSONResponse(res.signer.jwks())
