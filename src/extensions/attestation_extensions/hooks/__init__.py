"""Hooks: functions of yours are called with what happened to a machine, after it is committed (`attestation.hooks`).

See docs/extend/hooks.md.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from typing import Any

from pydantic import Field, field_validator

from attestation.extension import (
    AttestationExtension,
    Context,
    Event,
    Handler,
    NoSettings,
    OutboxEvent,
    Tx,
    rfc3339,
)
from attestation.hooks import NodeEventPayload, bus

log = logging.getLogger("attestation.eventbus")

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class HookSettings(NoSettings):
    """`ITL_EXT_HOOKS_…`."""

    modules: Sequence[str] = Field(
        description="Modules that register hooks, separated by commas; they are imported when the service starts"
    )

    @field_validator("modules", mode="before")
    @classmethod
    def _named(cls, text: str) -> Sequence[str]:
        found = tuple(each.strip() for each in text.split(",") if each.strip())
        if not found or not all(_MODULE.fullmatch(each) for each in found):
            raise ValueError("names of modules, separated by commas, are expected")
        return found


class Hooks(AttestationExtension):
    """The extension."""

    contract = 1
    name = "hooks"
    version = "1.0.0"
    description = "Functions of yours, called with what happened to a machine."
    Settings = HookSettings

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self._writing: set[asyncio.Task[None]] = set()
        for module in settings.modules:
            import_module(module)

    def get_subscriptions(self) -> Mapping[Event | str, Handler]:
        """Hear of what there are hooks for."""
        return dict.fromkeys(["*"] if bus.heard is None else bus.heard, self.handle)

    async def on_startup(self, context: Context) -> None:
        """Let hooks write events, and count those that fail."""
        await super().on_startup(context)
        self._loop = asyncio.get_running_loop()
        bus.write, bus.failed = self._write, self._count

    async def on_shutdown(self) -> None:
        """Stop that, when what they wrote is written."""
        bus.write = None
        await asyncio.gather(*self._writing)
        bus.failed = lambda _event: None

    def _count(self, event: Event) -> None:
        self.context.observe("hook_failures", {"event": str(event)})

    async def handle(self, event: OutboxEvent) -> None:
        """Call the hooks; what they raise is theirs, so the event is handled when they are done."""
        payload = event.payload
        await bus.emit(
            NodeEventPayload(
                event=event.event,
                event_id=event.id,
                ek_fingerprint=str(payload.get("ek_fingerprint") or ""),
                timestamp=event.created_at,
                node=_mapping(payload.get("node")),
                meta=_mapping(payload.get("meta")),
            )
        )

    def _write(self, payload: NodeEventPayload) -> None:
        machine_id = payload.node.get("machine_id")
        body = {
            "ek_fingerprint": payload.ek_fingerprint,
            "timestamp": rfc3339(payload.timestamp),
            "node": dict(payload.node),
            "meta": dict(payload.meta),
        }

        def work(tx: Tx) -> None:
            at: datetime = self.context.clock.now()
            tx.outbox.add(payload.event, machine_id if isinstance(machine_id, str) else None, body, at)

        if _running_loop() is not self._loop:
            self.context.store.write_sync(work)
            return
        # A hook: what waits for the database here holds up every attestation of this worker.
        writing = asyncio.create_task(self._written(payload.event, work))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)

    async def _written(self, event: Event, work: Callable[[Tx], None]) -> None:
        try:
            await self.context.store.write(work)
        except Exception as e:  # noqa: BLE001 -- nobody waits for it
            self._count(event)
            log.error("%s was not written: %s", event.value, type(e).__name__)  # noqa: TRY400 -- may quote a row


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _mapping(found: object) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}
