"""Whether this process can decide: database, CA directory, clock, the service's key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import structlog

from attestation.api import Readiness
from attestation.clock import SystemClock, parse_rfc3339
from attestation.store import Store
from attestation.store.migrate import HEAD
from attestation_service import __version__
from attestation_service.database_url import is_elsewhere
from attestation_service.resources import Resources

log = structlog.get_logger("attestation_service.health")

TIMEOUT_SECONDS = 2.0
EARLIEST = datetime(2026, 1, 1, tzinfo=UTC)
"""No clock of a computer that runs this may show less."""
MAX_BACKWARD = timedelta(minutes=1)
"""So far the clock may stand behind the newest audit entry: workers differ a little."""

MAX_OFFSET = timedelta(seconds=10)
"""So far the clock of the host may differ from that of the database."""

OK = "ok"


async def ready(res: Resources) -> Readiness:
    """Ask every part; none may take longer than two seconds. A process that is about to end asks nobody."""
    if res.life.stopping:
        return Readiness(status="unavailable", version=__version__, checks={"process": "stopping"})
    parts: dict[str, Callable[[Resources], Awaitable[str]]] = {
        "database": _database,
        "ca_directory": _ca_directory,
        "clock": _clock,
        "service_key": _service_key,
    }
    found = {name: await _ask(name, part, res) for name, part in parts.items()}
    if not all(answer == OK or answer.startswith("degraded: ") for answer in found.values()):
        return Readiness(status="unavailable", version=__version__, checks=found)
    # Not a reason to stop attesting: who rewrote the log would only have to wait for it.
    refused = res.transparency.refused is not None
    found["audit"] = (
        "degraded: the log does not continue what was signed; nothing is signed" if refused else OK
    )
    # Likewise: machines attest without certificates, and one token that is away must not take every worker with it.
    if res.authority is not None and (problem := res.authority.health) != OK:
        found["ca"] = f"degraded: {problem}"
    elif res.authority is not None:
        found["ca"] = OK
    # Nor this: the time that counts is the database's. But TLS and logs of this host go by its own.
    if abs(seconds := host_behind(res.store).total_seconds()) > MAX_OFFSET.total_seconds():
        found["host_clock"] = f"degraded: this host's clock differs from the database's by {seconds:.0f} s"
    degraded = any(answer != OK for answer in found.values())
    return Readiness(status="degraded" if degraded else "ok", version=__version__, checks=found)


def host_behind(store: Store) -> timedelta:
    """Return how far the clock of this host stands behind the one that counts."""
    return store.clock.now() - SystemClock().now()


async def _ask(name: str, part: Callable[[Resources], Awaitable[str]], res: Resources) -> str:
    try:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await part(res)
    except Exception as e:  # noqa: BLE001 -- whatever fails here is the answer
        log.warning("ready.failed", part=name, kind=type(e).__name__)
        return f"failed: {type(e).__name__}"


async def _database(res: Resources) -> str:
    await res.store.read(lambda tx: tx.schema.demand(HEAD))
    await res.write_probe.demand()
    return OK


async def _ca_directory(res: Resources) -> str:
    directory = res.settings.enrollment_ca_dir
    if not await asyncio.to_thread(directory.is_dir):
        return "failed: no such directory"
    return OK


async def _clock(res: Resources) -> str:
    now = res.clock.now()
    if now < EARLIEST:
        return f"failed: the clock shows {now.year}"
    page = await res.store.read(lambda tx: tx.audit.page(None, 1))
    newest = page.items[0][1].timestamp if page.items else None
    if newest is None or parse_rfc3339(newest) <= now + MAX_BACKWARD:
        return OK
    # One of the two was wrong: this clock is now, or it was when the entry was written. Entries bear such a time until
    # it has come, and nobody can take it back; so where a second clock agrees with this one, the service goes on.
    if is_elsewhere(res.settings.db_url) and abs(host_behind(res.store)) <= MAX_OFFSET:
        return (
            f"degraded: a clock was ahead: the newest audit entry is of {newest}, and entries are until then"
        )
    return "failed: the clock stands behind the newest audit entry"


async def _service_key(res: Resources) -> str:
    """Without it no machine could be told anything that it believes."""
    away = res.service_keys.away
    return OK if away is None else f"failed: {away.code}; it is looked for until it is there"
