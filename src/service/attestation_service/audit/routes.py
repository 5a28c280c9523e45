"""HTTP of the audit log: names for auditors, hashes for everybody."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Query, Response
from fastapi.responses import StreamingResponse

from attestation.api import (
    AuditKeys,
    ConsistencyProof,
    InclusionProof,
)
from attestation.api.operations import OperatorAPI
from attestation.audit.export import MEDIA_TYPE as EXPORT_MEDIA_TYPE
from attestation.audit.merkle import MAX_SIZE, TILE_WIDTH
from attestation.audit.tiles import Tile
from attestation_service.audit import handlers, verification
from attestation_service.auth import OperatorDep
from attestation_service.border import limits
from attestation_service.context.request import From
from attestation_service.resources import Res
from attestation_service.routing.openapi import as_it_is, machine_router, operator_router, route

router = operator_router("operator: audit")
public = machine_router("audit")

FOREVER: Final = "public, max-age=31536000, immutable"
BRIEFLY: Final = "public, max-age=60"

Size = Annotated[int | None, Query(ge=0, le=MAX_SIZE, description="Entries in the tree; now, if left out")]


TILE = as_it_is(OperatorAPI.audit_tile, "Hashes of 32 bytes, one after the other")
BUNDLE = as_it_is(OperatorAPI.audit_entries_tile, "Entries: u16 length, big-endian, then the canonical bytes")
NOTE = as_it_is(
    OperatorAPI.audit_checkpoint,
    "A signed note (C2SP tlog-checkpoint) with every signature that there is",
    binary=False,
)
EXPORT = as_it_is(OperatorAPI.export_audit, "A header, then one line per entry")


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


async def tile(path: handlers.TilePath, res: Res, origin: From) -> Response:
    """A tile of up to 256 hashes of the tree.

    A full tile never changes, so it may be kept for ever.
    """
    await limits.count(res, origin)
    found, body = await handlers.tile(f"tile/{path}", res=res)
    return Response(body, media_type="application/octet-stream", headers={"Cache-Control": _lifetime(found)})


async def checkpoint(res: Res, origin: From) -> Response:
    """The newest signed checkpoint.

    Keep it: a log that is not consistent with it later was rewritten.
    """
    await limits.count(res, origin)
    return Response(await handlers.checkpoint(res=res), media_type="text/plain; charset=utf-8")


async def keys(res: Res, origin: From) -> AuditKeys:
    """Who signs for the log.

    A verifier pins them once; it does not ask each time whom to believe.
    """
    await limits.count(res, origin)
    return handlers.keys(res=res)


async def inclusion(
    res: Res,
    origin: From,
    index: Annotated[int, Query(ge=0, lt=MAX_SIZE, description="Place of the entry: its id less one")],
    size: Size = None,
) -> InclusionProof:
    """Prove that an entry is in the log.

    Hashes only; RFC 9162 §2.1.3.2 says how to verify them.
    """
    await limits.count(res, origin)
    return await handlers.inclusion(index, size, res=res)


async def consistency(
    res: Res,
    origin: From,
    old: Annotated[int, Query(alias="from", ge=0, le=MAX_SIZE, description="Entries in the older tree")],
    new: Annotated[
        int | None, Query(alias="to", ge=0, le=MAX_SIZE, description="Entries in the newer; now, if left out")
    ] = None,
) -> ConsistencyProof:
    """Prove that the log only grew.

    Hashes only; RFC 9162 §2.1.4.2 says how to verify them.
    """
    await limits.count(res, origin)
    return await handlers.consistency(old, new, res=res)


def _lifetime(found: Tile) -> str:
    return FOREVER if found.width == TILE_WIDTH else BRIEFLY


route(router, OperatorAPI.audit, "audit", handlers.list_entries)
route(router, OperatorAPI.verify_audit, "audit", verification.verify)
route(router, OperatorAPI.export_audit, "audit", export, also=EXPORT)
route(router, OperatorAPI.audit_entries_tile, "audit", handlers.bundle, also=BUNDLE)
route(public, OperatorAPI.audit_tile, "public", tile, also=TILE)
route(public, OperatorAPI.audit_checkpoint, "public", checkpoint, also=NOTE)
route(public, OperatorAPI.audit_keys, "public", keys)
route(public, OperatorAPI.audit_inclusion, "public", inclusion)
route(public, OperatorAPI.audit_consistency, "public", consistency)
