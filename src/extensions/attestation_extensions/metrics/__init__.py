"""Numbers about the fleet and the service, for Prometheus.

All of them come from the database, so they are the same whichever worker of whichever replica is asked, and survive
its end (docs/adr/0154). Who may read them: docs/adr/0155.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from random import SystemRandom
from typing import Any, ClassVar, Final, Self

import structlog
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import Field, field_validator, model_validator
from sqlalchemy.orm import DeclarativeBase

from attestation.errors import AttestationError, KeyUnusable, Unauthenticated
from attestation.extension import (
    AttestationExtension,
    Bearer,
    Confirm,
    Context,
    Event,
    Handler,
    Migrations,
    NoSettings,
    Observer,
    OutboxEvent,
    Reply,
    Router,
    Tx,
)
from attestation_extensions.metrics.counts import EVENTS, CountRow, Counts, EventRow, Pending, note
from attestation_extensions.metrics.exposition import exposition, measure
from attestation_extensions.metrics.listening import Listener

log = structlog.get_logger("attestation_extensions.metrics")

TOKEN_CHARACTERS: Final = 32
"""Least length of a token: it cannot be guessed, so tries are not counted."""
KEPT: Final = timedelta(seconds=1)
"""For so long an answer without an operator's credential is given again: who asks often costs nothing."""


class MetricsSettings(NoSettings):
    """Where the numbers are shown besides `/api/v1/metrics`, and how often they are written down.

    Args:
        open: Show them at `/metrics` to everybody.
        token_file: Show them at `/metrics` to each caller with the token in this file.
        listen: Show them at `/metrics` of this `address:port`, over plain HTTP.
        flush_seconds: How often a worker adds what it counted.
    """

    open: bool = False
    token_file: Path | None = None
    listen: str = ""
    flush_seconds: float = Field(default=5.0, ge=0.1, le=60)

    @field_validator("listen")
    @classmethod
    def _address(cls, value: str) -> str:
        if value:
            host, port = address_of(value)
            if not 0 < port < 65_536:
                raise ValueError("a port from 1 to 65535 is needed")
            ipaddress.ip_address(host)
        return value

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.open and self.token_file is not None:
            raise ValueError("ITL_METRICS_OPEN and ITL_METRICS_TOKEN_FILE contradict each other")
        return self


def address_of(value: str) -> tuple[str, int]:
    """Return host and port of `address:port`, `[address]:port` for IPv6."""
    host, _, port = value.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


class Metrics(AttestationExtension):
    """The extension."""

    contract = 1
    name = "metrics"
    version = "1.0.0"
    description = "Numbers about the fleet and the service, for Prometheus."
    migrations = Migrations(scripts="attestation_extensions.metrics:revisions", head="0002")
    prefixes = ("/api/v1/metrics", "/metrics")
    variables: ClassVar[Mapping[str, str]] = {
        "ITL_METRICS_OPEN": "open",
        "ITL_METRICS_TOKEN_FILE": "token_file",
        "ITL_METRICS_LISTEN": "listen",
    }
    Settings = MetricsSettings

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self._pending: Pending = Pending()
        self._stopping = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None
        self._token: bytes | None = None
        self._kept: tuple[datetime, bytes] | None = None
        self._measuring = asyncio.Lock()

    def get_models(self) -> Sequence[type[DeclarativeBase]]:
        """Return the counts."""
        return (EventRow, CountRow)

    def get_subscriptions(self) -> Mapping[Event | str, Handler]:
        """Count every event."""
        return dict.fromkeys(EVENTS, self.count)

    async def count(self, event: OutboxEvent) -> Confirm:
        """Count *event* in the unit that confirms it: once, however often it is told."""
        return lambda tx: tx.of(Counts).event(event.event)

    def get_observer(self) -> Observer:
        """Count what no event tells."""
        return self.observe

    def observe(self, what: str, how: Mapping[str, str], value: float = 1) -> None:
        """Count in memory; the next flush adds it."""
        note(self._pending, what, how, value)

    def get_router(self) -> Router:
        """Return the routes."""
        router = Router()
        router.add("GET", "metrics", self.show)
        if self.settings.open or self.settings.token_file is not None:
            router.add("GET /metrics", "public", self.show_beside, Unauthenticated)
        return router

    # ---------------------------------------------------------------- life

    async def on_startup(self, context: Context) -> None:
        """Read the token, listen, and begin to write down what is counted.

        Raises:
            Unauthenticated: The numbers would be open to everybody under high assurance.
            KeyUnusable: There is no token in the file.
        """
        await super().on_startup(context)
        self._stopping = asyncio.Event()
        if self.settings.open:
            if context.high_assurance:
                raise Unauthenticated(
                    "ITL_METRICS_OPEN under ITL_HIGH_ASSURANCE=true: use a token, role or listener"
                )
            log.warning("metrics.open")
        if self.settings.token_file is not None:
            self._token = await asyncio.to_thread(_token_of, self.settings.token_file)
        if self.settings.listen:
            self._server = await Listener(self._answer).start(*address_of(self.settings.listen))
        self._writing = asyncio.create_task(self._run())

    async def on_shutdown(self) -> None:
        """Write down what was counted."""
        self._stopping.set()
        if self._server is not None:
            self._server.close()
        if self._writing is not None:
            await self._writing

    async def _run(self) -> None:
        while not self._stopping.is_set():
            seconds = self.settings.flush_seconds * SystemRandom().uniform(0.5, 1.5)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), seconds)
            try:
                await self.flush()
            except AttestationError as e:
                log.warning("metrics.not_written", code=e.code)
            except Exception as e:  # noqa: BLE001 -- the outermost border of this task: it must not end
                log.error("metrics.not_written", kind=type(e).__name__)  # noqa: TRY400 -- may quote a row

    async def flush(self) -> None:
        """Write down what was counted here, and count on in the audit log."""
        store, at = self.context.store, self.context.clock.now()
        stale = self.context.provider_keys_stale()
        # No `read`: it takes long where many wait, and attestations read there.
        behind = await store.scan(lambda tx: tx.of(Counts).is_behind(tx))
        taken, self._pending = self._pending, Pending()
        if not (taken or stale or behind):
            return

        def work(tx: Tx) -> bool:
            counts = tx.of(Counts)
            counts.add(taken)
            if stale:
                counts.say_stale(at)
            return counts.read_on(tx)

        try:
            more = await store.write(work)
        except BaseException:
            self._pending.update(taken)
            raise
        while more:
            more = await store.write(lambda tx: tx.of(Counts).read_on(tx))

    # ---------------------------------------------------------------- what is shown

    async def show(self) -> Reply:
        """Show the metrics.

        Of all workers, in the text format of Prometheus. Labels are words of closed lists: no ids, no names.
        """
        return Reply(body=await self._measured(), media_type=CONTENT_TYPE_LATEST)

    async def show_beside(self, who: Bearer) -> Reply:
        """Show the metrics to who has the token, or to everybody where they are open.

        At most a second old; otherwise as `GET /api/v1/metrics`.

        Raises:
            Unauthenticated: A token is needed, and this is not it.
        """
        self._demand(who.token)
        return Reply(body=await self._often(), media_type=CONTENT_TYPE_LATEST)

    async def _answer(self, authorization: str | None) -> tuple[HTTPStatus, str, bytes]:
        scheme, _, token = (authorization or "").partition(" ")
        try:
            self._demand(token.strip() if scheme.lower() == "bearer" else None)
            return HTTPStatus.OK, CONTENT_TYPE_LATEST, await self._often()
        except Unauthenticated:
            return HTTPStatus.UNAUTHORIZED, "text/plain; charset=utf-8", b""
        except AttestationError as e:
            log.warning("metrics.not_shown", code=e.code)
            return HTTPStatus.SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", b""

    def _demand(self, token: str | None) -> None:
        if self._token is not None and not (
            token is not None and hmac.compare_digest(token.encode(errors="replace"), self._token)
        ):
            raise Unauthenticated("the token of ITL_METRICS_TOKEN_FILE is needed: Authorization: Bearer")

    async def _often(self) -> bytes:
        async with self._measuring:
            at = self.context.clock.now()
            if self._kept is None or not timedelta() <= at - self._kept[0] < KEPT:
                self._kept = at, await self._measured()
            return self._kept[1]

    async def _measured(self) -> bytes:
        at = self.context.clock.now()
        return exposition(await self.context.store.scan(lambda tx: measure(tx, at)))


def _token_of(path: Path) -> bytes:
    try:
        token = path.read_bytes().strip()
    except OSError as e:
        raise KeyUnusable(f"ITL_METRICS_TOKEN_FILE: cannot read {path}: {type(e).__name__}") from None
    if len(token) < TOKEN_CHARACTERS:
        raise KeyUnusable(f"ITL_METRICS_TOKEN_FILE: at least {TOKEN_CHARACTERS} characters are needed")
    return token
