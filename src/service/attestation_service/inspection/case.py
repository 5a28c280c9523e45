"""What the parts of an inspection look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from attestation.machines import Role
from attestation.store import AuditFilter, HSMState, Issuer, Tx
from attestation_service.configs.sources import Sources
from attestation_service.inspection.finding import Finding, Level
from attestation_service.settings import Settings
from attestation_service.storage.database import LostKeys, lost_log_keys
from attestation_service.transparency.memory import MemoryFile

Findings = Iterator[Finding]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where the service is to listen; *uds* instead of host and port."""

    host: str
    port: int
    uds: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the database says that concerns other parts, read in one snapshot.

    Args:
        issuers: Keys of CAs.
        lost: Keys of its audit log that are not there.
        newest: Instant of the newest audit entry, RFC 3339; None in an empty log.
        backed_up: Instant of the newest backup, RFC 3339; None where the audit tells of none.
        configurations: Clusters and roles of the machines that get, or may get, a configuration, and of what.
        keks: Names of the keys that kept configurations lie under.
        collateral: Kind of collateral -> when the first piece of it expires.
        hsm: Kubernetes cluster -> how its CA keys in hardware are.
    """

    issuers: tuple[Issuer, ...]
    lost: LostKeys | None
    newest: str | None
    backed_up: str | None
    configurations: Mapping[tuple[str, Role], Sources]
    keks: tuple[str, ...]
    collateral: Mapping[str, datetime]
    hsm: Mapping[str, HSMState]

    @classmethod
    def read(cls, tx: Tx, settings: Settings, at: datetime) -> Facts:
        """Read them, as they are at *at*.

        Raises:
            MemoryUnusable: What the keys remember cannot be read.
        """
        memory = MemoryFile.of(settings).read()
        page = tx.audit.page(None, 1).items
        backups = tx.audit.page(None, 1, AuditFilter(action="database_backed_up")).items
        return cls(
            issuers=tuple(tx.issuers.all()),
            lost=lost_log_keys(tx, settings, memory.ended if memory is not None else ()),
            newest=page[0][1].timestamp if page else None,
            backed_up=backups[0][1].timestamp if backups else None,
            configurations={
                (cluster, role): Sources.of(tx, role, cluster, None, settings)
                for cluster, role in tx.machines.roles_in_use()
            },
            keks=tx.configurations.kek_ids(),
            collateral=tx.collateral.expiring(),
            hsm=tx.hsm.states(at),
        )


NOTHING: Final = Facts(
    issuers=(), lost=None, newest=None, backed_up=None, configurations={}, keks=(), collateral={}, hsm={}
)
"""What a database says that is still to be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What an inspection is about.

    Args:
        settings: Of the service.
        listen: Where it would listen.
        at: Now.
        facts: None where the database cannot be read, or must be migrated first.
    """

    settings: Settings
    listen: Listen
    at: datetime
    facts: Facts | None = None


ok: Final = partial(Finding, level=Level.OK)
warning: Final = partial(Finding, level=Level.WARNING)
failed: Final = partial(Finding, level=Level.FAILED)
