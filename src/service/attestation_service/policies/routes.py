"""HTTP of policies."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path, Request, Response

from attestation.api import PolicyAssignment, PolicyAssignmentRequest, PolicyDetail, PolicyList
from attestation.errors import AlreadyExists, MachineUnknown, PolicyInvalid, PolicyUnknown, RequestInvalid
from attestation.reference.policy import FORMAT
from attestation_service.auth import OperatorDep
from attestation_service.context import Res
from attestation_service.openapi import access, answers, operator_router
from attestation_service.policies import handlers
from attestation_service.replies import reply

router = operator_router("operator: policies")

ScopePath = Annotated[Literal["fleet", "cluster", "role", "machine"], Path()]
Subject = Annotated[str, Path(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9*_.-]+$")]

DOCUMENT: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["format", "name", "version", "bank", "pcrs"],
                    "properties": {
                        "format": {"const": FORMAT},
                        "name": {"type": "string", "pattern": "^[a-z0-9][a-z0-9-]{0,62}$"},
                        "version": {"type": "integer", "minimum": 1},
                        "bank": {"enum": ["sha256", "sha384", "sha512"]},
                        "pcrs": {"type": "object"},
                        "clock": {"type": "object"},
                        "event_log": {"enum": ["accepted"]},
                        "max_age_seconds": {"type": "integer", "minimum": 30, "maximum": 604_800},
                    },
                    "additionalProperties": False,
                },
                "example": {
                    "format": FORMAT,
                    "name": "workers",
                    "version": 1,
                    "bank": "sha256",
                    "pcrs": {"7": {"any_of": ["ab" * 32]}, "1": {"ignore": "serial numbers"}},
                },
            }
        },
    }
}


@router.get(
    "/policies",
    operation_id="list_policies",
    summary="List all policies and where they apply",
    response_model=PolicyList,
    responses=answers(kind="read"),
    openapi_extra=access("read"),
)
async def list_policies(res: Res) -> Response:
    """The shipped policy `identity-only` applies where nothing is assigned."""
    return reply(await handlers.list_policies(res=res))


@router.post(
    "/policies",
    operation_id="create_policy",
    summary="Store a policy version",
    status_code=201,
    response_model=PolicyDetail,
    responses=answers(PolicyInvalid, AlreadyExists, body=True, kind="act"),
    openapi_extra={**access("act"), **DOCUMENT},
)
async def create(request: Request, res: Res, operator: OperatorDep) -> Response:
    """Immutable from then on; what this version cannot evaluate is refused by name."""
    return reply(await handlers.create(await request.body(), res=res, operator=operator), status_code=201)


@router.put(
    "/policies/assignments/{scope}/{subject}",
    operation_id="assign_policy",
    summary="Let a policy apply to the fleet, a cluster, a role or one machine",
    response_model=PolicyAssignment,
    responses=answers(PolicyUnknown, MachineUnknown, RequestInvalid, body=True, kind="act"),
    openapi_extra=access("act"),
)
async def assign(
    scope: ScopePath, subject: Subject, request: PolicyAssignmentRequest, res: Res, operator: OperatorDep
) -> Response:
    """The narrowest assignment wins: machine, role, cluster, fleet."""
    return reply(await handlers.assign(scope, subject, request.policy, res=res, operator=operator))


@router.delete(
    "/policies/assignments/{scope}/{subject}",
    operation_id="unassign_policy",
    summary="End an assignment",
    status_code=204,
    responses=answers(PolicyUnknown, RequestInvalid, kind="act"),
    openapi_extra=access("act"),
)
async def unassign(scope: ScopePath, subject: Subject, res: Res, operator: OperatorDep) -> Response:
    """The next wider assignment applies again."""
    await handlers.unassign(scope, subject, res=res, operator=operator)
    return Response(status_code=204)
