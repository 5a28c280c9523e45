"""What operators see of extensions, and what they may have done again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path

from attestation import store
from attestation.api import (
    DeadLetter,
    DeadLetterDetail,
    DeadLetterList,
    ExtensionDetail,
    ExtensionList,
    Retried,
    RetryRequest,
)
from attestation.api.operations import ExtensionAPI
from attestation.errors import DeadLetterUnknown, ExtensionUnknown
from attestation.extension import AttestationExtension
from attestation.store import MAX_LIMIT, Tx, Waiting
from attestation_service.auth import OperatorDep
from attestation_service.extensions.enabled import Enabled
from attestation_service.resources import Res
from attestation_service.routing.openapi import operator_router, route

NOTHING: Final = Waiting()
EventId = Annotated[str, Path(max_length=64, description="`event_id` of the event")]


def listing(extensions: Sequence[AttestationExtension], enabled: Enabled) -> APIRouter:
    """Let operators see what is enabled and what it could not handle, and have it handled again."""

    async def list_extensions(*, res: Res) -> ExtensionList:
        """List the extensions that are enabled, what waits for them, and those that cannot be used."""
        waiting = await res.store.read(lambda tx: tx.handovers.waiting())
        made = {each.name: each for each in extensions}
        found = [
            ExtensionDetail(
                name=name,
                version=made[name].version if name in made else None,
                description=made[name].description if name in made else None,
                skipped=enabled.skipped.get(name),
                pending=waiting.get(name, NOTHING).pending,
                dead_letters=waiting.get(name, NOTHING).dead,
            )
            for name in {**made, **enabled.skipped}
        ]
        return ExtensionList(extensions=found, total=len(found))

    def demand_enabled(name: str) -> None:
        if name not in enabled.skipped and name not in (each.name for each in extensions):
            raise ExtensionUnknown(f"no extension {name} is enabled")

    async def dead_letters(name: str, *, res: Res) -> DeadLetterList:
        """List the newest events that the extension could not handle."""
        demand_enabled(name)
        found = await res.store.scan(lambda tx: tx.handovers.dead_letters(name, MAX_LIMIT))
        return DeadLetterList(items=[DeadLetterDetail(**_told(each)) for each in found])

    async def dead_letter(name: str, event_id: EventId, *, res: Res) -> DeadLetter:
        """Show one event that the extension could not handle, with what it says."""
        demand_enabled(name)
        found = await res.store.read(lambda tx: tx.handovers.dead_letter(name, event_id))
        if found is None:
            raise DeadLetterUnknown(f"{name} gave up no event of this id")
        return DeadLetter(**_told(found), payload=dict(found.event.payload))

    async def retry(name: str, request: RetryRequest | None = None, *, res: Res, who: OperatorDep) -> Retried:
        """Have the extension handle its dead letters again: all, or those that are named; of these all or none."""
        demand_enabled(name)
        at = res.clock.now()
        ids = None if request is None or request.event_ids is None else sorted(set(request.event_ids))

        def work(tx: Tx) -> Retried:
            again = tx.handovers.retry(name, ids)
            if ids is not None and again != len(ids):
                raise DeadLetterUnknown(f"{name} gave up only {again} of these {len(ids)} events")
            named = "" if ids is None else f": {', '.join(ids)}"
            tx.audit.append(who.event("extension_retry", detail=f"{name}: {again} events{named}"), at)
            return Retried(events=again)

        return await res.store.write(work)

    router = operator_router("operator: extensions")
    route(router, ExtensionAPI.extensions, "read", list_extensions)
    route(router, ExtensionAPI.dead_letters, "read", dead_letters)
    route(router, ExtensionAPI.dead_letter, "read", dead_letter)
    route(router, ExtensionAPI.retry_dead_letters, "act", retry)
    return router


def _told(letter: store.DeadLetter) -> dict[str, Any]:
    return {
        "event_id": letter.event.id,
        "event": letter.event.event,
        "machine_id": letter.event.machine_id,
        "created_at": letter.event.created_at,
        "attempts": letter.event.attempts,
        "error": letter.error,
    }
