"""What operators do with webhooks (ITL-REFERENCE §10)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated, Final, Protocol

from pydantic import Field

from attestation.errors import RequestInvalid, Unknown
from attestation.extension import Caller, Context, Router, Tx, rfc3339
from attestation.keys import KEK
from attestation_extensions.webhooks import messages, signing, wire
from attestation_extensions.webhooks.addresses import WebhookURLInvalid, read_url
from attestation_extensions.webhooks.delivering import aad_of, delivery_id
from attestation_extensions.webhooks.records import Delivery, State, Webhook, Webhooks

OVERLAP: Final = timedelta(hours=24)
"""So long the secret before signs beside the newest."""


class WebhookUnknown(Unknown):
    """No such webhook, or no such delivery of it."""

    code = "webhook-unknown"


class Opened(Protocol):
    """The extension, once it began."""

    context: Context
    kek: KEK
    allow_http: bool


class Desk:
    """The handlers."""

    def __init__(self, extension: Opened) -> None:
        self._extension = extension

    async def create(self, request: wire.CreateWebhook, who: Caller) -> wire.WebhookSecret:
        """Add an endpoint; its secret is the receiver's, or made here, and shown this once."""
        self._demand_url(request.url)
        events = _named(request.events)
        webhook_id, at, secret = str(uuid.uuid4()), self._now(), signing.new_secret()
        if request.secret is not None:
            secret = signing.read_secret(request.secret.get_secret_value())
        kek = self._extension.kek
        webhook = Webhook(
            webhook_id=webhook_id,
            url=request.url,
            events=events,
            enabled=True,
            disabled_why=None,
            kek_id=kek.key_id,
            secret=await asyncio.to_thread(kek.wrap, secret, aad_of(webhook_id)),
            previous_kek_id=None,
            previous_secret=None,
            previous_until=None,
            created_at=at,
            created_by=who.cn,
            last_triggered_at=None,
            trigger_count=0,
            failure_count=0,
        )

        def work(tx: Tx) -> None:
            tx.of(Webhooks).add(webhook)
            tx.audit.append(who.event("webhook_created", detail=_detail(webhook)), at)

        await self._extension.context.store.write(work)
        return wire.WebhookSecret(webhook=_response(webhook), secret=signing.secret_text(secret))

    async def all(self) -> wire.WebhookList:
        """List the endpoints."""
        found = await self._extension.context.store.scan(lambda tx: tx.of(Webhooks).all())
        return wire.WebhookList(webhooks=[_response(each) for each in found], total=len(found))

    async def events(self) -> wire.WebhookEvents:
        """List what an endpoint can be told of."""
        return wire.WebhookEvents(events=[messages.ALL, *sorted(messages.NAMES)])

    async def show(self, webhook_id: str) -> wire.WebhookResponse:
        """Show an endpoint."""
        return _response(await self._extension.context.store.read(lambda tx: _of(tx, webhook_id)))

    async def update(self, webhook_id: str, request: wire.UpdateWebhook, who: Caller) -> wire.WebhookResponse:
        """Change where an endpoint is, what it is told of, or whether, or its secret."""
        if request.url is not None:
            self._demand_url(request.url)
        changes: dict[str, object] = {}
        if request.url is not None:
            changes["url"] = request.url
        if request.events is not None:
            changes["events"] = _named(request.events)
        if request.enabled is not None:
            changes |= {
                "enabled": request.enabled,
                "disabled_why": None if request.enabled else f"by {who.cn}",
            }
        at = self._now()
        wrapped: bytes | None = None
        if request.secret is not None:
            wrapped = await self._wrapped(webhook_id, signing.read_secret(request.secret.get_secret_value()))

        def work(tx: Tx) -> Webhook:
            changed = replace(_of(tx, webhook_id), **changes)  # type: ignore[arg-type]  # of the members that are named
            if wrapped is not None:
                changed = self._rotated(changed, wrapped, at)
            tx.of(Webhooks).change(changed)
            told = f"{_detail(changed)}: {', '.join(sorted(changes)) or 'nothing'}"
            if wrapped is None or changes:
                tx.audit.append(who.event("webhook_updated", detail=told), at)
            if wrapped is not None:
                tx.audit.append(who.event("webhook_secret_rotated", detail=_detail(changed)), at)
            return changed

        return _response(await self._extension.context.store.write(work))

    async def delete(self, webhook_id: str, who: Caller) -> None:
        """Remove an endpoint with its deliveries."""
        at = self._now()

        def work(tx: Tx) -> None:
            webhook = _of(tx, webhook_id)
            tx.of(Webhooks).delete(webhook_id)
            tx.audit.append(who.event("webhook_deleted", detail=_detail(webhook)), at)

        await self._extension.context.store.write(work)

    async def rotate(self, webhook_id: str, who: Caller) -> wire.WebhookSecret:
        """Exchange the secret: for a day both sign, so that the receiver can change over."""
        at, secret = self._now(), signing.new_secret()
        wrapped = await self._wrapped(webhook_id, secret)

        def work(tx: Tx) -> Webhook:
            after = self._rotated(_of(tx, webhook_id), wrapped, at)
            tx.of(Webhooks).change(after)
            tx.audit.append(who.event("webhook_secret_rotated", detail=_detail(after)), at)
            return after

        found = await self._extension.context.store.write(work)
        return wire.WebhookSecret(webhook=_response(found), secret=signing.secret_text(secret))

    async def test(self, webhook_id: str, who: Caller) -> wire.DeliveryResponse:
        """Send `webhook.test` to this endpoint alone, once, also where it is disabled."""
        at = self._now()
        named = delivery_id(str(uuid.uuid4()), webhook_id, messages.TEST)

        def work(tx: Tx) -> Delivery:
            webhook = _of(tx, webhook_id)
            body = messages.body_of(
                messages.TEST, timestamp=rfc3339(at), machine_id=None, data={"asked_by": who.cn}
            )
            tx.of(Webhooks).queue(
                delivery_id=named, webhook_id=webhook_id, event=messages.TEST, payload=body, at=at
            )
            tx.audit.append(who.event("webhook_tested", detail=_detail(webhook)), at)
            found = tx.of(Webhooks).delivery(webhook_id, named)
            assert found is not None
            return found

        return _delivery(await self._extension.context.store.write(work))

    async def deliveries(
        self, webhook_id: str, status: State | None = None, limit: Annotated[int, Field(ge=1, le=500)] = 100
    ) -> wire.DeliveryList:
        """List the newest deliveries to an endpoint; `status=dead` are those that were given up."""

        def work(tx: Tx) -> tuple[list[Delivery], int]:
            _of(tx, webhook_id)
            return tx.of(Webhooks).deliveries(webhook_id, status, limit)

        found, total = await self._extension.context.store.scan(work)
        return wire.DeliveryList(deliveries=[_delivery(each) for each in found], total=total)

    async def delivery(self, webhook_id: str, delivery_id: str) -> wire.DeliveryDetail:
        """Show what was sent, and the beginning of what came back."""
        found = await self._extension.context.store.read(
            lambda tx: tx.of(Webhooks).delivery(webhook_id, delivery_id)
        )
        if found is None:
            raise WebhookUnknown("no such delivery")
        answer = found.response_body
        return wire.DeliveryDetail(
            delivery=_delivery(found),
            payload=found.payload.decode(),
            response_body=None if answer is None else answer.decode(errors="replace"),
        )

    async def replay(self, webhook_id: str, delivery_id: str, who: Caller) -> wire.Queued:
        """Send a delivery again, with its id, as if for the first time."""
        return await self._replayed(webhook_id, delivery_id, who)

    async def replay_dead(self, webhook_id: str, who: Caller) -> wire.Queued:
        """Send all deliveries again that were given up."""
        return await self._replayed(webhook_id, None, who)

    async def _replayed(self, webhook_id: str, which: str | None, who: Caller) -> wire.Queued:
        at = self._now()

        def work(tx: Tx) -> int:
            webhook = _of(tx, webhook_id)
            count = tx.of(Webhooks).replay(webhook_id, which, at)
            if which is not None and count == 0:
                raise WebhookUnknown("no such delivery")
            told = f"{_detail(webhook)}: {which or f'{count} dead'}"
            tx.audit.append(who.event("webhook_replayed", detail=told), at)
            return count

        return wire.Queued(deliveries=await self._extension.context.store.write(work))

    async def _wrapped(self, webhook_id: str, secret: bytes) -> bytes:
        return await asyncio.to_thread(self._extension.kek.wrap, secret, aad_of(webhook_id))

    def _rotated(self, before: Webhook, wrapped: bytes, at: datetime) -> Webhook:
        """Return *before* with another secret; the one that it had signs beside it for a day."""
        return replace(
            before,
            kek_id=self._extension.kek.key_id,
            secret=wrapped,
            previous_kek_id=before.kek_id,
            previous_secret=before.secret,
            previous_until=at + OVERLAP,
        )

    def _now(self) -> datetime:
        return self._extension.context.clock.now()

    def _demand_url(self, url: str) -> None:
        read_url(url, allow_http=self._extension.allow_http)


def router(extension: Opened) -> Router:
    """Return the routes."""
    desk, found = Desk(extension), Router()
    add = found.add
    add("POST /", "act", desk.create, WebhookURLInvalid, RequestInvalid, done=201)
    add("GET /", "read", desk.all)
    add("GET /events", "read", desk.events)
    add("GET /{webhook_id}", "read", desk.show, WebhookUnknown)
    add("PUT /{webhook_id}", "act", desk.update, WebhookUnknown, WebhookURLInvalid, RequestInvalid)
    add("DELETE /{webhook_id}", "act", desk.delete, WebhookUnknown)
    add("POST /{webhook_id}/rotate", "act", desk.rotate, WebhookUnknown)
    add("POST /{webhook_id}/test", "act", desk.test, WebhookUnknown, done=202)
    add("POST /{webhook_id}/replay", "act", desk.replay_dead, WebhookUnknown)
    add("GET /{webhook_id}/deliveries", "read", desk.deliveries, WebhookUnknown)
    add("GET /{webhook_id}/deliveries/{delivery_id}", "audit", desk.delivery, WebhookUnknown)
    add("POST /{webhook_id}/deliveries/{delivery_id}/replay", "act", desk.replay, WebhookUnknown)
    return found


def _named(events: Sequence[str]) -> tuple[str, ...]:
    unknown = sorted(set(events) - {messages.ALL, *messages.NAMES})
    if unknown:
        raise RequestInvalid(f"no event is called {unknown[0][:64]!r}; `GET /webhooks/events` lists them")
    return tuple(dict.fromkeys(events))


def _of(tx: Tx, webhook_id: str) -> Webhook:
    found = tx.of(Webhooks).get(webhook_id)
    if found is None:
        raise WebhookUnknown("no such webhook")
    return found


def _detail(webhook: Webhook) -> str:
    return f"{webhook.webhook_id}, {webhook.url.partition('?')[0][:200]}"


def _response(webhook: Webhook) -> wire.WebhookResponse:
    return wire.WebhookResponse(
        webhook_id=webhook.webhook_id,
        url=webhook.url,
        events=list(webhook.events),
        enabled=webhook.enabled,
        disabled_why=webhook.disabled_why,
        secret_rotates_until=webhook.previous_until,
        created_at=webhook.created_at,
        created_by=webhook.created_by,
        last_triggered_at=webhook.last_triggered_at,
        trigger_count=webhook.trigger_count,
        failure_count=webhook.failure_count,
    )


def _delivery(found: Delivery) -> wire.DeliveryResponse:
    return wire.DeliveryResponse.model_validate(found, from_attributes=True)
