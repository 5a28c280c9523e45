"""HTTP of single results."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Response

from attestation.api import ResultPage, ResultReport
from attestation.api.base import MachineId
from attestation.errors import MachineUnknown, RequestInvalid, ResultUnknown
from attestation.results.ear import MEDIA_TYPE as EAR_MEDIA_TYPE
from attestation_service.context import Res
from attestation_service.openapi import Cursor, Limit, Responses, access, answers, operator_router
from attestation_service.replies import reply
from attestation_service.results import handlers
from attestation_service.results.handlers import ProfileWord

router = operator_router("operator: machines")

Id = Annotated[MachineId, Path()]
Number = Annotated[int, Path(ge=1, le=(1 << 63) - 1, description="`result_id` of a result")]
NO_RESULT = (MachineUnknown, ResultUnknown)
_LOG: Responses = {
    200: {
        "description": "The log as the machine sent it",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.get(
    "/machines/{machine_id}/results",
    operation_id="list_results",
    summary="List attestation results of a machine with every check, newest first",
    response_model=ResultPage,
    responses=answers(MachineUnknown, RequestInvalid, kind="read"),
    openapi_extra=access("read"),
)
async def results(machine_id: Id, res: Res, cursor: Cursor = None, limit: Limit = 50) -> Response:
    """Changes only: an unchanged result renews the lease and adds nothing here."""
    return reply(await handlers.results(machine_id, cursor, limit, res=res))


@router.get(
    "/machines/{machine_id}/results/{result_id}",
    operation_id="get_result",
    summary="Show one result, what it was judged from, and what explains a change",
    response_model=ResultReport,
    responses=answers(*NO_RESULT, kind="read"),
    openapi_extra=access("read"),
)
async def report(machine_id: Id, result_id: Number, res: Res) -> Response:
    """Compared with the last Verified result before it; each PCR that differs is explained in words."""
    return reply(await handlers.report(machine_id, result_id, res=res))


@router.get(
    "/machines/{machine_id}/results/{result_id}/event-log",
    operation_id="get_event_log",
    summary="Fetch the boot event log of a result",
    response_class=Response,
    responses={**answers(*NO_RESULT, kind="read"), **_LOG},
    openapi_extra=access("read"),
)
async def event_log(machine_id: Id, result_id: Number, res: Res) -> Response:
    """Bytes as the machine sent them: what is in it is for parsers, not for browsers."""
    return _download(await handlers.log(machine_id, result_id, "event-log", res=res))


@router.get(
    "/machines/{machine_id}/results/{result_id}/ima-log",
    operation_id="get_ima_log",
    summary="Fetch the IMA measurement list of a result",
    response_class=Response,
    responses={**answers(*NO_RESULT, kind="read"), **_LOG},
    openapi_extra=access("read"),
)
async def ima_log(machine_id: Id, result_id: Number, res: Res) -> Response:
    """Bytes as the machine sent them."""
    return _download(await handlers.log(machine_id, result_id, "ima-log", res=res))


@router.get(
    "/machines/{machine_id}/results/{result_id}/token",
    operation_id="get_result_token",
    summary="Sign one result for others to read",
    response_class=Response,
    responses={
        **answers(*NO_RESULT, kind="read"),
        200: {
            "description": "An EAR as a JWT, verifiable with `/service-keys`",
            "content": {EAR_MEDIA_TYPE: {"schema": {"type": "string"}}},
        },
    },
    openapi_extra=access("read"),
)
async def token(
    machine_id: Id,
    result_id: Number,
    res: Res,
    profile: Annotated[ProfileWord, Query(description="Which form of EAR")] = "draft-04",
    checks: Annotated[bool, Query(description="Name every check: not for the machine itself")] = False,
) -> Response:
    """It ends when trust in the result did."""
    signed = await handlers.token(machine_id, result_id, profile, checks=checks, res=res)
    return Response(signed, media_type=EAR_MEDIA_TYPE)


def _download(content: bytes) -> Response:
    return Response(
        content,
        media_type="application/octet-stream",
        headers={"Content-Disposition": "attachment"},
    )
