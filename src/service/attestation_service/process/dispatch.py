"""Events to the extensions that subscribed: after the commit, at least once, by any worker (docs/adr/0085).

One task per subscriber and worker, so none waits for another, and no attestation for any.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from random import SystemRandom
from typing import Final

import structlog

from attestation.errors import AttestationError
from attestation.extension import Handler
from attestation.machines import Event
from attestation.store import OutboxEvent, Tx
from attestation_service.resources import Resources

log = structlog.get_logger("attestation_service.dispatch")

HANDLER_SECONDS: Final = 10.5
"""The ten that a handler is promised, and a moment for one that gives ten to others (`hooks`)."""
AT_ONCE: Final = 20
"""So many events of different machines one worker has handled at the same time, for each subscriber."""
HOLD: Final = timedelta(seconds=60)
"""For so long a claimed event is nobody else's; longer than its handler may take."""
RETRY_SECONDS: Final = (5, 30, 300, 1_800, 7_200)
"""Between one attempt and the next; after the last one the event is a dead letter."""


class _Overtaken(Exception):
    """Somebody else has the event: it took longer than `HOLD`."""


async def run(subscriber: str, handlers: Mapping[Event, Handler], res: Resources) -> None:
    """Hand over what is due again and again until cancelled; an error is logged and waited out."""
    under_way: set[asyncio.Task[None]] = set()
    try:
        while True:
            begun: set[asyncio.Task[None]] = set()
            with _told(subscriber):
                begun = await _begin(subscriber, handlers, AT_ONCE - len(under_way), res)
            under_way |= begun
            if not begun:
                # One that takes long keeps nobody else back: as soon as one is done, there may be another.
                pause = res.settings.maintenance_seconds * SystemRandom().uniform(0.5, 1.5)
                if under_way:
                    await asyncio.wait(under_way, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await asyncio.sleep(pause)
            under_way = {each for each in under_way if not each.done()}
    finally:
        for each in under_way:
            each.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


async def once(subscriber: str, handlers: Mapping[Event, Handler], res: Resources) -> bool:
    """Hand over some of what is due, and wait for all of it; True if there may be more."""
    begun = await _begin(subscriber, handlers, AT_ONCE, res)
    await asyncio.gather(*begun)
    return bool(begun)


async def _begin(
    subscriber: str, handlers: Mapping[Event, Handler], most: int, res: Resources
) -> set[asyncio.Task[None]]:
    """Claim up to *most* events that are due, of as many machines, and begin to hand them over."""
    at = res.clock.now()
    # No `read`: it takes long where many wait, and attestations read there.
    if most == 0 or not await res.store.scan(lambda tx: tx.handovers.is_due(subscriber, at)):
        return set()
    claimed = await res.store.write(lambda tx: tx.handovers.claim(subscriber, most, at, hold=HOLD))
    return {
        asyncio.create_task(_handed_over(subscriber, handlers.get(each.event), each, res)) for each in claimed
    }


async def _handed_over(subscriber: str, handler: Handler | None, event: OutboxEvent, res: Resources) -> None:
    with _told(subscriber):
        await _hand_over(subscriber, handler, event, res)


@contextmanager
def _told(subscriber: str) -> Iterator[None]:
    """Log what fails: the outermost border of these tasks, which must not end."""
    try:
        yield
    except AttestationError as e:
        log.warning("dispatch.failed", subscriber=subscriber, code=e.code)
    except Exception as e:  # noqa: BLE001 -- as said
        log.error("dispatch.failed", subscriber=subscriber, kind=type(e).__name__)  # noqa: TRY400 -- may quote a row


async def _hand_over(subscriber: str, handler: Handler | None, event: OutboxEvent, res: Resources) -> None:
    confirm = None
    try:
        if handler is not None:  # else it asked for the event once, and does not any more
            async with asyncio.timeout(HANDLER_SECONDS):
                confirm = await handler(event)
        await res.store.write(lambda tx: _confirm(tx, subscriber, event, confirm))
    except BaseException as e:
        # A stranger's code; none of it may end the task or the worker, nor a CancelledError where nobody cancelled us.
        if isinstance(e, GeneratorExit) or (task := asyncio.current_task()) is None or task.cancelling():
            raise
        await _give_back(subscriber, event, type(e).__name__, res)


def _confirm(tx: Tx, subscriber: str, event: OutboxEvent, confirm: Callable[[Tx], object] | None) -> None:
    if not tx.handovers.done(subscriber, event):
        raise _Overtaken
    if confirm is not None and inspect.isawaitable(told := confirm(tx)):
        if inspect.iscoroutine(told):
            told.close()
        raise TypeError("a confirmation is a plain function: nothing awaits it")


async def _give_back(subscriber: str, event: OutboxEvent, kind: str, res: Resources) -> None:
    again_at = _again_at(event.attempts, res.clock.now())
    if not await res.store.write(lambda tx: tx.handovers.failed(subscriber, event, again_at, kind)):
        return  # another has it, and tells what becomes of it
    # Not in words: they may be secret.
    told = {"subscriber": subscriber, "event_id": event.id, "attempt": event.attempts, "kind": kind}
    if again_at is None:
        log.error("dispatch.dead_letter", **told)
    else:
        log.warning("dispatch.not_handled", **told)


def _again_at(attempts: int, at: datetime) -> datetime | None:
    """Return when the next attempt is, after *attempts* that failed; None where there is none."""
    if attempts > len(RETRY_SECONDS):
        return None
    # Jitter: what failed together shall not come back together.
    return at + timedelta(seconds=RETRY_SECONDS[attempts - 1] * SystemRandom().uniform(1.0, 1.2))
