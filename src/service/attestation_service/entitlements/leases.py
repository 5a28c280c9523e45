"""Trust that expires: who is overdue, and when machines are to come again (docs/operate/freshness.md).

A lease ends by itself: whatever is released asks for trust at that instant. What happens here is that somebody
notices, once per lapse and whichever worker comes first.
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from typing import Final

import structlog

from attestation.audit import AuditEvent
from attestation.clock import rfc3339
from attestation.machines import Machine, NodeEvent, Status
from attestation.reference import Policy
from attestation.store import Tx
from attestation_service.context.request import Origin
from attestation_service.entitlements.events import emit
from attestation_service.resources import Resources
from attestation_service.settings import Settings

log = structlog.get_logger("attestation_service.leases")

BATCH: Final = 100
ONE_TRIP_MARGIN_SECONDS: Final = 6
"""An agent fetches a fresh challenge where the one it holds ends within five seconds."""


async def watch(res: Resources) -> None:
    """Notice the leases that lapsed, in small batches; any number of workers may do it."""
    while await _watch(res):
        pass


async def _watch(res: Resources) -> bool:
    """Note one batch; True if there may be more."""
    at = res.clock.now()
    before = at - timedelta(seconds=res.settings.heartbeat_grace_seconds)
    # A read first: in steady state nobody is overdue, and a write would wait for the writer.
    if not await res.store.read(lambda tx: tx.machines.lapsed(before, 1)):
        return False
    missed = await res.store.write(lambda tx: note(tx, before, at))
    log.info("leases.lapsed", machines=missed)
    return True


def note(tx: Tx, before: datetime, at: datetime) -> int:
    """Note what lapsed at *before* or earlier, at most a batch; return how many machines it was.

    Trust is gone already, by the clock. Now the tokens go too, and operators and their programs learn of it.
    """
    missed = 0
    for machine in tx.machines.lapsed(before, BATCH):
        if not tx.machines.miss(machine.machine_id, before, at):
            continue
        missed += 1
        tx.config_tokens.withdraw(machine.machine_id, at)
        assert machine.trust_expires_at is not None
        ended = rfc3339(machine.trust_expires_at)
        tx.audit.append(
            AuditEvent(
                operator_cn="service",
                action="heartbeat_missed",
                machine_id=machine.machine_id,
                prev_state=machine.status,
                new_state=machine.status,
                detail=f"trust ended {ended}",
            ),
            at,
        )
        seen = None if machine.last_result_at is None else rfc3339(machine.last_result_at)
        emit(
            tx,
            NodeEvent.HEARTBEAT_MISSED,
            machine,
            at,
            node={"last_seen_at": seen},
            meta={"trust_expired_at": ended, "missed_count": 1},
        )
    return missed


def resumed(tx: Tx, machine: Machine, origin: Origin, at: datetime) -> None:
    """Tell that *machine*, which had been missed, attested again with a Verified result.

    Not of one that an operator locked or revoked meanwhile: it is no more online than before.
    """
    assert machine.heartbeat_missed_at is not None
    if machine.status is not Status.ATTESTED:
        return
    missed = rfc3339(machine.heartbeat_missed_at)
    tx.audit.append(
        AuditEvent(
            operator_cn="machine",
            action="heartbeat_resumed",
            machine_id=machine.machine_id,
            prev_state=machine.status,
            new_state=machine.status,
            detail=f"missed since {missed}",
            source_ip=origin.address,
        ),
        at,
    )
    first = None if machine.attested_at is None else rfc3339(machine.attested_at)
    emit(tx, NodeEvent.ONLINE, machine, at, node={"attested_at": first}, meta={"missed_since": missed})


def interval_seconds(machine: Machine, policy: Policy, settings: Settings) -> int:
    """Return after how long *machine* is to attest again: what its policy says, else the setting, spread by machine.

    The spread is the same at every answer, so a fleet that started at once does not stay in step, and each machine
    keeps its rhythm. It never exceeds nine tenths of the lease, and never costs a second round trip where the
    interval itself would not.
    """
    wanted = policy.reattest_seconds or settings.reattest_seconds
    share = int.from_bytes(hashlib.sha256(machine.machine_id.encode("ascii")).digest()[:4]) / (1 << 32)
    spread = wanted * (1 + settings.reattest_spread_percent / 100 * (2 * share - 1))
    one_trip = settings.challenge_ttl_seconds - ONE_TRIP_MARGIN_SECONDS
    most = min(policy.max_age_seconds * 9 // 10, max(wanted, one_trip) if wanted <= one_trip else 1 << 31)
    return max(1, min(round(spread), most))
