"""Rate limits of the unauthenticated routes, shared by all workers through the store.

One key per client network (an address of IPv4, a /64 of IPv6; its /48 beside it), and one per machine (or EK) *and*
network: a client that floods in the name of somebody else's machine slows only itself down. Checked while reading,
counted while writing, so a refused request costs one read and no write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple

from attestation.audit import AuditEvent
from attestation.errors import (
    AKConflict,
    AlgorithmForbidden,
    AttestationError,
    ConfigTokenConsumed,
    ConfigTokenUnknown,
    MachineChanged,
    NotAuthentic,
    RateLimited,
    Unavailable,
)
from attestation.machines import Machine, Status
from attestation.store import PackedLog, RateLimit, Store, Tx, wait
from attestation_service.border.networks import network_of, site_of
from attestation_service.context.request import Origin
from attestation_service.resources import Resources
from attestation_service.settings import Settings

WRONG_CREDENTIAL: Final = RateLimit(requests=10, per_seconds=60)
DENIALS_OF_ADDRESS: Final = RateLimit(requests=10, per_seconds=600)
UNADMITTED: Final = RateLimit(requests=5, per_seconds=3600)
"""Audit entries that a machine which no operator admitted can cause beside its registration."""
UNADMITTED_LOGS: Final = RateLimit(requests=1, per_seconds=24 * 3600)
"""Measurement logs that are kept of a machine which no operator admitted."""
UNADMITTED_LOGS_OF_ALL: Final = RateLimit(requests=100, per_seconds=3600)
UNADMITTED_LOG_BYTES: Final = 256 << 10
SITE: Final = 4
"""So many times a network's rate may a site of IPv6 have."""
DENIALS_OF_ALL: Final = RateLimit(requests=100, per_seconds=600)


class Counted(NamedTuple):
    """One key and the rate it may have."""

    key: str
    limit: RateLimit
    what: str


Limits = Sequence[Counted]


def keys_of_client(address: str, subject: str | None) -> tuple[str, str]:
    """Return the keys of a client's network, and of its requests about *subject*."""
    network = network_of(address)
    return f"address:{network}", f"machine:{subject}:{network}"


def of_client(settings: Settings, address: str, subject: str | None = None) -> Limits:
    """Return the limits of a request from *address* about *subject*, a machine id or an EK fingerprint."""
    if not settings.rate_limits:
        return ()
    address_key, subject_key = keys_of_client(address, subject)
    per_second, burst = settings.rate_limit_address_per_second, settings.rate_limit_address_burst
    of_address = Counted(address_key, _rate(per_second, burst), "requests from this address")
    # Of one site of IPv6, all networks together: it has 65,536 of them.
    of_site = tuple(
        Counted(f"address:{site}", _rate(SITE * per_second, SITE * burst), "requests from this site")
        for site in (site_of(address),)
        if site is not None
    )
    if subject is None:
        return (of_address, *of_site)
    of_subject = Counted(
        subject_key,
        _rate(settings.rate_limit_machine_per_second, settings.rate_limit_machine_burst),
        "requests for this machine",
    )
    return (of_address, of_subject, *of_site)


def of_credentials(address: str) -> Limits:
    """Return the limit of wrong operator credentials from *address*; it cannot be switched off."""
    return (
        Counted(f"credential:{network_of(address)}", WRONG_CREDENTIAL, "wrong credentials from this address"),
    )


def check(tx: Tx, limits: Limits, at: datetime) -> None:
    """Refuse a request that comes too early.

    Raises:
        RateLimited: With the seconds to wait.
    """
    for counted in limits:
        seconds = tx.rate_limits.check(counted.key, at, counted.limit)
        if seconds is not None:
            raise RateLimited(f"too many {counted.what}", retry_after_seconds=seconds)


def take(tx: Tx, limits: Limits, at: datetime) -> None:
    """Count a request that was let through."""
    if len(limits) == 2:
        one, other = limits
        tx.rate_limits.take_both((one.key, one.limit), (other.key, other.limit), at)
        return
    for counted in limits:
        tx.rate_limits.take(counted.key, at, counted.limit)


async def count(res: Resources, origin: Origin) -> None:
    """Count a request of somebody whom nobody knows.

    Raises:
        RateLimited: They ask too often.
    """
    at = res.clock.now()
    counted = of_client(res.settings, origin.address)
    await res.store.read(lambda tx: check(tx, counted, at))
    await res.store.write(lambda tx: take(tx, counted, at))


FREE = (RateLimited, Unavailable, MachineChanged)
"""Not the sender's fault, or counted already."""


def check_loaded(limits: Limits, tats_us: Sequence[int | None], at: datetime) -> None:
    """As `check`, on instants of the first of *limits*, which were loaded with something else.

    Raises:
        RateLimited: With the seconds to wait.
    """
    for counted, tat_us in zip(limits, tats_us, strict=False):
        seconds = wait(tat_us, at, counted.limit)
        if seconds is not None:
            raise RateLimited(f"too many {counted.what}", retry_after_seconds=seconds)


RECORDED = (NotAuthentic, AKConflict, AlgorithmForbidden, ConfigTokenUnknown, ConfigTokenConsumed)
"""Refusals that may be somebody's try to pass for another: they are entries of the audit log, within bounds."""


class CountRefusals:
    """Counts what a handler refuses while reading; what it writes it counts itself.

    Without this, requests that fail early would cost us work and the sender nothing.

    Args:
        store: Where it is counted.
        limits: What is counted.
        at: When.
        denied: Makes the audit event of a refusal that is one of `RECORDED`; None where the handler writes it.
    """

    __slots__ = ("_at", "_denied", "_limits", "_store")

    def __init__(
        self,
        store: Store,
        limits: Limits,
        at: datetime,
        denied: Callable[[AttestationError], AuditEvent] | None = None,
    ) -> None:
        self._store, self._limits, self._at, self._denied = store, limits, at, denied

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not isinstance(error, AttestationError) or isinstance(error, FREE):
            return
        event = self._denied(error) if self._denied and isinstance(error, RECORDED) else None

        def work(tx: Tx) -> None:
            take(tx, self._limits, self._at)
            if event is not None:
                audit_denied(tx, event, self._at)

        await self._store.write(work)


def denial(what: str, error: AttestationError, origin: Origin) -> AuditEvent:
    """Return the audit event of a refusal of somebody whom nobody knows."""
    return AuditEvent(
        operator_cn="unknown",
        action="denied",
        detail=f"{what}: {error.code}",
        source_ip=origin.address,
    )


async def counted_refusal(error: Exception, res: Resources, origin: Origin) -> Exception:
    """Count a request that the schema refused, and return what to answer: *error*, or that it was too often."""
    at = res.clock.now()
    counted = of_client(res.settings, origin.address)
    try:
        await res.store.read(lambda tx: check(tx, counted, at))
        await res.store.write(lambda tx: take(tx, counted, at))
    except (RateLimited, Unavailable) as instead:
        return instead
    return error


def may_audit_denial(tx: Tx, event: AuditEvent, at: datetime) -> bool:
    """Return False where so many denials were recorded lately that a stranger could fill the log with them."""
    return all(tx.rate_limits.check(counted.key, at, counted.limit) is None for counted in _of_denials(event))


def audit_denied(tx: Tx, event: AuditEvent, at: datetime) -> None:
    """Record a denial, unless there were too many lately.

    What is left out here still stands in the structured log (docs/adr/0005).
    """
    if may_audit_denial(tx, event, at):
        take(tx, _of_denials(event), at)
        tx.audit.append(event, at)


def _of_denials(event: AuditEvent) -> Limits:
    return (
        Counted(f"denied:{network_of(event.source_ip or '')}", DENIALS_OF_ADDRESS, "denials"),
        Counted("denied", DENIALS_OF_ALL, "denials"),
    )


def may_record(tx: Tx, machine: Machine, at: datetime) -> bool:
    """Return False where a machine that nobody admitted has caused enough audit entries lately.

    Anybody can make an EK in software and be pending; whoever is, can quote other PCRs every second. What is
    left out here still stands in the machine's bounded history.
    """
    if machine.status not in (Status.PENDING_APPROVAL, Status.REJECTED):
        return True
    limits = (Counted(f"unadmitted:{machine.machine_id}", UNADMITTED, "records"),)
    if any(tx.rate_limits.check(counted.key, at, counted.limit) is not None for counted in limits):
        return False
    take(tx, limits, at)
    return True


def may_keep_logs(tx: Tx, machine: Machine, logs: Sequence[PackedLog], at: datetime) -> bool:
    """Return False where logs of a machine that nobody admitted would fill the disk.

    Anybody can make an EK in software, be pending and measure what they like. Those whom an operator admitted
    are bounded by the ring of their results.
    """
    counted = _of_logs(machine)
    if counted and sum(len(log.content) for log in logs) > UNADMITTED_LOG_BYTES:
        return False
    return all(tx.rate_limits.check(each.key, at, each.limit) is None for each in counted)


def count_logs(tx: Tx, machine: Machine, at: datetime) -> None:
    """Count that logs of *machine* are kept."""
    take(tx, _of_logs(machine), at)


def _of_logs(machine: Machine) -> Limits:
    if machine.status not in (Status.PENDING_APPROVAL, Status.REJECTED):
        return ()
    return (
        Counted(f"unadmitted-log:{machine.machine_id}", UNADMITTED_LOGS, "logs"),
        Counted("unadmitted-log", UNADMITTED_LOGS_OF_ALL, "logs"),
    )


@lru_cache(maxsize=16)
def _rate(per_second: float, burst: int) -> RateLimit:
    return RateLimit(requests=burst, per_seconds=burst / per_second)
