"""Webhooks: events go to endpoints of operators' choice, signed, tried again until they are there, and nowhere inside.

See docs/operate/webhooks.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping, Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Any, ClassVar, Final

from pydantic import Field, field_validator
from sqlalchemy.orm import DeclarativeBase

from attestation.errors import KeyUnusable
from attestation.extension import (
    AttestationExtension,
    Context,
    Event,
    Handler,
    KeyURI,
    KeyURIs,
    Migrations,
    NoSettings,
    QueryTable,
    Router,
    Tx,
)
from attestation.keys import KEK, open_keks
from attestation_extensions.webhooks import delivering, messages, routes
from attestation_extensions.webhooks.addresses import Network, WebhookURLInvalid, read_url
from attestation_extensions.webhooks.delivering import Deliverer, log
from attestation_extensions.webhooks.records import DELIVERIES, DeliveryRow, WebhookRow, Webhooks
from attestation_extensions.webhooks.sending import Resolver, Sender

FORGET_SECONDS: Final = 3600.0
FORGOTTEN_AT_ONCE: Final = 1_000
"""Deliveries that one unit forgets: every other write waits for it."""


class WebhookSettings(NoSettings):
    """`ITL_EXT_WEBHOOKS_…`, and `ITL_WEBHOOK_ALLOW_NETS`."""

    kek: KeyURI
    """URI of the key that wraps the secrets: `file:`, `pkcs11:` or `tpm2:`."""
    previous_keks: KeyURIs = ()
    """URIs of those before it, separated by blanks."""
    allow_nets: Sequence[Network] = ()
    """Networks beside the public internet that may be connected to, separated by commas."""
    allow_http: bool = False
    """URLs may be of http: what is told is read on the way."""
    egress_proxy: str | None = None
    """URL of a proxy that connects in our place."""
    ca_file: Path | None = None
    """PEM file with the only CAs that endpoints are believed by."""
    poll_seconds: float = Field(default=1.0, ge=0.05, le=60)
    """How often a worker looks for what is due."""

    @field_validator("allow_nets", mode="before")
    @classmethod
    def _nets(cls, text: str) -> Sequence[Network]:
        return tuple(ip_network(each.strip()) for each in text.split(",") if each.strip())

    @field_validator("egress_proxy")
    @classmethod
    def _proxy(cls, text: str) -> str:
        try:
            return read_url(text, allow_http=True).url
        except WebhookURLInvalid as e:
            raise ValueError(str(e)) from None


class Extension(AttestationExtension):
    """The extension."""

    contract = 1
    name = "webhooks"
    version = "1.0.0"
    description = "Events for endpoints of your choice, signed as Standard Webhooks has it."
    migrations = Migrations(scripts="attestation_extensions.webhooks:revisions", head="0002")
    tables = ("extension_webhooks", "extension_webhook_deliveries")
    variables: ClassVar[Mapping[str, str]] = {"ITL_WEBHOOK_ALLOW_NETS": "allow_nets"}
    cli_groups = ("webhook",)
    events = (messages.DISABLED,)
    Settings = WebhookSettings

    settings: WebhookSettings
    kek: KEK

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.allow_http: bool = settings.allow_http
        self._keks: dict[str, KEK] = {}
        self._running: list[asyncio.Task[None]] = []
        self._resolver: Resolver | None = None

    def get_models(self) -> Sequence[type[DeclarativeBase]]:
        """Return the tables."""
        return (WebhookRow, DeliveryRow)

    def get_query_tables(self) -> Sequence[QueryTable]:
        """Let operators look up what was delivered."""
        about = {
            "delivery_id": "Its id, the same at every attempt",
            "webhook_id": "To which endpoint",
            "event_type": "What it tells of",
            "created_at": "When it was queued",
            "status": "pending, delivered, failed",
            "attempts": "How often it was tried",
            "next_attempt_at": "When it is tried again",
            "response_status": "HTTP status of the last answer",
            "delivered_at": "When it was accepted",
            "duration_ms": "How long the last attempt took",
        }
        what = "Events on their way to endpoints, there, or given up"
        return (QueryTable(name="WebhookDeliveries", statement=DELIVERIES, description=what, columns=about),)

    def get_subscriptions(self) -> Mapping[Event | str, Handler]:
        """Hear of everything that an endpoint can be told of."""
        return dict.fromkeys(messages.SOURCES.values(), delivering.fan_out)

    def get_router(self) -> Router:
        """Return the routes."""
        return routes.router(self)

    async def on_startup(self, context: Context) -> None:
        """Open the keys and begin to deliver, in this worker."""
        await super().on_startup(context)
        settings = self.settings
        self._keks = await asyncio.to_thread(
            open_keks, (settings.kek, *settings.previous_keks), context.key_options
        )
        self.kek = next(iter(self._keks.values()))
        used = {each.kek_id for each in await context.store.scan(lambda tx: tx.of(Webhooks).all())}
        if missing := used - self._keks.keys():
            raise KeyUnusable(f"secrets lie under a key-encryption key that is not set: {min(missing)}")
        try:
            trust = await asyncio.to_thread(ssl.create_default_context, cafile=settings.ca_file)
        except OSError as e:
            raise KeyUnusable(f"{settings.ca_file}: {e.strerror or type(e).__name__}") from None
        self._resolver = Resolver()
        sender = Sender(
            allowed=settings.allow_nets, trust=trust, proxy=settings.egress_proxy, resolver=self._resolver
        )
        deliverer = Deliverer(context, sender, self._keks, allow_http=self.allow_http)
        self._running = [
            asyncio.create_task(deliverer.run(settings.poll_seconds)),
            asyncio.create_task(self._forget()),
        ]

    async def on_shutdown(self) -> None:
        """Stop delivering; what was claimed becomes due again."""
        for task in self._running:
            task.cancel()
        for task in self._running:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._resolver is not None:
            self._resolver.close()
        for kek in self._keks.values():
            await asyncio.to_thread(kek.close)
        self._keks, self._running, self._resolver = {}, [], None

    async def _forget(self) -> None:
        """Forget deliveries that have been over for a month."""
        while True:
            try:
                while await self.context.store.write(self._forget_some) == FORGOTTEN_AT_ONCE:
                    pass
            except Exception as e:  # noqa: BLE001 -- the outermost border of this task: the next round does it
                log.error("webhooks.not_forgotten", kind=type(e).__name__)
            await asyncio.sleep(FORGET_SECONDS)

    def _forget_some(self, tx: Tx) -> int:
        return tx.of(Webhooks).forget(self.context.clock.now(), FORGOTTEN_AT_ONCE)
