"""What happens without a request: leases lapse, old rows go in small batches, events leave the outbox.

One process does it for all (docs/adr/0108). Its claims and deletes are atomic, so any number of them is correct.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from random import SystemRandom

import structlog

from attestation.errors import AttestationError
from attestation.machines import Event
from attestation.store import OutboxEvent, Tx
from attestation.store.migrate import HEAD
from attestation.store.schema import SchemaContracted
from attestation_service.border import operator_ca
from attestation_service.entitlements import leases, pending
from attestation_service.hsm import issuance
from attestation_service.resources import Resources
from attestation_service.storage.chores import MAINTENANCE
from attestation_service.verifier.endorsements import rejudge, rejudge_aks

log = structlog.get_logger("attestation_service.maintenance")
events_log = structlog.get_logger("attestation_service.events")

PURGE_BATCH = 500
OUTBOX_BATCH = 100
RUN_BATCH = 50
"""Evidence of each may be a megabyte."""
RUNS_KEPT = timedelta(hours=168)
"""For so long after its deadline an attestation run and its evidence can be asked for, and sealed."""
QUOTES_KEPT = timedelta(days=30)
"""For so long after its end a QuoteAttestation is kept, with its evidence and what became of its key."""
ACME_KEPT = timedelta(days=1)
"""For so long after its end an order of ACME can be looked at, and an account that has ended."""
REFUSALS_KEPT = timedelta(days=1)
"""For so long a refusal of a Kubernetes request is answered again."""


async def run(res: Resources) -> None:
    """Tidy up again and again until cancelled; an error is logged and waited out."""
    while True:
        # Jitter: workers that started together shall not all write at the same moment.
        pause = res.settings.maintenance_seconds * SystemRandom().uniform(0.5, 1.5)
        await res.chores.wait(MAINTENANCE, pause)
        try:
            await once(res, for_all=res.chores.holds(MAINTENANCE))
        except SchemaContracted as e:
            res.life.fail(str(e))
        except AttestationError as e:
            log.warning("maintenance.failed", code=e.code)
        except Exception as e:  # noqa: BLE001 -- the outermost border of this task: it must not end
            log.error("maintenance.failed", kind=type(e).__name__)  # noqa: TRY400 -- the message may quote a row


async def once(res: Resources, *, for_all: bool = True) -> None:
    """Do what is due now: where *for_all*, also what one process does for all.

    Raises:
        SchemaContracted: A newer version upgraded the database to what this one cannot use.
    """
    await res.store.read(lambda tx: tx.schema.demand(HEAD))
    if for_all:
        await _for_all(res)
    # Last, because they wait for keys: a token that is away shall hold up nothing else.
    if res.authority is not None:
        await res.authority.maintain(for_all=for_all)
    if res.revocation is not None:
        await res.revocation.maintain(for_all=for_all)
    if (path := operator_ca.file_of(res.settings)) is not None:
        await asyncio.to_thread(operator_ca.publish, path, await res.store.read(operator_ca.certificates))


async def _for_all(res: Resources) -> None:
    await leases.watch(res)
    while await _drain(res):
        pass
    await rejudge(res.store, res.anchors, res.clock)
    await rejudge_aks(res.store, res.anchors, res.settings, res.clock)
    await pending.purge(res)
    await res.collateral.refresh()
    while await _forget_requests(res):
        pass
    while await _forget_runs(res):
        pass
    while await issuance.give_up_stale(res):
        pass
    while await _forget_hsm(res):
        pass
    while await _forget_acme(res):
        pass
    while await _forget_console_codes(res):
        pass
    purged = PURGE_BATCH
    while purged >= PURGE_BATCH:
        purged = (await res.store.write(lambda tx: tx.purge(res.clock.now(), PURGE_BATCH))).total


async def _forget_requests(res: Resources) -> bool:
    """Delete some decisions about requests of Kubernetes nodes that are old enough; True if there may be more."""
    at = res.clock.now()
    approved = at - timedelta(days=res.settings.certificate_history_days)
    return (
        await res.store.write(lambda tx: tx.node_csrs.purge(at - REFUSALS_KEPT, approved, PURGE_BATCH))
        >= PURGE_BATCH
    )


async def _forget_runs(res: Resources) -> bool:
    """Delete some attestation runs that ended long ago, with their evidence; True if there may be more."""
    before = res.clock.now() - RUNS_KEPT
    return await res.store.write(lambda tx: tx.runs.purge(before, RUN_BATCH)) >= RUN_BATCH


async def _forget_hsm(res: Resources) -> bool:
    """Delete what CA keys in hardware issued that ended long ago, and evidence for them; True if there may be more."""
    at = res.clock.now()
    ended = at - timedelta(days=res.settings.certificate_history_days)

    def work(tx: Tx) -> int:
        quotes = tx.hsm_quotes.purge(at - QUOTES_KEPT, PURGE_BATCH)
        return max(quotes, tx.hsm.purge(ended, PURGE_BATCH))

    return await res.store.write(work) >= PURGE_BATCH


async def _forget_acme(res: Resources) -> bool:
    """Delete nonces, orders, keys and accounts of ACME that are over; True if there may be more."""
    at = res.clock.now()
    return await res.store.write(lambda tx: tx.acme.purge(at, at - ACME_KEPT, PURGE_BATCH)) >= PURGE_BATCH


async def _forget_console_codes(res: Resources) -> bool:
    """Delete codes of consoles that nobody asks about any more; True if there may be more."""
    at = res.clock.now()
    return await res.store.write(lambda tx: tx.console_codes.purge(at, PURGE_BATCH)) >= PURGE_BATCH


async def _drain(res: Resources) -> bool:
    """Hand out some events, to the log and to whoever subscribed; True if there may be more."""
    at = res.clock.now()
    claimed = await res.store.write(lambda tx: tx.outbox.claim(OUTBOX_BATCH, at))
    for event in claimed:
        tell(event)
    if claimed:
        await res.store.write(lambda tx: _hand_over(tx, claimed, res.subscribers, at))
    return bool(claimed)


def _hand_over(
    tx: Tx, claimed: Sequence[OutboxEvent], subscribers: Mapping[Event, Sequence[str]], at: datetime
) -> None:
    confirmed = tx.outbox.done([event.id for event in claimed], at)
    for event in claimed:
        # What another worker confirmed, because this one took too long, it has handed over too.
        for subscriber in subscribers.get(event.event, ()) if event.id in confirmed else ():
            tx.handovers.add(subscriber, event, at)


def tell(event: OutboxEvent) -> None:
    """The built-in consumer: the structured log."""
    events_log.info(
        event.event.value, event_id=event.id, machine_id=event.machine_id, payload=dict(event.payload)
    )
