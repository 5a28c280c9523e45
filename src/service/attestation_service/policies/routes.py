"""HTTP of policies."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi import Path, Query, Request, Response

from attestation.api import (
    EffectivePolicy,
    LearnedPolicy,
    PolicyAssignment,
    PolicyAssignmentRequest,
    PolicyDetail,
    PolicyHistoryPage,
    PolicyLearnRequest,
    PolicyList,
    PolicyTestPage,
    PolicyTestRequest,
)
from attestation.api.base import MachineId
from attestation.errors import AlreadyExists, MachineUnknown, PolicyInvalid, PolicyUnknown, RequestInvalid
from attestation.reference import FORMAT
from attestation.reference.schema import schema as document_schema
from attestation_service.auth import OperatorDep
from attestation_service.context import Res
from attestation_service.dual_control import status_of
from attestation_service.openapi import Cursor, Limit, access, answers, operator_router
from attestation_service.policies import handlers, learning, trials
from attestation_service.replies import reply

router = operator_router("operator: policies")

ScopePath = Annotated[Literal["fleet", "cluster", "role", "machine"], Path()]
SUBJECT_PATTERN = r"^[A-Za-z0-9*_.-]+$"
NAME_PATTERN = r"^[a-z0-9][a-z0-9-]{0,62}$"
Subject = Annotated[str, Path(min_length=1, max_length=128, pattern=SUBJECT_PATTERN)]

SCHEMA_TYPE = "application/schema+json"
SCHEMA_TEXT = json.dumps(document_schema(), indent=2)


def _schema() -> dict[str, Any]:
    """Return the schema for the OpenAPI document, where it is no document of its own."""
    return {name: value for name, value in document_schema().items() if name not in ("$schema", "$id")}


DOCUMENT: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": _schema(),
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


@router.get(
    "/policies/history",
    operation_id="list_policy_history",
    summary="List what applied where and since when, newest first",
    response_model=PolicyHistoryPage,
    responses=answers(RequestInvalid, kind="read"),
    openapi_extra=access("read"),
)
async def history(
    res: Res,
    scope: Annotated[Literal["fleet", "cluster", "role", "machine"] | None, Query()] = None,
    subject: Annotated[str | None, Query(min_length=1, max_length=128, pattern=SUBJECT_PATTERN)] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response:
    """Everywhere, in one scope, or in one place of it."""
    return reply(await handlers.history(scope, subject, cursor, limit, res=res))


@router.post(
    "/policies/test",
    operation_id="test_policy",
    summary="Judge the stored evidence of one page of machines as if a policy applied there",
    response_model=PolicyTestPage,
    responses=answers(PolicyInvalid, PolicyUnknown, MachineUnknown, RequestInvalid, body=True, kind="act"),
    openapi_extra=access("act"),
)
async def test(request: PolicyTestRequest, res: Res) -> Response:
    """Together with what else is assigned to each machine. Nothing is changed, but it costs: not for viewers."""
    return reply(await trials.test(request, res=res))


@router.post(
    "/policies/learn",
    operation_id="learn_policy",
    summary="Propose a policy from what machines proved last",
    response_model=LearnedPolicy,
    responses=answers(PolicyInvalid, MachineUnknown, RequestInvalid, body=True, kind="act"),
    openapi_extra=access("act"),
)
async def learn(request: PolicyLearnRequest, res: Res, operator: OperatorDep) -> Response:
    """Nothing is stored. Whatever runs on these machines is what the proposal allows."""
    return reply(await learning.learn(request, res=res, operator=operator))


@router.get(
    "/policies/schema",
    operation_id="get_policy_schema",
    summary="Return the JSON Schema of a policy document",
    responses={200: {"content": {SCHEMA_TYPE: {"schema": {"type": "object"}}}}, **answers(kind="read")},
    openapi_extra=access("read"),
)
async def schema() -> Response:
    """Draft 2020-12; for editors and for checks before a document is sent."""
    return Response(SCHEMA_TEXT, media_type=SCHEMA_TYPE)


@router.get(
    "/machines/{machine_id}/policy",
    operation_id="get_effective_policy",
    summary="Return what a machine is measured against, and where each rule comes from",
    response_model=EffectivePolicy,
    responses=answers(MachineUnknown, kind="read"),
    openapi_extra=access("read"),
)
async def effective(machine_id: Annotated[MachineId, Path()], res: Res) -> Response:
    """All that is assigned to the fleet, its cluster, its role and itself, in one."""
    return reply(await handlers.effective(machine_id, res=res))


@router.get(
    "/policies/{name}/{version}",
    operation_id="get_policy",
    summary="Return one policy version",
    response_model=PolicyDetail,
    responses=answers(PolicyUnknown, kind="read"),
    openapi_extra=access("read"),
)
async def get(
    name: Annotated[str, Path(pattern=NAME_PATTERN)],
    version: Annotated[int, Path(ge=1, le=999_999_999)],
    res: Res,
) -> Response:
    """Its document is what was written; nothing ever changes in it."""
    return reply(await handlers.get(f"{name}@{version}", res=res))


@router.put(
    "/policies/assignments/{scope}/{subject}",
    operation_id="assign_policy",
    summary="Let a policy apply to the fleet, a cluster, a role or one machine",
    response_model=PolicyAssignment,
    responses=answers(
        PolicyUnknown, PolicyInvalid, MachineUnknown, RequestInvalid, body=True, gated=True, kind="act"
    ),
    openapi_extra=access("act"),
)
async def assign(
    scope: ScopePath, subject: Subject, request: PolicyAssignmentRequest, res: Res, operator: OperatorDep
) -> Response:
    """What a narrower policy says wins: machine, role, cluster, fleet. What applies already changes nothing."""
    answer = await handlers.assign(scope, subject, request.policy, res=res, operator=operator)
    return reply(answer, status_code=status_of(answer))


@router.delete(
    "/policies/assignments/{scope}/{subject}",
    operation_id="unassign_policy",
    summary="End an assignment",
    status_code=204,
    responses=answers(PolicyUnknown, MachineUnknown, RequestInvalid, gated=True, kind="act"),
    openapi_extra=access("act"),
)
async def unassign(scope: ScopePath, subject: Subject, res: Res, operator: OperatorDep) -> Response:
    """What wider policies say applies again."""
    answer = await handlers.unassign(scope, subject, res=res, operator=operator)
    return Response(status_code=204) if answer is None else reply(answer, status_code=202)


@router.post(
    "/policies/assignments/{scope}/{subject}/rollback",
    operation_id="roll_back_policy",
    summary="Let what applied there before apply again",
    response_model=PolicyAssignment,
    responses={
        204: {"description": "Nothing was assigned there before, and nothing is now"},
        **answers(PolicyUnknown, PolicyInvalid, MachineUnknown, RequestInvalid, gated=True, kind="act"),
    },
    openapi_extra=access("act"),
)
async def roll_back(scope: ScopePath, subject: Subject, res: Res, operator: OperatorDep) -> Response:
    """The same act as assigning that policy by name: votes for the one count for the other."""
    answer = await handlers.roll_back(scope, subject, res=res, operator=operator)
    return Response(status_code=204) if answer is None else reply(answer, status_code=status_of(answer))
