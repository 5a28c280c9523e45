"""HTTP of the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from attestation.api import AuditPage, AuditVerification
from attestation.api.base import MachineId
from attestation.errors import RequestInvalid
from attestation.store import AuditFilter
from attestation_service.audit import handlers
from attestation_service.context import Res
from attestation_service.openapi import Cursor, Limit, access, answers, operator_router
from attestation_service.replies import reply

router = operator_router("operator: audit")


@router.get(
    "/audit",
    operation_id="list_audit",
    summary="List audit entries, newest first",
    response_model=AuditPage,
    responses=answers(RequestInvalid, kind="audit"),
    openapi_extra=access("audit"),
)
async def list_entries(
    res: Res,
    machine_id: Annotated[MachineId | None, Query()] = None,
    action: Annotated[str | None, Query(pattern=r"^[a-z_]{1,64}$")] = None,
    operator_cn: Annotated[str | None, Query(max_length=256, pattern=r"^[^\x00-\x1f\x7f]*$")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response:
    """Every column, so that a reader can recompute each hash."""
    wanted = AuditFilter(machine_id=machine_id, operator_cn=operator_cn, action=action)
    return reply(await handlers.list_entries(wanted, cursor, limit, res=res))


@router.get(
    "/audit/verify",
    operation_id="verify_audit",
    summary="Verify the whole audit chain",
    response_model=AuditVerification,
    responses=answers(kind="audit"),
    openapi_extra=access("audit"),
)
async def verify(res: Res) -> Response:
    """Walks every entry; says which one is the first that does not fit."""
    return reply(await handlers.verify(res=res))
