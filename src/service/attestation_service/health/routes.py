"""HTTP of health; outside `/api/v1`, because that is where orchestrators look."""

from __future__ import annotations

from fastapi import APIRouter, Response

from attestation.api import Health, Readiness
from attestation.api.operations import PublicAPI
from attestation_service.health import handlers
from attestation_service.resources import Res
from attestation_service.routing.openapi import Responses, ok, route
from attestation_service.routing.replies import reply

router = APIRouter(tags=["health"])

NOT_READY: Responses = {503: ok(Readiness, "At least one part is not ready; `checks` says which")}


async def healthz() -> Health:
    """The process is alive.

    Asks nothing of anybody else.
    """
    return Health()


async def readyz(res: Res) -> Readiness | Response:
    """The service can decide.

    Each part is `ok`, or what is wrong with it, in words without details; `degraded` still decides.
    """
    found = await handlers.ready(res)
    return reply(found, status_code=503) if found.status == "unavailable" else found


route(router, PublicAPI.healthz, "public", healthz)
route(router, PublicAPI.readyz, "public", readyz, instead=NOT_READY)
