"""HTTP of the numbers."""

from __future__ import annotations

from fastapi import Response

from attestation.api import Stats
from attestation_service.context import Res
from attestation_service.openapi import access, answers, operator_router
from attestation_service.replies import reply
from attestation_service.stats import handlers

router = operator_router("operator: machines")


@router.get(
    "/stats",
    operation_id="stats",
    summary="Count machines by status, role and trust",
    response_model=Stats,
    responses=answers(kind="read"),
    openapi_extra=access("read"),
)
async def stats(res: Res) -> Response:
    """Counted in the database; every machine once in each table."""
    return reply(await handlers.stats(res=res))
