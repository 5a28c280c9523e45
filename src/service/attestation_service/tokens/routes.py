"""HTTP of registration tokens."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Response

from attestation.api import (
    RegistrationTokenCreated,
    RegistrationTokenPage,
    RegistrationTokenRequest,
)
from attestation.errors import NameInUse, RegistrationTokenUnknown, RequestInvalid
from attestation_service.auth import OperatorDep
from attestation_service.context import Res
from attestation_service.dual_control import status_of
from attestation_service.openapi import Cursor, Limit, access, answers, operator_router
from attestation_service.replies import reply
from attestation_service.tokens import handlers

router = operator_router("operator: registration tokens")


@router.post(
    "/registration-tokens",
    operation_id="create_registration_token",
    summary="Issue a registration token",
    status_code=201,
    response_model=RegistrationTokenCreated,
    responses=answers(NameInUse, RequestInvalid, body=True, gated=True, kind="act"),
    openapi_extra=access("act"),
)
async def create(request: RegistrationTokenRequest, res: Res, operator: OperatorDep) -> Response:
    """The secret is in this answer and nowhere else."""
    answer = await handlers.create(request, res=res, operator=operator)
    return reply(answer, status_code=status_of(answer, done=201))


@router.get(
    "/registration-tokens",
    operation_id="list_registration_tokens",
    summary="List registration tokens, newest first",
    response_model=RegistrationTokenPage,
    responses=answers(RequestInvalid, kind="read"),
    openapi_extra=access("read"),
)
async def list_tokens(res: Res, cursor: Cursor = None, limit: Limit = 50) -> Response:
    """Without their secrets, which nobody has."""
    return reply(await handlers.list_tokens(cursor, limit, res=res))


@router.delete(
    "/registration-tokens/{token_id}",
    operation_id="revoke_registration_token",
    summary="Revoke a registration token",
    status_code=204,
    responses=answers(RegistrationTokenUnknown, kind="act"),
    openapi_extra=access("act"),
)
async def revoke(
    token_id: Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")], res: Res, operator: OperatorDep
) -> Response:
    """Machines that it admitted stay; revoking twice changes nothing."""
    await handlers.revoke(token_id, res=res, operator=operator)
    return Response(status_code=204)
