"""HTTP of the page. It is open: it tells what /openapi.json tells, which is what the published program tells."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, FastAPI, Request, Response

from attestation_service.documentation.page import POLICY, render
from attestation_service.routing.openapi import access

router = APIRouter(tags=["documentation"])


def _rendered(app: FastAPI) -> bytes:
    """Return the page of an application, made once: it does not change while it runs."""
    made: bytes | None = getattr(app.state, "page", None)
    if made is None:
        made = app.state.page = render(app.openapi()).encode()
    return made


@router.get("/docs", include_in_schema=False, openapi_extra=access("public"))
async def docs(request: Request) -> Response:
    """Off the loop: the first time takes as long as a hundred attestations."""
    made = await asyncio.to_thread(_rendered, request.app)
    return Response(made, media_type="text/html", headers={"Content-Security-Policy": POLICY})
