"""HTTP of the votes of dual control."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Response

from attestation.api import ApprovalPage, Objected, ProposalPage, ReasonRequest
from attestation.api.base import MachineId
from attestation.errors import ApprovalUnknown, Forbidden, MachineUnknown, RequestInvalid
from attestation_service.approvals import handlers
from attestation_service.auth import OperatorDep
from attestation_service.context import Res
from attestation_service.openapi import Cursor, Limit, access, answers, operator_router
from attestation_service.replies import reply

router = operator_router("operator: dual control")


@router.get(
    "/approvals",
    operation_id="list_proposals",
    summary="List what waits for votes, newest first",
    response_model=ProposalPage,
    responses=answers(RequestInvalid, kind="read"),
    openapi_extra=access("read"),
)
async def proposals(res: Res, cursor: Cursor = None, limit: Limit = 50) -> Response:
    """Proposals about machines, registration tokens and the allow-list, with everything that votes bind."""
    return reply(await handlers.proposals(cursor, limit, res=res))


@router.get(
    "/machines/{machine_id}/approvals",
    operation_id="list_machine_approvals",
    summary="List the votes about a machine, newest first",
    response_model=ApprovalPage,
    responses=answers(MachineUnknown, RequestInvalid, kind="read"),
    openapi_extra=access("read"),
)
async def of_machine(
    machine_id: Annotated[MachineId, Path()], res: Res, cursor: Cursor = None, limit: Limit = 50
) -> Response:
    """Live, expired, withdrawn and used ones."""
    return reply(await handlers.of_machine(machine_id, cursor, limit, res=res))


@router.delete(
    "/approvals/{approval_id}",
    operation_id="withdraw_approval",
    summary="Take back one's own vote",
    status_code=204,
    responses=answers(ApprovalUnknown, Forbidden, kind="act"),
    openapi_extra=access("act"),
)
async def withdraw(
    approval_id: Annotated[int, Path(ge=1, le=9_007_199_254_740_991)], res: Res, operator: OperatorDep
) -> Response:
    """While it lives; what was done with it stays done."""
    await handlers.withdraw(approval_id, res=res, operator=operator)
    return Response(status_code=204)


@router.post(
    "/approvals/{proposal_digest}/object",
    operation_id="object_to_proposal",
    summary="Object to a proposal: its votes are void",
    response_model=Objected,
    responses=answers(ApprovalUnknown, body=True, kind="act"),
    openapi_extra=access("act"),
)
async def object_to(
    proposal_digest: Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")],
    request: ReasonRequest,
    res: Res,
    operator: OperatorDep,
) -> Response:
    """Any operator may, break-glass too, and one is enough; whoever still wants it begins anew."""
    return reply(await handlers.object_to(proposal_digest, request, res=res, operator=operator))
