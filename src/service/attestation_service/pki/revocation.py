"""What the application owns of revocation: lists and responder, and the task that keeps them ahead."""

from __future__ import annotations

import asyncio

import structlog

from attestation.clock import Clock
from attestation.errors import AttestationError
from attestation.store import Store
from attestation_service.authority import Authority
from attestation_service.pki.lists import Lists
from attestation_service.pki.responder import Responder
from attestation_service.settings import Settings

log = structlog.get_logger("attestation_service.pki")


class Revocation:
    """Lists and answers of every CA key.

    Args:
        settings: Of the service.
        store: The database.
        clock: What tells the time.
        authority: The CAs.
        secret: Seals the keys that answer OCSP; see `Responder`.
    """

    def __init__(
        self, settings: Settings, store: Store, clock: Clock, authority: Authority, secret: bytes | None
    ) -> None:
        self.lists = Lists(settings, store, clock, authority)
        self.responder = Responder(settings, store, clock, authority, secret)
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Say that something was revoked, held or released: lists are made without waiting for who asks first.

        Never needed for correctness: a list that is behind is not served.
        """
        self._changed.set()

    async def start(self) -> None:
        """Make the keys that answer, before somebody asks."""
        await self.responder.renew()

    async def run(self) -> None:
        """Make lists as soon as something changes, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.lists.refresh()
            except AttestationError as e:
                log.warning("crl.not_made", code=e.code)
            except Exception as e:  # noqa: BLE001 -- the outermost border of this task: it must not end
                log.error("crl.not_made", kind=type(e).__name__)  # noqa: TRY400 -- the message may quote a row

    async def maintain(self, *, for_all: bool = True) -> None:
        """Do what is due: delegated keys that end soon; *for_all* also lists that are old or behind."""
        if for_all:
            await self.lists.refresh()
        await self.responder.renew(for_all=for_all)
