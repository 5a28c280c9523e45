"""HTTP of the audit log: names for auditors, hashes for everybody."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Query, Response
from fastapi.responses import StreamingResponse

from attestation.api import (
    AuditKeys,
    ConsistencyProof,
    InclusionProof,
)
from attestation.audit.export import MEDIA_TYPE as EXPORT_MEDIA_TYPE
from attestation.audit.merkle import MAX_SIZE, TILE_WIDTH
from attestation.audit.tiles import Tile
from attestation.errors import ProofUnavailable, RateLimited, RequestInvalid, Unavailable
from attestation_service.audit import handlers, verification
from attestation_service.auth import OperatorDep
from attestation_service.border import limits
from attestation_service.context.request import From
from attestation_service.resources import Res
from attestation_service.routing.openapi import access, answers, machine_router, operator_router, route
from attestation_service.routing.replies import reply

router = operator_router("operator: audit")
public = machine_router("audit")

FOREVER: Final = "public, max-age=31536000, immutable"
BRIEFLY: Final = "public, max-age=60"

Size = Annotated[int | None, Query(ge=0, le=MAX_SIZE, description="Entries in the tree; now, if left out")]


def _bytes(media_type: str, description: str) -> dict[str, Any]:
    schema = {"type": "string", "format": "binary"} if "text" not in media_type else {"type": "string"}
    return {"description": description, "content": {media_type: {"schema": schema}}}


TILE = _bytes("application/octet-stream", "Hashes of 32 bytes, one after the other")
BUNDLE = _bytes("application/octet-stream", "Entries: u16 length, big-endian, then the canonical bytes")
NOTE = _bytes("text/plain", "A signed note (C2SP tlog-checkpoint) with every signature that there is")
EXPORT = _bytes(EXPORT_MEDIA_TYPE, "A header, then one line per entry")


async def export(who: OperatorDep, res: Res) -> Response:
    """The whole log in one file that verifies without the service.

    Signs a checkpoint for it, and is itself the last entry that this covers.
    """
    lines = await handlers.export(who, res.clock.now(), res=res)
    return StreamingResponse(
        lines,
        media_type=EXPORT_MEDIA_TYPE,
        headers={"Content-Disposition": 'attachment; filename="audit.jsonl"'},
    )


@public.get(
    "/audit/tile/{path:path}",
    operation_id="audit_tile",
    summary="A tile of up to 256 hashes of the tree",
    response_class=Response,
    responses={**answers(404, ProofUnavailable, RateLimited, Unavailable, kind="public"), 200: TILE},
    openapi_extra=access("public"),
)
async def tile(path: handlers.TilePath, res: Res, origin: From) -> Response:
    """A full tile never changes, so it may be kept for ever."""
    await limits.count(res, origin)
    found, body = await handlers.tile(f"tile/{path}", res=res)
    return Response(body, media_type="application/octet-stream", headers={"Cache-Control": _lifetime(found)})


@public.get(
    "/audit/checkpoint",
    operation_id="audit_checkpoint",
    summary="The newest signed checkpoint",
    response_class=Response,
    responses={**answers(RateLimited, Unavailable, kind="public"), 200: NOTE},
    openapi_extra=access("public"),
)
async def checkpoint(res: Res, origin: From) -> Response:
    """Keep it: a log that is not consistent with it later was rewritten."""
    await limits.count(res, origin)
    return Response(await handlers.checkpoint(res=res), media_type="text/plain; charset=utf-8")


@public.get(
    "/audit/keys",
    operation_id="audit_keys",
    summary="Who signs for the log",
    response_model=AuditKeys,
    responses=answers(RateLimited, kind="public"),
    openapi_extra=access("public"),
)
async def keys(res: Res, origin: From) -> Response:
    """A verifier pins them once; it does not ask each time whom to believe."""
    await limits.count(res, origin)
    return reply(handlers.keys(res=res))


@public.get(
    "/audit/proof/inclusion",
    operation_id="audit_inclusion",
    summary="Prove that an entry is in the log",
    response_model=InclusionProof,
    responses=answers(ProofUnavailable, RateLimited, Unavailable, kind="public"),
    openapi_extra=access("public"),
)
async def inclusion(
    res: Res,
    origin: From,
    index: Annotated[int, Query(ge=0, lt=MAX_SIZE, description="Place of the entry: its id less one")],
    size: Size = None,
) -> Response:
    """Hashes only; RFC 9162 §2.1.3.2 says how to verify them."""
    await limits.count(res, origin)
    return reply(await handlers.inclusion(index, size, res=res))


@public.get(
    "/audit/proof/consistency",
    operation_id="audit_consistency",
    summary="Prove that the log only grew",
    response_model=ConsistencyProof,
    responses=answers(ProofUnavailable, RateLimited, Unavailable, kind="public"),
    openapi_extra=access("public"),
)
async def consistency(
    res: Res,
    origin: From,
    old: Annotated[int, Query(alias="from", ge=0, le=MAX_SIZE, description="Entries in the older tree")],
    new: Annotated[
        int | None, Query(alias="to", ge=0, le=MAX_SIZE, description="Entries in the newer; now, if left out")
    ] = None,
) -> Response:
    """Hashes only; RFC 9162 §2.1.4.2 says how to verify them."""
    await limits.count(res, origin)
    return reply(await handlers.consistency(old, new, res=res))


def _lifetime(found: Tile) -> str:
    return FOREVER if found.width == TILE_WIDTH else BRIEFLY


# fmt: off
route(router, "list_audit", "GET /audit", "audit", handlers.list_entries, RequestInvalid)
route(router, "verify_audit", "GET /audit/verify", "audit", verification.verify)
route(router, "export_audit", "GET /audit/export", "audit", export, Unavailable, also={200: EXPORT})
route(router, "audit_entries_tile", "GET /audit/tile/entries/{path:path}", "audit", handlers.bundle,
      404, ProofUnavailable, also={200: BUNDLE})
