"""They begin in each worker, and end in the opposite order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final

import structlog

from attestation.clock import rfc3339
from attestation.errors import AttestationError
from attestation.extension import AttestationExtension, Context, Emit, ExtensionEvent, Tx
from attestation.keys import KeyOptions
from attestation.keys.pkcs11 import parse_modules
from attestation_service.entitlements import events
from attestation_service.extensions import fleet
from attestation_service.extensions.enabled import Enabled, ExtensionInvalid, words
from attestation_service.resources import Resources

log = structlog.get_logger("attestation_service.extensions")

HOOK_SECONDS: Final = 10.0


def tell_skipped(enabled: Enabled) -> None:
    """Log which extensions are left out, and why."""
    for name, why in enabled.skipped.items():
        log.error("extension.skipped", name=name, reason=why)


@asynccontextmanager
async def running(enabled: Enabled, res: Resources) -> AsyncIterator[None]:
    """Begin them in this worker, in order, and end them in the opposite one.

    Raises:
        ExtensionInvalid: One of ours fails or hangs while it begins; those before it were ended. Others are skipped.
    """
    begun: list[AttestationExtension] = []

    try:
        tell_skipped(enabled)
        for each in enabled.extensions:
            if each.name in enabled.skipped:
                continue
            begun.append(each)
            try:
                context = Context(
                    store=res.store,
                    clock=res.clock,
                    service_url=res.settings.service_url,
                    key_options=KeyOptions(modules=parse_modules(res.settings.pkcs11_modules)),
                    fleet=lambda tx, machine_id=None: fleet.facts(tx, res.clock.now(), machine_id),
                    emit=_emitting(each),
                    observe=res.observe,
                    high_assurance=res.settings.high_assurance,
                    provider_keys_stale=res.provider_keys_stale,
                )
                async with asyncio.timeout(HOOK_SECONDS):
                    await each.on_startup(context)
            except BaseException as e:
                # A stranger's code; it may raise a CancelledError though this task was not cancelled.
                if isinstance(e, (KeyboardInterrupt, GeneratorExit)) or _is_cancelled():
                    raise
                invalid = ExtensionInvalid(each.name, f"cannot begin: {_told(e)}")
                log.error(  # noqa: TRY400 -- no trace: it has the words
                    "extension.skipped" if each.name in enabled.foreign else "service.unusable",
                    reason=str(invalid),
                )
                enabled.skip(invalid)
                continue
            log.info("extension.started", name=each.name, version=each.version)
        yield
    finally:
        for each in reversed(begun):
            ending = asyncio.create_task(_end(each))
            # Twice: it may swallow that it is cancelled after the first.
            if (await asyncio.wait([ending], timeout=2 * HOOK_SECONDS))[1]:
                log.error("extension.stop_failed", name=each.name, kind="TimeoutError")


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _told(error: BaseException) -> str:
    """Return what may be told of *error*; in the words of a connection that failed there may be a password."""
    if isinstance(error, AttestationError):
        return words(error)
    kind = type(error)
    if isinstance(error, OSError) and kind.__module__ == "builtins" and error.strerror:
        return f"{kind.__name__}: {error.strerror}" + (f": {error.filename}" if error.filename else "")
    return kind.__name__


def _emitting(extension: AttestationExtension) -> Emit:
    declared = frozenset(extension.events)

    def emit(
        tx: Tx,
        event: str,
        at: datetime,
        *,
        machine_id: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        if event not in declared:
            raise ValueError(f"{extension.name} does not declare the event {event!r}")
        machine = tx.machines.by_id(machine_id) if machine_id is not None else None
        payload = {
            "ek_fingerprint": machine.fingerprint if machine is not None else None,
            "timestamp": rfc3339(at),
            "node": events.node_of(machine) if machine is not None else {},
            "meta": dict(meta or {}),
        }
        tx.outbox.add(ExtensionEvent(event), machine_id, payload, at)

    return emit


async def _end(made: AttestationExtension) -> None:
    try:
        async with asyncio.timeout(HOOK_SECONDS):
            await made.on_shutdown()
    except BaseException as e:
        # A stranger's code, as where it began; the others must end too.
        if isinstance(e, (KeyboardInterrupt, GeneratorExit)) or _is_cancelled():
            raise
        log.error("extension.stop_failed", name=made.name, kind=type(e).__name__)  # noqa: TRY400 -- its words may be secret
