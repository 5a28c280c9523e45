"""Walk the audit chain: entries per second on one core, in constant memory."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from attestation.audit import GENESIS_HASH, AuditEvent, chain, verify_chain
from tests.bench.report import Measurement, best_seconds

ENTRIES = 2000


def measure() -> Iterator[Measurement]:
    """Measure the rule itself, without the database."""
    at = datetime.now(UTC)
    entries, last = [], GENESIS_HASH
    for number in range(ENTRIES):
        event = AuditEvent(
            operator_cn="SYSTEM",
            action="approve",
            machine_id="7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d",
            prev_state="pending_approval",
            new_state="registered",
            detail=f'{{"role":"worker-app","hostname":"node-{number}"}}',
            source_ip="192.0.2.17",
        )
        entry = chain(event, at=at, prev_hash=last)
        entries.append((number + 1, entry))
        last = entry.entry_hash
    assert verify_chain(entries).valid
    seconds = best_seconds(lambda: verify_chain(entries), repeat=5, number=3) / ENTRIES
    yield Measurement(
        name="audit-verify-chain",
        value=1 / seconds,
        unit="/s",
        bar=">= 200,000 entries/s/core (with the Merkle tree, a later issue)",
        ok=1 / seconds >= 200_000,
        note="chain only, entries in memory; the Merkle tree does not exist yet",
    )
