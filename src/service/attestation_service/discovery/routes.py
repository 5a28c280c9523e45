"""HTTP of discovery."""

from __future__ import annotations

from fastapi import Response
from fastapi.responses import JSONResponse

from attestation.api.operations import PublicAPI
from attestation_service.resources import Res
from attestation_service.routing.openapi import Responses, machine_router, route

router = machine_router("discovery")

JWK_SET: Responses = {
    200: {
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
}


async def service_keys(res: Res) -> Response:
    """The public keys that sign directives and results.

    Nodes pin what the activation gave them; relying parties read this over TLS.
    """
    return JSONResponse(res.signer.jwks())


route(router, PublicAPI.service_keys, "public", service_keys, also=JWK_SET)
