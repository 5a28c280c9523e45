"""What machines that nobody admitted may take of us: bytes while they introduce themselves, rows while they wait.

Anybody can introduce a machine, and anybody who makes an EK in software can have it wait for approval. What an
introduction keeps is small (`registration.introduction`), counted in bytes until it is purged, given back when it is
answered, and bounded per network and in all. Those who are vouched for have a budget that strangers cannot use up with
a certificate that they copied, because one EK has only a small part of it. The machine whose certificate it is shares
that part with them: while they keep it and anybody's budget full, it is refused like anybody, until they stop.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import structlog

from attestation.audit import AuditEvent
from attestation.errors import PendingQuotaExceeded, RateLimited
from attestation.machines import Machine
from attestation.store import CHALLENGE_KEPT, Pending, RateLimit, Tx
from attestation_service.border.limits import SITE
from attestation_service.border.networks import network_of, site_of
from attestation_service.operators import votes
from attestation_service.resources import Resources
from attestation_service.settings import Settings

log = structlog.get_logger("attestation_service.pending")

BATCH: Final = 100
RETRY_SECONDS: Final = 300
DAY_SECONDS: Final = 24 * 3600
KIB_PER_MIB: Final = 1024
OF_ONE_EK_KIB: Final = 64
"""So much of what those have who are vouched for, one EK may take: some introductions that are not answered yet."""


def has_room(tx: Tx, settings: Settings, ek_fingerprint: str, at: datetime) -> bool:
    """Return False where the part of this EK is used up; its introductions then count as anybody's.

    They are not refused for that: whoever shows somebody else's certificate must use up anybody's room, too, to keep
    that machine out.
    """
    return all(
        tx.rate_limits.check(key, at, limit) is None for key, limit in _of_ek(settings, ek_fingerprint)
    )


def check_room(tx: Tx, settings: Settings, address: str, *, ek: str | None, at: datetime) -> None:
    """Refuse an introduction where those that were not answered yet hold too many bytes.

    Args:
        tx: The unit.
        settings: Say how many.
        address: Where it came from.
        ek: Fingerprint of its EK where that is vouched for and has room; None: it counts as anybody's.
        at: Now.

    Raises:
        RateLimited: With the seconds to wait.
    """
    for key, limit in _budgets(settings, address, ek):
        seconds = tx.rate_limits.check(key, at, limit)
        if seconds is not None:
            raise RateLimited("too many introductions are not answered yet", retry_after_seconds=seconds)


def take_room(
    tx: Tx, settings: Settings, address: str, size_bytes: int, *, ek: str | None, at: datetime
) -> None:
    """Count what an introduction keeps."""
    for key, limit in _budgets(settings, address, ek):
        tx.rate_limits.take(key, at, limit, units=_kib(size_bytes))


def give_room(tx: Tx, settings: Settings, address: str, size_bytes: int, *, ek: str | None) -> None:
    """Give back what an introduction kept: it was answered, and is erased."""
    for key, limit in _budgets(settings, address, ek):
        tx.rate_limits.give_back(key, limit, units=_kib(size_bytes))


def _budgets(settings: Settings, address: str, ek: str | None) -> tuple[tuple[str, RateLimit], ...]:
    """Return the budgets, in KiB for as long as an introduction is kept at most."""
    if not settings.rate_limits:
        return ()
    who = "anybody" if ek is None else "vouched"
    of_all = tuple(
        (key, _kept(settings, mib * KIB_PER_MIB))
        for key, mib in (
            (f"introduced:{who}:{network_of(address)}", settings.introduced_mib_per_network),
            (f"introduced:{who}", settings.introduced_mib),
        )
    )
    return of_all if ek is None else (*of_all, *_of_ek(settings, ek))


def _of_ek(settings: Settings, ek_fingerprint: str) -> tuple[tuple[str, RateLimit], ...]:
    if not settings.rate_limits:
        return ()
    return ((f"introduced:ek:{ek_fingerprint}", _kept(settings, OF_ONE_EK_KIB)),)


def _kept(settings: Settings, kib: int) -> RateLimit:
    kept_seconds = settings.challenge_ttl_seconds + CHALLENGE_KEPT.total_seconds()
    return RateLimit(requests=kib, per_seconds=kept_seconds)


def _kib(size_bytes: int) -> int:
    return -(-size_bytes // 1024)


def check_quota(
    tx: Tx, settings: Settings, address: str, *, vouched: bool, at: datetime, take: bool = False
) -> None:
    """Refuse another machine that would wait for approval where too many do, or keep too much.

    Those that a vendor vouches for have a quota of their own in all: EKs made in software cannot use it up. A network
    of IPv6 has addresses without end, so its rows are also counted as they come, for a day; *take* counts this one.

    Raises:
        PendingQuotaExceeded: Of this address, network, site or of all, in rows or in bytes.
    """
    refused = PendingQuotaExceeded("too many machines await approval", retry_after_seconds=RETRY_SECONDS)
    per_address = (settings.pending_limit_per_address, settings.pending_mib_per_address)
    in_all = (settings.pending_limit, settings.pending_mib)
    if _is_full(tx.machines.pending(address), *per_address):
        raise refused
    # Told apart only where it matters: all that wait are counted in an index, their kinds are not.
    if _is_full(tx.machines.pending(), *in_all) and _is_full(tx.machines.pending(vouched=vouched), *in_all):
        raise refused
    for key, limit in _of_networks(settings, address):
        if not vouched and tx.rate_limits.check(key, at, limit) is not None:
            raise refused
        if not vouched and take:
            tx.rate_limits.take(key, at, limit)


def _is_full(pending: Pending, rows: int, mib: int) -> bool:
    return pending.rows >= rows or pending.kept_bytes >= mib << 20


def _of_networks(settings: Settings, address: str) -> tuple[tuple[str, RateLimit], ...]:
    site = site_of(address)
    if site is None:
        return ()
    rows = settings.pending_limit_per_address
    return (
        (f"pending:{network_of(address)}", RateLimit(requests=rows, per_seconds=DAY_SECONDS)),
        (f"pending:{site}", RateLimit(requests=SITE * rows, per_seconds=DAY_SECONDS)),
    )


async def purge(res: Resources) -> None:
    """Delete machines that nobody decided about in time, in small batches; any number of workers may do it.

    Their attestation keys stay bound, so who comes back waits again, and is seen to have been here.
    """
    at = res.clock.now()
    before = at - timedelta(days=res.settings.pending_days)
    while await res.store.read(lambda tx: _due(tx, before)):
        gone = await res.store.write(lambda tx: _purge(tx, before, at))
        log.info("pending.purged", machines=gone)


def _due(tx: Tx, before: datetime) -> list[Machine]:
    # Rows are numbered as they came, so the oldest are found without reading all that wait.
    return [each for each in tx.machines.oldest_pending(BATCH) if each.registered_at < before]


def _purge(tx: Tx, before: datetime, at: datetime) -> int:
    due = _due(tx, before)
    for machine in due:
        drop(tx, machine, at, action="pending_purged", why="no operator decided about it")
    return len(due)


def drop(tx: Tx, machine: Machine, at: datetime, *, action: str, why: str) -> None:
    """Delete a machine that nobody decided about; votes about it end, and nothing is remembered of its chip."""
    ended = tx.approvals.void(machine.machine_id, at)
    tx.chip_marks.forget(machine.machine_id)
    tx.machines.delete(machine.machine_id)
    tx.audit.append(
        AuditEvent(
            operator_cn="service",
            action=action,
            machine_id=machine.machine_id,
            prev_state=machine.status,
            detail=f"{why}; EK {machine.fingerprint}",
        ),
        at,
    )
    votes.told(tx, ended, at)
