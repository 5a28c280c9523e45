"""HTTP of health; outside `/api/v1`, because that is where orchestrators look."""

from __future__ import annotations

from fastapi import APIRouter, Response

from attestation.api import Health, Readiness
from attestation_service.health import handlers
from attestation_service.resources import Res
from attestation_service.routing.openapi import access, answers, ok
from attestation_service.routing.replies import reply

router = APIRouter(tags=["health"])


@router.get(
    "/healthz",
    operation_id="healthz",
    summary="The process is alive",
    response_model=Health,
    responses=answers(kind="public"),
    openapi_extra=access("public"),
)
async def healthz() -> Response:
    """Asks nothing of anybody else."""
    return reply(Health())


@router.get(
    "/readyz",
    operation_id="readyz",
    summary="The service can decide",
    response_model=Readiness,
    responses={
        **answers(kind="public"),
        503: ok(Readiness, "At least one part is not ready; `checks` says which"),
    },
    openapi_extra=access("public"),
)
async def readyz(res: Res) -> Response:
    """Each part is `ok`, or what is wrong with it, in words without details; `degraded` still decides."""
    found = await handlers.ready(res)
    return reply(found, status_code=503 if found.status == "unavailable" else 200)
