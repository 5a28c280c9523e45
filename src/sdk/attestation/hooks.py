"""Hooks: functions that are called with what happened to a machine, after it is committed (ITL-REFERENCE §7).

    from attestation.hooks import OnlineContext, on_online

    @on_online
    async def greet(context: OnlineContext) -> None:
        print(context.hostname, "proved itself at", context.first_seen_at)

The service calls those of the modules that the extension `hooks` names (docs/extend/hooks.md). A hook may be called
again for the same event: `context.event_id` is the same then. Each has ten seconds, and none waits for another; what
one raises is logged and counted, never raised.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from attestation.machines import Event, NodeEvent, event_named

log = logging.getLogger("attestation.eventbus")

HOOK_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEventPayload:
    """What happened.

    Args:
        event: Its name.
        ek_fingerprint: SHA-384 of the EK's SPKI, 96 hex; empty where it is about no machine.
        timestamp: When, UTC.
        node: What is said of the machine.
        meta: About the event itself.
        event_id: UUID, the same however often it comes.
    """

    event: Event
    ek_fingerprint: str = ""
    timestamp: datetime = field(default_factory=lambda: datetime.now(UTC))
    node: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    event_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventContext:
    """What every hook is told; `raw` is all of it."""

    event: Event
    event_id: str
    ek_fingerprint: str
    timestamp: datetime
    raw: NodeEventPayload

    @classmethod
    def of(cls, payload: NodeEventPayload) -> EventContext:
        """Return the context of *payload*."""
        return cls(**_common(payload))


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredContext(EventContext):
    """A machine introduced itself; `hardware` has the `hw_…` members that are not empty."""

    ip_address: str | None
    mac_address: str | None
    tpm_available: bool
    hardware: Mapping[str, str]

    @classmethod
    def of(cls, payload: NodeEventPayload) -> RegisteredContext:
        """Return the context of *payload*."""
        found = {name: str(value) for name, value in payload.node.items() if name.startswith("hw_") and value}
        return cls(
            **_common(payload),
            ip_address=_text(payload.meta, "source_ip"),
            mac_address=found.get("hw_mac"),
            tpm_available=bool(payload.node.get("tpm_available", True)),
            hardware=found,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredContext(EventContext):
    """A machine fetched its configuration. `config_token` is None: an event says no secret."""

    hostname: str | None
    role: str | None
    config_token: str | None

    @classmethod
    def of(cls, payload: NodeEventPayload) -> ConfiguredContext:
        """Return the context of *payload*."""
        return cls(**_common(payload), **_texts(payload.node, "hostname", "role", "config_token"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisioningContext(EventContext):
    """A machine was approved, or an image was made for it. `config_url` is None: it has the token in it."""

    hostname: str | None
    role: str | None
    config_url: str | None
    schematic_id: str | None
    iso_url: str | None

    @classmethod
    def of(cls, payload: NodeEventPayload) -> ProvisioningContext:
        """Return the context of *payload*."""
        names = ("hostname", "role", "config_url", "schematic_id", "iso_url")
        return cls(**_common(payload), **_texts(payload.node, *names))


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineContext(EventContext):
    """A machine is attested."""

    hostname: str | None
    role: str | None
    first_seen_at: str | None

    @classmethod
    def of(cls, payload: NodeEventPayload) -> OnlineContext:
        """Return the context of *payload*."""
        seen = _text(payload.node, "attested_at")
        return cls(**_common(payload), **_texts(payload.node, "hostname", "role"), first_seen_at=seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecommissionedContext(EventContext):
    """A machine was revoked."""

    hostname: str | None
    role: str | None
    reason: str | None

    @classmethod
    def of(cls, payload: NodeEventPayload) -> DecommissionedContext:
        """Return the context of *payload*."""
        reason = _text(payload.meta, "reason")
        return cls(**_common(payload), **_texts(payload.node, "hostname", "role"), reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatMissedContext(EventContext):
    """The lease of a machine ran out."""

    hostname: str | None
    last_seen_at: str | None
    missed_count: int

    @classmethod
    def of(cls, payload: NodeEventPayload) -> HeartbeatMissedContext:
        """Return the context of *payload*."""
        count = payload.meta.get("missed_count", 1)
        return cls(
            **_common(payload),
            **_texts(payload.node, "hostname", "last_seen_at"),
            missed_count=count if isinstance(count, int) else 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleChangedContext(EventContext):
    """A machine got another role."""

    hostname: str | None
    previous_role: str | None
    new_role: str | None

    @classmethod
    def of(cls, payload: NodeEventPayload) -> RoleChangedContext:
        """Return the context of *payload*."""
        roles = _texts(payload.meta, "previous_role", "new_role")
        return cls(**_common(payload), hostname=_text(payload.node, "hostname"), **roles)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertRenewedContext(EventContext):
    """A machine got another certificate."""

    hostname: str | None
    role: str | None
    serial: str | None
    not_after: str | None

    @classmethod
    def of(cls, payload: NodeEventPayload) -> CertRenewedContext:
        """Return the context of *payload*."""
        both = {**payload.node, **payload.meta}
        return cls(**_common(payload), **_texts(both, "hostname", "role", "serial", "not_after"))


CONTEXTS: Final[Mapping[Event, type[EventContext]]] = {
    NodeEvent.REGISTERED: RegisteredContext,
    NodeEvent.CONFIGURED: ConfiguredContext,
    NodeEvent.IMAGE_CREATED: ProvisioningContext,
    NodeEvent.PROVISIONED: ProvisioningContext,
    NodeEvent.ONLINE: OnlineContext,
    NodeEvent.DECOMMISSIONED: DecommissionedContext,
    NodeEvent.HEARTBEAT_MISSED: HeartbeatMissedContext,
    NodeEvent.ROLE_CHANGED: RoleChangedContext,
    NodeEvent.CERT_RENEWED: CertRenewedContext,
}
"""What a hook for an event is told; of all others an `EventContext`."""

Hook = Callable[[Any], Awaitable[object]]
H = TypeVar("H", bound=Hook)


class EventBus:
    """Which functions are called for which event; one for each process, `bus`."""

    def __init__(self) -> None:
        self._of: dict[Event, list[Hook]] = {}
        self._of_any: list[Hook] = []
        self.failed: Callable[[Event], None] = lambda _event: None
        """Told of every call that failed; set by the service."""
        self.write: Callable[[NodeEventPayload], None] | None = None
        """Writes an event to the outbox; set by the service."""

    @property
    def heard(self) -> frozenset[Event] | None:
        """The events for which there is a hook; None where one is for all."""
        return None if self._of_any else frozenset(self._of)

    def on(self, *events: Event | str) -> Callable[[H], H]:
        """Have a function called for *events*; it is returned as it is."""

        def register(hook: H) -> H:
            for event in events:
                self._of.setdefault(event_named(str(event)), []).append(hook)
            return hook

        return register

    def on_any(self) -> Callable[[H], H]:
        """Have a function called for every event."""

        def register(hook: H) -> H:
            self._of_any.append(hook)
            return hook

        return register

    async def emit(self, payload: NodeEventPayload) -> None:
        """Call every hook for *payload* at the same time; return when all are done, or had their time."""
        context = CONTEXTS.get(payload.event, EventContext).of(payload)
        hooks = [*self._of.get(payload.event, ()), *self._of_any]
        await asyncio.gather(*(self._called(hook, context) for hook in hooks))

    def emit_nowait(self, payload: NodeEventPayload) -> None:
        """Write *payload* to the outbox: hooks are called after it.

        In a thread it is written when this returns. In a hook, on the event loop, nothing waits for it: it is written
        soon after, and one that cannot be is logged and counted.

        Raises:
            RuntimeError: No service runs in this process.
        """
        if self.write is None:
            raise RuntimeError("events are written by a service that runs")
        self.write(payload)

    async def _called(self, hook: Hook, context: EventContext) -> None:
        try:
            async with asyncio.timeout(HOOK_SECONDS):
                await hook(context)
        except BaseException as e:
            # A stranger's code: neither its errors nor its exits are ours, but a cancellation of this task is.
            if isinstance(e, GeneratorExit) or (task := asyncio.current_task()) is None or task.cancelling():
                raise
            self.failed(context.event)
            name = getattr(hook, "__qualname__", repr(hook))
            log.error("the hook %s failed on %s: %s", name, context.event.value, type(e).__name__)  # noqa: TRY400 -- its words may be secret


bus: Final = EventBus()
on_registered = bus.on(NodeEvent.REGISTERED)
on_configured = bus.on(NodeEvent.CONFIGURED)
on_provisioning = bus.on(NodeEvent.PROVISIONED, NodeEvent.IMAGE_CREATED)
on_online = bus.on(NodeEvent.ONLINE)
on_decommissioned = bus.on(NodeEvent.DECOMMISSIONED)
on_heartbeat_missed = bus.on(NodeEvent.HEARTBEAT_MISSED)
on_role_changed = bus.on(NodeEvent.ROLE_CHANGED)
on_cert_renewed = bus.on(NodeEvent.CERT_RENEWED)
on_any_event = bus.on_any()


def _common(payload: NodeEventPayload) -> dict[str, Any]:
    return {
        "event": payload.event,
        "event_id": payload.event_id,
        "ek_fingerprint": payload.ek_fingerprint,
        "timestamp": payload.timestamp,
        "raw": payload,
    }


def _text(members: Mapping[str, Any], name: str) -> str | None:
    value = members.get(name)
    return None if value is None else str(value)


def _texts(members: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: _text(members, name) for name in names}
