"""The file of a sealed run, for operators."""

# Algorithms for: digest
from __future__ import annotations

import asyncio
import hashlib
from typing import Annotated

import structlog
from fastapi import Query, Response

from attestation.api import SealArchive
from attestation.api.base import ClusterId
from attestation.errors import RequestInvalid, RunUnknown, Unavailable
from attestation.sealing import MEDIA_TYPE, SUFFIX
from attestation_service.archive import ArchiveFault
from attestation_service.resources import Res
from attestation_service.runs import sealing
from attestation_service.runs.handlers import RunUID

log = structlog.get_logger("attestation_service.runs")


async def bundle(
    uid: RunUID,
    cluster_id: Annotated[
        ClusterId | None, Query(description="Of the run; needed where two clusters have one of this UID")
    ] = None,
    *,
    res: Res,
) -> Response:
    """Return the sealed bundle of a run: a file that proves itself under the keys of the audit log.

    Raises:
        RunUnknown: No bundle of such a run is kept here; it may be in the archive.
        RequestInvalid: Several clusters have a run of this UID.
        Unavailable: It is not signed and logged yet, or the archive does not give it.
    """
    found = [
        each
        for each in await res.store.read(lambda tx: tx.run_seals.of_uid(uid))
        if cluster_id in (None, each.cluster_id)
    ]
    if not found:
        raise RunUnknown("no bundle of such a run is kept here; look into the archive")
    if len(found) > 1:
        raise RequestInvalid("several clusters have a run of this UID: name cluster_id")
    (row,) = found
    if row.log is None:
        raise Unavailable(f"the bundle is {row.phase}: come back when a checkpoint of the log covers it")
    if row.archive is None:
        data = await sealing.file_of(row, res)
    else:
        kept = SealArchive.model_validate_json(row.archive)
        try:
            data = await asyncio.to_thread(res.archive.get, kept.url)
        except ArchiveFault as e:
            log.warning("run.bundle_unread", uid=uid, reason=e.fault, detail=str(e)[:200])
            raise Unavailable(f"the archive does not give the bundle: {e.fault}") from e
        if hashlib.sha256(data).hexdigest() != kept.sha256:
            log.error("run.bundle_changed", uid=uid, url=kept.url)
            raise Unavailable("what is in the archive is not what was put there")
    return Response(
        data,
        media_type=MEDIA_TYPE,
        headers={"Content-Disposition": f'attachment; filename="{row.bundle_uid}{SUFFIX}"'},
    )
