"""The audit log: pages for reading, one walk for verifying."""

from __future__ import annotations

import asyncio

from attestation.api import AuditEntryDetail, AuditPage, AuditVerification
from attestation.audit import AuditEntry, ChainVerifier
from attestation.store import AuditFilter, Tx
from attestation_service.context import Resources

BATCH_ENTRIES = 2_000


async def list_entries(wanted: AuditFilter, cursor: str | None, limit: int, *, res: Resources) -> AuditPage:
    """Return entries, newest first."""
    page = await res.store.read(lambda tx: tx.audit.page(cursor, limit, wanted))
    return AuditPage(
        items=[
            AuditEntryDetail(
                id=row_id,
                **{name: getattr(entry, name) for name in AuditEntryDetail.model_fields if name != "id"},
            )
            for row_id, entry in page.items
        ],
        next_cursor=page.next_cursor,
    )


async def verify(*, res: Resources) -> AuditVerification:
    """Walk the whole chain in batches: constant memory, no transaction longer than one batch.

    Entries appended meanwhile are part of the walk; entries cannot change behind it, because the chain would
    not fit any more.
    """
    verifier = ChainVerifier()
    after = 0

    def next_batch(tx: Tx) -> list[tuple[int, AuditEntry]]:
        return tx.audit.entries(after, BATCH_ENTRIES)

    while batch := await res.store.read(next_batch):
        fits: bool = await asyncio.to_thread(verifier.feed, batch)
        if not fits:
            break
        after = batch[-1][0]
    verdict = verifier.verdict()
    return AuditVerification(
        valid=verdict.valid,
        entries=verdict.entries,
        root_hash=verdict.root_hash,
        first_invalid_id=verdict.first_invalid_id,
        error=verdict.error,
    )
