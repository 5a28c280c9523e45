"""HTTP of the operators' acts on machines."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Response

from attestation.api import (
    ApproveRequest,
    LockRequest,
    MachineDetail,
    MachinePage,
    ReasonRequest,
    ReplaceRequest,
    RevokeRequest,
    RoleChangeRequest,
)
from attestation.api.base import CLUSTER_ID_PATTERN, MachineId
from attestation.errors import (
    AssuranceTooLow,
    MachineChanged,
    MachineUnknown,
    NameInUse,
    RequestInvalid,
    TransitionForbidden,
)
from attestation.machines import Role, Status
from attestation.store import MachineFilter
from attestation_service.auth import OperatorDep
from attestation_service.context import Res
from attestation_service.dual_control import status_of
from attestation_service.machines import handlers
from attestation_service.openapi import Cursor, Limit, access, answers, operator_router
from attestation_service.replies import reply

router = operator_router("operator: machines")

Id = Annotated[MachineId, Path()]
NO_REASON, NO_WIPE = LockRequest(), RevokeRequest()
ACT = (MachineUnknown, TransitionForbidden, MachineChanged)


@router.get(
    "/machines",
    operation_id="list_machines",
    summary="List machines, newest first",
    response_model=MachinePage,
    responses=answers(RequestInvalid, kind="read"),
    openapi_extra=access("read"),
)
async def list_machines(
    res: Res,
    status: Annotated[Status | None, Query()] = None,
    role: Annotated[Role | None, Query()] = None,
    cluster_id: Annotated[str | None, Query(pattern=CLUSTER_ID_PATTERN)] = None,
    q: Annotated[
        str | None,
        Query(
            max_length=128,
            pattern=r"^[^\x00-\x1f\x7f]*$",
            description="Part of hostname, serial, MAC or UUID; beginning of machine id or EK fingerprint",
        ),
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response:
    """Filters are combined; the cursor of a page leads to the next."""
    wanted = MachineFilter(status=status, role=role, cluster_id=cluster_id, q=q)
    return reply(await handlers.list_machines(wanted, cursor, limit, res=res))


@router.get(
    "/machines/{machine_id}",
    operation_id="get_machine",
    summary="Show one machine",
    response_model=MachineDetail,
    responses=answers(MachineUnknown, kind="read"),
    openapi_extra=access("read"),
)
async def get_machine(machine_id: Id, res: Res) -> Response:
    """Everything but tokens, nonces and keys."""
    return reply(await handlers.get_machine(machine_id, res=res))


@router.post(
    "/machines/{machine_id}/approve",
    operation_id="approve_machine",
    summary="Admit a pending machine in a role",
    response_model=MachineDetail,
    responses=answers(*ACT, AssuranceTooLow, NameInUse, body=True, gated=True, kind="act"),
    openapi_extra=access("act"),
)
async def approve(machine_id: Id, request: ApproveRequest, res: Res, operator: OperatorDep) -> Response:
    """The configuration follows the machine's next good attestation."""
    answer = await handlers.approve(machine_id, request, res=res, operator=operator)
    return reply(answer, status_code=status_of(answer))


@router.post(
    "/machines/{machine_id}/reject",
    operation_id="reject_machine",
    summary="Refuse a pending machine",
    response_model=MachineDetail,
    responses=answers(*ACT, body=True, kind="act"),
    openapi_extra=access("act"),
)
async def reject(machine_id: Id, request: ReasonRequest, res: Res, operator: OperatorDep) -> Response:
    """It can be deleted afterwards, and then introduce itself again."""
    return reply(await handlers.reject(machine_id, request, res=res, operator=operator))


@router.post(
    "/machines/{machine_id}/lock",
    operation_id="lock_machine",
    summary="Suspend an attested machine",
    response_model=MachineDetail,
    responses=answers(*ACT, body=True, kind="act"),
    openapi_extra=access("act"),
)
async def lock(machine_id: Id, res: Res, operator: OperatorDep, request: LockRequest = NO_REASON) -> Response:
    """Its config tokens are void at once."""
    return reply(await handlers.lock(machine_id, request, res=res, operator=operator))


@router.post(
    "/machines/{machine_id}/unlock",
    operation_id="unlock_machine",
    summary="End a lock",
    response_model=MachineDetail,
    responses=answers(*ACT, body=True, gated=True, kind="act"),
    openapi_extra=access("act"),
)
async def unlock(
    machine_id: Id, res: Res, operator: OperatorDep, request: LockRequest = NO_REASON
) -> Response:
    """A configuration still needs a fresh quote."""
    answer = await handlers.unlock(machine_id, request, res=res, operator=operator)
    return reply(answer, status_code=status_of(answer))


@router.post(
    "/machines/{machine_id}/revoke",
    operation_id="revoke_machine",
    summary="End a machine's admission for good",
    response_model=MachineDetail,
    responses=answers(*ACT, body=True, kind="act"),
    openapi_extra=access("act"),
)
async def revoke(
    machine_id: Id, res: Res, operator: OperatorDep, request: RevokeRequest = NO_WIPE
) -> Response:
    """With `wipe`, the machine is told to erase itself at its next attestation."""
    return reply(await handlers.revoke(machine_id, request, res=res, operator=operator))


@router.post(
    "/machines/{machine_id}/ak-reset",
    operation_id="reset_ak",
    summary="Let the machine activate another attestation key",
    response_model=MachineDetail,
    responses=answers(*ACT, body=True, gated=True, kind="act"),
    openapi_extra=access("act"),
)
async def ak_reset(machine_id: Id, request: ReasonRequest, res: Res, operator: OperatorDep) -> Response:
    """After a cleared TPM or a reinstallation; trust begins anew."""
    answer = await handlers.ak_reset(machine_id, request, res=res, operator=operator)
    return reply(answer, status_code=status_of(answer))


@router.post(
    "/machines/{machine_id}/redeliver",
    operation_id="redeliver_config",
    summary="Offer the configuration again",
    response_model=MachineDetail,
    responses=answers(*ACT, gated=True, kind="act"),
    openapi_extra=access("act"),
)
async def redeliver(machine_id: Id, res: Res, operator: OperatorDep) -> Response:
    """A new config token comes with every good attestation until one was used."""
    answer = await handlers.redeliver(machine_id, res=res, operator=operator)
    return reply(answer, status_code=status_of(answer))


@router.post(
    "/machines/{machine_id}/role",
    operation_id="change_role",
    summary="Give an admitted machine another role",
    response_model=MachineDetail,
    responses=answers(*ACT, AssuranceTooLow, NameInUse, body=True, gated=True, kind="act"),
    openapi_extra=access("act"),
)
async def change_role(
    machine_id: Id, request: RoleChangeRequest, res: Res, operator: OperatorDep
) -> Response:
    """It gets the configuration of the new role at its next good attestation."""
    answer = await handlers.change_role(machine_id, request, res=res, operator=operator)
    return reply(answer, status_code=status_of(answer))


@router.post(
    "/machines/{machine_id}/replace",
    operation_id="replace_machine",
    summary="Let a machine that waits take the place of this one",
    response_model=MachineDetail,
    responses=answers(*ACT, AssuranceTooLow, NameInUse, RequestInvalid, body=True, gated=True, kind="act"),
    openapi_extra=access("act"),
)
async def replace(machine_id: Id, request: ReplaceRequest, res: Res, operator: OperatorDep) -> Response:
    """This one is revoked; the answer is the new one, with its role, cluster, host name and address."""
    answer = await handlers.take_over(machine_id, request, res=res, operator=operator)
    return reply(answer, status_code=status_of(answer))


@router.delete(
    "/machines/{machine_id}",
    operation_id="delete_machine",
    summary="Delete a rejected or wiped machine",
    status_code=204,
    responses=answers(*ACT, kind="act"),
    openapi_extra=access("act"),
)
async def delete(machine_id: Id, res: Res, operator: OperatorDep) -> Response:
    """The audit is left as it is."""
    await handlers.delete(machine_id, res=res, operator=operator)
    return Response(status_code=204)
