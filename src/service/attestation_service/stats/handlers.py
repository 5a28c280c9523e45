"""Counting: in the database, one query for each table, all of one moment."""

from __future__ import annotations

from attestation.api import Stats
from attestation.machines import Role, Status, Trust
from attestation.store import MachineCounts, Tx
from attestation_service.resources import Res


async def stats(*, res: Res) -> Stats:
    """Count machines by status, role and trust.

    Counted in the database; every machine once in each table.
    """
    at = res.clock.now()

    def work(tx: Tx) -> tuple[MachineCounts, int]:
        return tx.machines.counts(at), tx.machines.count_pinned(res.signer.sha256)

    counts, pinned = await res.store.read(work)
    return Stats(
        at=at,
        machines=sum(counts.by_status.values()),
        by_status={status: counts.by_status.get(status, 0) for status in Status},
        by_role={role: counts.by_role.get(role, 0) for role in Role},
        without_role=counts.by_role.get(None, 0),
        by_trust={trust: counts.by_trust.get(trust, 0) for trust in Trust},
        service_keys_pinned=pinned,
    )
