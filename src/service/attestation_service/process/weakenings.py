"""What an operator weakened is an entry of the audit log at every start: whoever reads the log later must know."""

# Algorithms for: digest
from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Final

from attestation.audit import AuditEvent
from attestation.store import RateLimit, Tx
from attestation_service.resources import Resources

ONE_START: Final = RateLimit(requests=1, per_seconds=60)
"""Workers that start within a minute with the same settings are one start."""


async def record(res: Resources) -> None:
    """Write the entry `settings_weakened` with every warning; nothing where there is none."""
    warnings = res.settings.warnings()
    if not warnings:
        return
    detail = "; ".join(warnings)
    key = f"settings_weakened:{hashlib.sha256(detail.encode()).hexdigest()}"
    at = res.clock.now()
    await res.store.write(lambda tx: _record(tx, key, detail, at))


def _record(tx: Tx, key: str, detail: str, at: datetime) -> None:
    if tx.rate_limits.check(key, at, ONE_START) is None:
        tx.rate_limits.take(key, at, ONE_START)
        tx.audit.append(AuditEvent(operator_cn="service", action="settings_weakened", detail=detail), at)
