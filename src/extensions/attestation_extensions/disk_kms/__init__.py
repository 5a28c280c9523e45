"""Disk keys of Talos nodes: its KMS protocol over gRPC, answered for machines that have just attested.

Talos makes a disk key, has it sealed, keeps what comes back in the disk's header, and has that opened at each boot. So
a disk that leaves its machine, or a machine that does not run what was measured, stays closed. See
docs/operate/disk-kms.md.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import structlog
from pydantic import Field, model_validator
from sqlalchemy.orm import DeclarativeBase

from attestation.errors import AttestationError
from attestation.extension import (
    AttestationExtension,
    Context,
    KeyURI,
    KeyURIs,
    Migrations,
    NoSettings,
    Router,
    Tx,
)
from attestation.keys import KEK, open_keks
from attestation_extensions.disk_kms import keeping, routes
from attestation_extensions.disk_kms.keeping import Keeping
from attestation_extensions.disk_kms.tables import DiskKeys, HoldRow, Key, KeyRow, WaitingRow

log = structlog.get_logger("attestation_extensions.disk_kms")

ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+):([1-9][0-9]{0,4})")
REWRAPPED_AT_ONCE: Final = 50


class Settings(NoSettings):
    """What is set by `ITL_EXT_DISK_KMS_…`."""

    address: str = Field(pattern=ADDRESS.pattern)
    """Where nodes ask, `host:port`; all addresses of this computer: `[::]:4050`."""
    kek: KeyURI
    """URI of the key that wraps the machines' keys: `file:`, `pkcs11:` or `tpm2:`."""
    previous_keks: KeyURIs = ()
    """URIs, separated by blanks, of keys that wrapped them before: what lies under them is wrapped anew."""
    tls_certificate: Path | None = None
    """PEM file of the certificate chain that nodes verify by their trusted roots."""
    tls_key: Path | None = None
    """PEM file of its private key."""
    insecure: bool = False
    """Serve without TLS: disk keys are readable on the way. For tests, and behind a proxy on this computer."""
    fresh_seconds: Annotated[int, Field(ge=10, le=3600)] = 300
    """How long ago a machine's quote may be."""
    release_seconds: Annotated[int, Field(ge=30, le=3600)] = 600
    """How long an operator's release counts."""

    @model_validator(mode="after")
    def _served_safely(self) -> Settings:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key are set together")
        if (self.tls_certificate is None) != self.insecure:
            raise ValueError("either tls_certificate and tls_key are set, or insecure")
        return self


class DiskKMS(AttestationExtension):
    """The extension."""

    contract = 1
    name = "disk_kms"
    version = "1.0.0"
    description = "Disk keys of Talos nodes, released to machines that have just attested."
    migrations = Migrations(scripts="attestation_extensions.disk_kms:revisions", head="0001")
    prefixes = ("/api/v1/kms",)
    cli_groups = ("kms",)
    events = (keeping.RELEASED, keeping.REFUSED, keeping.HELD)
    Settings = Settings

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self._server: Any = None
        self._keks: dict[str, KEK] = {}
        self._rewrapping: asyncio.Task[None] | None = None

    def get_models(self) -> Sequence[type[DeclarativeBase]]:
        """Return keys, holds, and who waits."""
        return (KeyRow, HoldRow, WaitingRow)

    def get_router(self) -> Router:
        """Return what operators do."""
        return routes.router(self)

    async def on_startup(self, context: Context) -> None:
        """Open the keys and listen, in this worker."""
        # Here: gRPC begins threads, which no fork survives.
        from attestation_extensions.disk_kms import server

        await super().on_startup(context)
        settings = self.settings
        self._keks = await asyncio.to_thread(
            open_keks, (settings.kek, *settings.previous_keks), context.key_options
        )
        newest = next(iter(self._keks.values()))
        self.keeping = Keeping(
            store=context.store,
            clock=context.clock,
            keks=self._keks,
            newest=newest.key_id,
            decoy=await asyncio.to_thread(keeping.decoy, newest, context.clock.now()),
            fresh=timedelta(seconds=settings.fresh_seconds),
            emit=context.emit,
        )
        certificate = (settings.tls_certificate, settings.tls_key) if settings.tls_certificate else None
        self._server = await server.serve(self.keeping, settings.address, certificate)
        self._rewrapping = asyncio.create_task(self._rewrap_at_start())

    async def on_shutdown(self) -> None:
        """Finish what was asked, and let go of the keys."""
        if self._rewrapping is not None:
            self._rewrapping.cancel()
            # However it ended: the server and the keys must go too.
            await asyncio.wait([self._rewrapping])
        if self._server is not None:
            from attestation_extensions.disk_kms import server

            await self._server.stop(server.STOP_SECONDS)
        for kek in self._keks.values():
            await asyncio.to_thread(kek.close)
        self._server, self._rewrapping, self._keks = None, None, {}

    async def new_key(self, machine_id: str, at: datetime) -> Key:
        """Return a fresh key of a machine, which is not kept yet."""
        return await asyncio.to_thread(keeping.new_key, self._keks[self.keeping.newest], machine_id, at)

    async def rewrap(self) -> tuple[int, int]:
        """Bring what lies under a previous KEK under the newest; several workers may do so at the same time.

        Returns:
            How many keys this was, and how many lie under a KEK that is not set, or does not answer.
        """
        new = self._keks[self.keeping.newest]
        store, done = self.context.store, 0
        left: Counter[str] = Counter()

        async def further(after: bytes) -> list[Key]:
            return await store.scan(
                lambda tx: tx.of(DiskKeys).under_others(new.key_id, after, REWRAPPED_AT_ONCE)
            )

        found = await further(b"")
        while found:
            for key in found:
                old = self._keks.get(key.kek_id)
                if old is None:
                    left["their KEK is not set"] += 1
                    continue
                try:
                    wrapped = await asyncio.to_thread(keeping.rewrapped, key, old, new)
                except AttestationError as e:
                    # The others are brought over, this one at the next start. Its words may be secret.
                    left[type(e).__name__] += 1
                    continue

                def keep(tx: Tx, key: Key = key, wrapped: bytes = wrapped) -> bool:
                    return tx.of(DiskKeys).rewrap(key, kek_id=new.key_id, wrapped=wrapped)

                done += await store.write(keep)
            found = await further(found[-1].key_id)
        for why, count in left.items():  # not a line for each: a fleet has many
            log.error("disk_kms.not_rewrapped", keys=count, reason=why)
        return done, left.total()

    async def _rewrap_at_start(self) -> None:
        try:
            await self.rewrap()
        except Exception as e:  # noqa: BLE001 -- the outermost border of this task; the next start tries again
            log.error("disk_kms.not_rewrapped", reason=type(e).__name__)  # noqa: TRY400 -- its words may quote a row
