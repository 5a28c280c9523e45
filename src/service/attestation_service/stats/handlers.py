"""Counting: in the database, one query for each table, all of one moment."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from cryptography import x509

from attestation.api import Attention, OldestResult, PendingByAge, Stats
from attestation.clock import parse_rfc3339
from attestation.machines import Role, Status, Trust
from attestation.store import MachineCounts, Tx
from attestation_service.resources import Res

RECENT: Final = timedelta(hours=24)


async def stats(*, res: Res) -> Stats:
    """Count machines by status, role, trust and cluster.

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
        by_cluster=dict(counts.by_cluster),
        service_keys_pinned=pinned,
    )


async def attention(*, res: Res) -> Attention:
    """Count what operators should look at.

    Machines that wait, by age; what failed of late; certificates that are about to end; how far the log is signed.
    """
    at = res.clock.now()

    def work(tx: Tx) -> Attention:
        waiting, oldest, makers = (
            tx.attention.waiting(at),
            tx.attention.oldest_result(),
            tx.attention.makers(),
        )
        troubles = tx.attention.troubles(at, at - RECENT)
        expiring, newest = tx.attention.expiring(at), tx.audit.tree.newest_checkpoint()
        unsigned = tx.audit.entries(0 if newest is None else newest.size, 1)
        ends = [
            x509.load_der_x509_certificate(issuer.certificate).not_valid_after_utc
            for issuer in tx.issuers.all()
            if issuer.state == "active" and issuer.certificate is not None
        ]
        return Attention(
            at=at,
            pending=PendingByAge(
                hour=waiting.hour, day=waiting.day, week=waiting.week, longer=waiting.longer
            ),
            pending_since=waiting.since,
            alarms=troubles.alarms,
            failed_recently=troubles.failed,
            undelivered=troubles.undelivered,
            stale=troubles.stale,
            oldest_result=None
            if oldest is None
            else OldestResult(machine_id=oldest.machine_id, hostname=oldest.hostname, at=oldest.at),
            expiring=expiring.count,
            next_expiry=expiring.first,
            ca_ends_at=min(ends, default=None),
            audit_entries=tx.audit.tree.size(),
            checkpoint_entries=0 if newest is None else newest.size,
            unsigned_since=parse_rfc3339(unsigned[0][1].timestamp) if unsigned else None,
            checkpoint_at=None if newest is None else newest.created_at,
            tpm_vendors=dict(makers.named),
            tpm_vendors_more=makers.more,
            tpm_without_certificate=makers.without,
        )

    return await res.store.scan(work)
