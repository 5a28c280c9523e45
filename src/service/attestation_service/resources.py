"""What a process owns, from the start of the application to its end, and every request uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

import structlog
from fastapi import Depends, Request

from attestation.appraisal import Appraisal, Case, appraise
from attestation.clock import Clock
from attestation.endorsements.firmware import Blocklist
from attestation.extension import QueryTable
from attestation.machines import Event
from attestation.store import Store
from attestation_service.archive import Archive
from attestation_service.authority import Authority
from attestation_service.border.bodies import Parser
from attestation_service.border.life import Life
from attestation_service.border.room import Room
from attestation_service.border.understanding import Understanding
from attestation_service.configs.kept import KeptConfigurations
from attestation_service.context.request import AccessTokens, ClientCertificates, Revocations, ServiceAccounts
from attestation_service.keys.service_keys import KeyHolder, ServiceKeys
from attestation_service.settings import Settings
from attestation_service.storage.chores import Chores
from attestation_service.storage.write_probe import WriteProbe
from attestation_service.transparency import Log
from attestation_service.verifier.cluster_identity import ClusterIdentities
from attestation_service.verifier.collateral import Collateral
from attestation_service.verifier.endorsements import Anchors
from attestation_service.verifier.measurements import Replays

Appraise = Callable[[Mapping[str, Any], Case, datetime], Appraisal]
"""What judges evidence."""

log = structlog.get_logger("attestation_service.extensions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What the lifespan owns and handlers use.

    Args:
        subscribers: The extensions that are told of an event.
        appraise: What judges evidence; another one only to see how long it takes.
        tracing: What makes spans; only their own middleware knows what that is.
        observers: What counts, of extensions.
        provider_keys_stale: Whether keys of the identity provider are missing here, or older than they should be.
        query_tables: What the query language may look up of extensions.
        understanding: What reads queries.
        running: The acts that this process is carrying out, by their tickets' keys.
    """

    settings: Settings
    clock: Clock
    life: Life
    store: Store
    write_probe: WriteProbe
    service_keys: KeyHolder
    transparency: Log
    chores: Chores
    anchors: Anchors
    advisories: Blocklist
    replays: Replays
    room: Room
    parser: Parser
    collateral: Collateral
    archive: Archive
    configurations: KeptConfigurations
    oidc: AccessTokens | None = None
    mtls: ClientCertificates | None = None
    service_accounts: ServiceAccounts | None = None
    cluster_identities: ClusterIdentities | None = None
    authority: Authority | None = None
    revocation: Revocations | None = None
    hsm_answers: object | None = None
    subscribers: Mapping[Event, Sequence[str]] = field(default_factory=dict)
    appraise: Appraise = appraise
    tracing: object | None = None
    observers: Sequence[Callable[[str, Mapping[str, str], float], None]] = ()
    provider_keys_stale: Callable[[], bool] = lambda: False
    query_tables: Sequence[QueryTable] = ()
    understanding: Understanding = field(default_factory=Understanding)
    running: set[bytes] = field(default_factory=set)

    def observe(self, what: str, how: Mapping[str, str], value: float = 1) -> None:
        """Tell those who count that *what* was done."""
        for each in self.observers:
            try:
                each(what, how, value)
            except Exception as e:  # noqa: BLE001 -- a stranger's; it only counts
                log.warning("observer.failed", what=what, kind=type(e).__name__)

    @property
    def signer(self) -> ServiceKeys:
        """What signs for machines and relying parties.

        Raises:
            SignerUnavailable: One of the service's keys is away since the start.
        """
        return self.service_keys.keys


def resources_of(scope: MutableMapping[str, Any]) -> Resources:
    """Return what the lifespan of the application owns."""
    found = scope["app"].state.resources
    assert isinstance(found, Resources)
    return found


# A coroutine, because the framework sends plain functions through its thread pool.
async def resources(request: Request) -> Resources:
    """As `resources_of`, for routes that declare what they need."""
    return resources_of(request.scope)


Res = Annotated[Resources, Depends(resources)]
