"""By which keys the API servers of our clusters sign tokens: named in the settings, read from a file, or asked for.

A key set that is asked for is fetched in the background; no request waits for it but one with a key that nobody knows,
and that at most every 30 seconds. While an API server is away its last good keys are honoured for a day; one that was
away at the start comes by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from random import SystemRandom
from typing import Final

import httpx
import structlog

from attestation.clock import Clock
from attestation.errors import IdentityProviderUnavailable, Unauthenticated
from attestation_service.auth import access_token, service_account
from attestation_service.auth.provider_keys import ProviderAnswerInvalid, SigningKeys, parse_jwks
from attestation_service.context.identity import Controller
from attestation_service.context.request import Origin
from attestation_service.keys import crypto_policy
from attestation_service.kubernetes_clusters import ClusterRule
from attestation_service.settings import Settings, SettingsInvalid

log = structlog.get_logger("attestation_service.auth")

FETCH_SECONDS: Final = 5.0
MAX_DOCUMENT_BYTES: Final = 262_144
REFETCH_SECONDS: Final = 30
EVERY_SECONDS: Final = 300.0
RETRY_SECONDS: Final = 5.0
LAST_GOOD_HOURS: Final = 24
FAILURES: Final = (httpx.HTTPError, httpx.InvalidURL, ProviderAnswerInvalid, TimeoutError, OSError)
"""What may come of asking for keys."""


class ClusterKeys:
    """The keys of one cluster.

    Args:
        rule: Where they are.
        settings: Which algorithms are allowed.
        clock: Decides how old keys are.
        transport: How the API server is reached; tests hold their own.

    Raises:
        SettingsInvalid: Keys that should be here cannot be read.
    """

    def __init__(
        self,
        rule: ClusterRule,
        settings: Settings,
        clock: Clock,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.rule: Final = rule
        self._clock = clock
        self._policy = crypto_policy.of(settings)
        self._keys: SigningKeys | None = None
        self._read_at: datetime | None = None
        self._asked_at: datetime | None = None
        self._flight: asyncio.Task[None] | None = None
        self._background: asyncio.Task[None] | None = None
        self._http: httpx.AsyncClient | None = None
        if rule.jwks_url is None:
            try:
                self._keep(self._here())
            except FAILURES as e:
                raise SettingsInvalid(f"ITL_KUBERNETES_CLUSTERS: {rule.cluster_id}: {_why(e)}") from None
            return
        try:
            trust = ssl.create_default_context(cafile=rule.ca_file)
        except OSError as e:  # ssl.SSLError too: a file without certificates
            raise SettingsInvalid(
                f"ITL_KUBERNETES_CLUSTERS: {rule.cluster_id}: cannot read {rule.ca_file}: {type(e).__name__}"
            ) from None
        self._http = httpx.AsyncClient(
            transport=transport,
            verify=trust,
            timeout=FETCH_SECONDS,
            follow_redirects=False,
            trust_env=False,
            headers={"Accept": "application/jwk-set+json, application/json", "Accept-Encoding": "identity"},
        )

    def start(self) -> None:
        """Begin to renew keys in the background, where they may change; nothing that is away stops the start."""
        if self.rule.jwks is None:
            self._background = asyncio.create_task(self._renew_for_ever())

    async def aclose(self) -> None:
        """End the background task and the connections."""
        for task in (self._background, self._flight):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        if self._http is not None:
            await self._http.aclose()

    async def keys(self, key_id: str | None, at: datetime) -> SigningKeys | None:
        """Return the keys that are good at *at*, asked for again where none of them is *key_id*; None: not known."""
        found = self._usable(at)
        if self.rule.jwks is None and (found is None or not found.knows(key_id)):
            asked = self._asked_at
            # A clock that was set back must not keep us from asking.
            if asked is None or not timedelta() <= at - asked < timedelta(seconds=REFETCH_SECONDS):
                self._asked_at = at
                await self.refresh()
            elif self._flight is not None:
                await self.refresh()
            found = self._usable(at)
        return found

    async def refresh(self) -> None:
        """Read or fetch the keys now; a failure is logged, never raised."""
        if self._flight is None:
            self._flight = asyncio.create_task(self._renew())
            self._flight.add_done_callback(self._landed)
        # One who gives up waiting must not end the flight of the others.
        await asyncio.shield(self._flight)

    def _landed(self, _flight: asyncio.Task[None]) -> None:
        self._flight = None

    def _usable(self, at: datetime) -> SigningKeys | None:
        fresh = self._read_at is not None and at - self._read_at <= timedelta(hours=LAST_GOOD_HOURS)
        # What stands in the settings does not age.
        return self._keys if fresh or self.rule.jwks is not None else None

    async def _renew_for_ever(self) -> None:
        while True:
            try:
                await self.refresh()
            except Exception as e:  # noqa: BLE001 -- the border of this task: it must not end
                log.error("cluster.refresh_failed", kind=type(e).__name__)  # noqa: TRY400 -- may quote what was fetched
            wait = EVERY_SECONDS if self._keys is not None else RETRY_SECONDS
            await asyncio.sleep(wait * SystemRandom().uniform(0.75, 0.95))

    async def _renew(self) -> None:
        try:
            found = await (self._fetch() if self._http is not None else asyncio.to_thread(self._here))
        except FAILURES as e:
            log.warning("cluster.keys_unavailable", cluster_id=self.rule.cluster_id, reason=_why(e))
            return
        if self._keys is None or found.by_id.keys() != self._keys.by_id.keys():
            key_ids = sorted(str(key_id) for key_id in found.by_id)
            log.info(
                "cluster.keys", cluster_id=self.rule.cluster_id, kids=key_ids, left_out=list(found.left_out)
            )
        self._keep(found)

    def _keep(self, keys: SigningKeys) -> None:
        self._keys, self._read_at = keys, self._clock.now()

    def _here(self) -> SigningKeys:
        """Read the keys that stand in the settings or a file."""
        if self.rule.jwks is not None:
            return parse_jwks(json.dumps(self.rule.jwks).encode(), self._policy)
        assert self.rule.jwks_file is not None
        with Path(self.rule.jwks_file).open("rb") as file:
            return parse_jwks(file.read(MAX_DOCUMENT_BYTES), self._policy)

    async def _fetch(self) -> SigningKeys:
        """Return the API server's keys as they are now: 200, at most 256 KiB, within five seconds."""
        assert self._http is not None
        assert self.rule.jwks_url is not None
        async with asyncio.timeout(FETCH_SECONDS), self._http.stream("GET", self.rule.jwks_url) as response:
            if response.status_code != httpx.codes.OK:
                raise ProviderAnswerInvalid(f"answered {response.status_code}")
            data = bytearray()
            async for chunk in response.aiter_raw():
                data += chunk
                if len(data) > MAX_DOCUMENT_BYTES:
                    raise ProviderAnswerInvalid(f"answered more than {MAX_DOCUMENT_BYTES} bytes")
        return parse_jwks(bytes(data), self._policy)


def _why(error: BaseException) -> str:
    return str(error) if isinstance(error, ProviderAnswerInvalid) else type(error).__name__


class Clusters:
    """All clusters, and whom their tokens name.

    Args:
        settings: Which clusters there are.
        clock: See `ClusterKeys`.
        transport: See `ClusterKeys`.
    """

    def __init__(
        self, settings: Settings, clock: Clock, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._all: Sequence[ClusterKeys] = [
            ClusterKeys(rule, settings, clock, transport=transport) for rule in settings.clusters
        ]

    async def start(self) -> None:
        """Begin to renew keys."""
        for each in self._all:
            each.start()

    async def aclose(self) -> None:
        """End what `start` began."""
        for each in self._all:
            await each.aclose()

    async def controller(self, token: str, origin: Origin, at: datetime) -> Controller:
        """Return the controller that *token* names.

        Raises:
            Unauthenticated: It proves nothing.
            Forbidden: It names a ServiceAccount without any duty here, or an agent's and no node.
            IdentityProviderUnavailable: The keys of a cluster that it may be of are not known now.
        """
        unverified = service_account.parse(token)
        issuer = service_account.issuer_of(unverified)
        # Clusters often have the same issuer: whose key signed it says whose it is.
        candidates = [each for each in self._all if each.rule.issuer == issuer]
        away = False
        proved = []
        for each in candidates:
            keys = await each.keys(unverified.key_id, at)
            if keys is None:
                away = True
                continue
            with contextlib.suppress(Unauthenticated):
                keys.check(unverified)
                proved.append(each)
        if not proved and away:
            raise IdentityProviderUnavailable("the keys of this cluster are not known now; try again shortly")
        if len(proved) != 1:
            # Of two clusters with one key nobody can say whose controller it is.
            raise Unauthenticated("the token is of no cluster that is known here")
        rule = proved[0].rule
        bearer = service_account.judge(access_token.claims_of(unverified.payload), rule, at)
        return Controller(
            cluster=rule,
            duty=bearer.duty,
            service_account=bearer.service_account,
            pod=bearer.pod,
            source=origin.address,
            node=bearer.node,
        )
