"""HTTP of the allow-list."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import HTTPException, Path, Request, Response

from attestation.api import AllowListImport, AllowListImported, AllowListPage
from attestation.errors import AllowListEntryUnknown, NameInUse, RequestInvalid
from attestation_service.allow_list import handlers
from attestation_service.auth import OperatorDep
from attestation_service.bodies import media_type, parse_json
from attestation_service.context import Res
from attestation_service.dual_control import status_of
from attestation_service.openapi import Cursor, Limit, access, answers, operator_router, request_body
from attestation_service.replies import reply

router = operator_router("operator: allow-list")


def _import_body() -> dict[str, Any]:
    documented = request_body(AllowListImport)
    documented["requestBody"]["content"]["text/csv"] = {
        "schema": {"type": "string", "description": f"Header line with {', '.join(handlers.COLUMNS)}"},
        "example": "ek_fingerprint,role,hostname,note\n" + "ab" * 48 + ",worker-app,w-1,rack 4\n",
    }
    return documented


@router.post(
    "/allow-list",
    operation_id="import_allow_list",
    summary="Admit EKs in advance, from JSON or CSV",
    response_model=AllowListImported,
    responses=answers(RequestInvalid, NameInUse, body=True, gated=True, kind="act"),
    openapi_extra={**access("act"), **_import_body()},
)
async def import_entries(request: Request, res: Res, operator: OperatorDep) -> Response:
    """All or nothing; an EK that is listed already gets the new entry."""
    kind = media_type(request.headers.get("content-type"))
    body = await request.body()
    if kind == "text/csv":
        wanted = handlers.parse_csv(body)
    elif kind == "application/json":
        wanted = parse_json(AllowListImport, body)
    else:
        raise HTTPException(415)
    answer = await handlers.import_entries(wanted, res=res, operator=operator)
    return reply(answer, status_code=status_of(answer))


@router.get(
    "/allow-list",
    operation_id="list_allow_list",
    summary="List the EKs admitted in advance",
    response_model=AllowListPage,
    responses=answers(RequestInvalid, kind="read"),
    openapi_extra=access("read"),
)
async def list_entries(res: Res, cursor: Cursor = None, limit: Limit = 50) -> Response:
    """In the order of their fingerprints."""
    return reply(await handlers.list_entries(cursor, limit, res=res))


@router.delete(
    "/allow-list/{ek_fingerprint}",
    operation_id="remove_from_allow_list",
    summary="Remove an EK from the allow-list",
    status_code=204,
    responses=answers(AllowListEntryUnknown, kind="act"),
    openapi_extra=access("act"),
)
async def remove(
    ek_fingerprint: Annotated[str, Path(pattern=r"^[0-9a-f]{96}$")], res: Res, operator: OperatorDep
) -> Response:
    """Machines already admitted stay."""
    await handlers.remove(ek_fingerprint, res=res, operator=operator)
    return Response(status_code=204)
