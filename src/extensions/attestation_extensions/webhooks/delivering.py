"""From the outbox to the endpoints: each event once for each endpoint that wants it, then tried until it is there.

Any worker of any replica claims what is due; a claim that is not told becomes due again. So a delivery may come twice,
with the same id.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from datetime import datetime, timedelta
from random import SystemRandom
from typing import Final

import structlog

from attestation.errors import AttestationError, KeyUnusable
from attestation.extension import Confirm, Context, OutboxEvent, Tx, rfc3339
from attestation.keys import KEK
from attestation_extensions.webhooks import messages, signing
from attestation_extensions.webhooks.addresses import WebhookURLInvalid, read_url
from attestation_extensions.webhooks.records import Delivery, State, Webhook, Webhooks
from attestation_extensions.webhooks.sending import ATTEMPT_SECONDS, Outcome, Sender

log = structlog.get_logger("attestation_extensions.webhooks")

AT_ONCE: Final = 10
HOLD: Final = timedelta(seconds=ATTEMPT_SECONDS * 2)
RETRY_SECONDS: Final = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
"""Between one attempt and the next (Standard Webhooks); after the last the delivery is dead, its endpoint disabled."""
SPARED: Final = timedelta(seconds=10)
"""So long nothing more is sent to an endpoint that did not answer: deliveries to others go on meanwhile."""
SLOW: Final = timedelta(seconds=2)
"""An endpoint that took longer is spared for as long as it took: it has half of a worker's time, and never all."""
GONE: Final = 410
_NAMESPACE: Final = uuid.UUID("6a1f0f6e-5d0b-4c57-9a70-6a8a7d8b7f10")


def delivery_id(event_id: str, webhook_id: str, name: str) -> str:
    """Return the id of a delivery: the same however often the event comes."""
    return f"msg_{uuid.uuid5(_NAMESPACE, f'{event_id} {webhook_id} {name}').hex}"


async def fan_out(event: OutboxEvent) -> Confirm | None:
    """Return what queues *event* for each endpoint that wants it, in the unit that confirms it."""
    names = messages.names_of(event)

    def confirm(tx: Tx) -> None:
        webhooks = tx.of(Webhooks)
        for webhook in webhooks.all():
            for name in names:
                if webhook.wants(name):
                    webhooks.queue(
                        delivery_id=delivery_id(event.id, webhook.webhook_id, name),
                        webhook_id=webhook.webhook_id,
                        event=name,
                        payload=messages.body_of(
                            name,
                            timestamp=rfc3339(event.created_at),
                            machine_id=event.machine_id,
                            data=messages.data_of(event),
                        ),
                        at=event.created_at,
                    )

    return confirm


def aad_of(webhook_id: str) -> bytes:
    """Return what a wrapped secret is bound to."""
    return b"itl-webhook/1 " + webhook_id.encode("ascii")


class Deliverer:
    """Sends what is due.

    Args:
        context: Of the extension.
        sender: Makes one attempt.
        keks: Name -> key-encryption key.
        allow_http: URLs may be of http.
    """

    def __init__(
        self, context: Context, sender: Sender, keks: Mapping[str, KEK], *, allow_http: bool
    ) -> None:
        self._context, self._sender, self._keks, self._allow_http = context, sender, keks, allow_http

    async def run(self, pause_seconds: float) -> None:
        """Send what is due again and again until cancelled."""
        failing = None
        while True:
            await asyncio.sleep(pause_seconds * SystemRandom().uniform(0.5, 1.5))
            try:
                while await self.once():
                    pass
            except Exception as e:  # noqa: BLE001 -- the outermost border of this task: it must not end
                # Said once, not every second for as long as it lasts.
                if failing != type(e).__name__:
                    failing = type(e).__name__
                    log.error("webhooks.not_sent", kind=failing)  # noqa: TRY400 -- may quote a row
            else:
                if failing is not None:
                    log.info("webhooks.sent_again")
                failing = None

    async def once(self) -> bool:
        """Send some of what is due; True if there may be more."""
        store, at = self._context.store, self._context.clock.now()
        if not await store.scan(lambda tx: tx.of(Webhooks).is_due(at)):
            return False
        claimed = await store.write(lambda tx: tx.of(Webhooks).claim(at, rows=AT_ONCE, hold=HOLD))
        await asyncio.gather(*(self._deliver(each) for each in claimed))
        return bool(claimed)

    async def _deliver(self, delivery: Delivery) -> None:
        store = self._context.store
        webhook = await store.read(lambda tx: tx.of(Webhooks).get(delivery.webhook_id))
        # A test is sent to a disabled endpoint too: it is how an operator finds out what is wrong.
        if webhook is None or not (webhook.enabled or delivery.event_type == messages.TEST):
            await self._told(delivery, _not_sent("disabled"), dead=True)
            return
        outcome = await self._attempt(webhook, delivery)
        await self._told(delivery, outcome, dead=outcome.status == GONE)

    async def _attempt(self, webhook: Webhook, delivery: Delivery) -> Outcome:
        at = self._context.clock.now()
        try:
            target = read_url(webhook.url, allow_http=self._allow_http)
            keys = await asyncio.to_thread(self._secrets, webhook, at)
        except WebhookURLInvalid as e:
            return _not_sent(str(e))
        except AttestationError as e:
            return _not_sent(f"the secret cannot be opened: {type(e).__name__}")
        fields = signing.headers(
            delivery.payload,
            delivery_id=delivery.delivery_id,
            event=delivery.event_type,
            at=at,
            keys=keys,
        )
        return await self._sender.send(target, fields, delivery.payload)

    def _secrets(self, webhook: Webhook, at: datetime) -> list[bytes]:
        """Return the secrets that sign now: the newest, and the one before it while receivers change over."""
        aad, newest = aad_of(webhook.webhook_id), self._keks.get(webhook.kek_id)
        if newest is None:  # another replica has a newer one
            raise KeyUnusable("it lies under a key-encryption key that is not set")
        found = [newest.unwrap(webhook.secret, aad)]
        before = webhook.previous_secret
        kek = self._keks.get(webhook.previous_kek_id or "")
        if before and kek and webhook.previous_until is not None and at < webhook.previous_until:
            found.append(kek.unwrap(before, aad))
        return found

    async def _told(self, delivery: Delivery, outcome: Outcome, *, dead: bool) -> None:
        at = self._context.clock.now()
        again_at = None if outcome.ok or dead else _again_at(delivery, outcome, at)
        status: State = "delivered" if outcome.ok else "waiting" if again_at is not None else "dead"

        def work(tx: Tx) -> None:
            webhooks = tx.of(Webhooks)
            if not webhooks.told(
                delivery,
                status=status,
                again_at=again_at,
                response_status=outcome.status,
                response_body=outcome.answer or None,
                error=outcome.error,
                delivered_at=at if outcome.ok else None,
                duration_ms=outcome.milliseconds,
            ):
                return
            webhooks.triggered(delivery.webhook_id, at, failed=not outcome.ok)
            took = timedelta(milliseconds=outcome.milliseconds)
            silent = outcome.status is None and again_at is not None
            if silent or took > SLOW:
                webhooks.put_off(delivery.webhook_id, at, until=at + (SPARED if silent else took))
            if status == "dead" and delivery.event_type != messages.TEST:
                why = "it answered 410 Gone" if outcome.status == GONE else "its deliveries failed for days"
                if webhooks.disable(delivery.webhook_id, why):
                    self._context.emit(
                        tx, messages.DISABLED, at, meta={"webhook_id": delivery.webhook_id, "why": why}
                    )

        await self._context.store.write(work)
        self._context.observe(
            "webhook_deliveries",
            {
                "event_type": messages.source_of(delivery.event_type),
                "status": "failed" if status == "waiting" else status,
            },
        )


def _not_sent(why: str) -> Outcome:
    return Outcome(status=None, error=why, answer=b"", retry_after=None, milliseconds=0)


def _again_at(delivery: Delivery, outcome: Outcome, at: datetime) -> datetime | None:
    """Return when the next attempt is; None after the last."""
    if delivery.event_type == messages.TEST or delivery.attempts > len(RETRY_SECONDS):
        return None
    # Jitter: what failed together shall not come back together.
    seconds = RETRY_SECONDS[delivery.attempts - 1] * SystemRandom().uniform(1.0, 1.2)
    return at + timedelta(seconds=max(seconds, outcome.retry_after or 0))
