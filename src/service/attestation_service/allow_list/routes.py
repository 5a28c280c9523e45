"""HTTP of the allow-list."""

from __future__ import annotations

from typing import Any

from fastapi import HTTPException, Request

from attestation.api import AllowListImport, AllowListImported, PendingApproval
from attestation.api.operations import OperatorAPI
from attestation_service.allow_list import handlers
from attestation_service.auth import VoterDep
from attestation_service.border.bodies import media_type, parse_json
from attestation_service.resources import Res
from attestation_service.routing.openapi import operator_router, request_body, route

router = operator_router("operator: allow-list")


def _import_body() -> dict[str, Any]:
    documented = request_body(AllowListImport)
    documented["requestBody"]["content"]["text/csv"] = {
        "schema": {"type": "string", "description": f"Header line with {', '.join(handlers.COLUMNS)}"},
        "example": "ek_fingerprint,role,hostname,note\n" + "ab" * 48 + ",worker-app,w-1,rack 4\n",
    }
    return documented


async def import_entries(
    request: Request, res: Res, operator: VoterDep
) -> AllowListImported | PendingApproval:
    """Admit EKs in advance, from JSON or CSV.

    All or nothing; an EK that is listed already gets the new entry.
    """
    kind = media_type(request.headers.get("content-type"))
    body = await request.body()
    if kind == "text/csv":
        wanted = handlers.parse_csv(body)
    elif kind == "application/json":
        wanted = parse_json(AllowListImport, body)
    else:
        raise HTTPException(415)
    return await handlers.import_entries(wanted, res=res, operator=operator)


route(router, OperatorAPI.import_allow_list, "act", import_entries, reach="cluster", extra=_import_body())
route(router, OperatorAPI.allow_list, "read", handlers.list_entries, reach="cluster")
route(router, OperatorAPI.remove_from_allow_list, "act", handlers.remove, reach="cluster")
