"""Operators by OpenID Connect: tokens of one identity provider, verified here (DELIVERY-AND-OPERATORS §9).

The provider is asked for two documents, its metadata and its keys, by a task in the background. No request waits
for it, except where a token names a key that nobody knows yet: then once, at most every 30 seconds, one flight
for all who wait. While it is down the last good keys are honoured for a day; after that nobody can be judged.
Verified tokens are not remembered: what was revoked here or expired must count at the next request.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from datetime import datetime, timedelta
from random import SystemRandom
from typing import Final, Self
from urllib.parse import SplitResult, urlsplit

import httpx
import structlog

from attestation.clock import Clock
from attestation.errors import IdentityProviderUnavailable
from attestation_service.auth import access_token
from attestation_service.auth.access_token import Rules
from attestation_service.auth.provider_keys import ProviderAnswerInvalid, SigningKeys, document, parse_jwks
from attestation_service.context.identity import Duty, Method, Operator
from attestation_service.context.request import Origin
from attestation_service.keys import crypto_policy
from attestation_service.settings import Settings, SettingsInvalid

log = structlog.get_logger("attestation_service.auth")

DISCOVERY_PATH: Final = "/.well-known/openid-configuration"
FETCH_SECONDS: Final = 5.0
"""For one document, from the first byte sent to the last byte read."""
MAX_DOCUMENT_BYTES: Final = 262_144
REFETCH_SECONDS: Final = 30
"""How often a token with an unknown key may make us ask."""
RETRY_SECONDS: Final = 30.0
RETRY_WITHOUT_KEYS_SECONDS: Final = 5.0
LAST_GOOD_HOURS: Final = 24
FAILURES: Final = (httpx.HTTPError, httpx.InvalidURL, ProviderAnswerInvalid, TimeoutError, OSError)
"""What may come of asking the provider."""
PORTS: Final = {"https": 443, "http": 80}


class OIDC:
    """One identity provider: its keys, and whom its tokens name.

    Args:
        settings: Issuer, audience, clients, roles.
        clock: Decides how old keys are.
        transport: How the provider is reached; tests hold their own.

    Raises:
        SettingsInvalid: `ITL_OIDC_CA_FILE` cannot be read.
    """

    def __init__(
        self, settings: Settings, clock: Clock, *, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._issuer = settings.oidc_issuer
        self._every_seconds = settings.oidc_jwks_seconds
        self._rules = rules_of(settings)
        self._crypto_policy = crypto_policy.of(settings)
        self._clock = clock
        self._http = httpx.AsyncClient(
            transport=transport,
            verify=_trust(settings),
            timeout=FETCH_SECONDS,
            follow_redirects=False,
            trust_env=False,
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
        )
        self.said_at: str | None = None
        """What time the provider had when it answered last, as it said (Date)."""
        self._keys: SigningKeys | None = None
        self._fetched_at: datetime | None = None
        self._asked_at: datetime | None = None
        self._failed = False
        self._flight: asyncio.Task[None] | None = None
        self._background: asyncio.Task[None] | None = None

    async def start(self) -> Self:
        """Begin to fetch keys in the background; a provider that is down stops nobody from starting."""
        self._background = asyncio.create_task(self._refresh_for_ever())
        return self

    async def aclose(self) -> None:
        """End the background task and the connections."""
        for task in (self._background, self._flight):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        await self._http.aclose()

    @property
    def stale(self) -> bool:
        """True where there are no keys, or they are older than the interval in which they should be renewed."""
        return self._older_than(timedelta(seconds=self._every_seconds), self._clock.now())

    async def operator(self, token: str, origin: Origin, at: datetime) -> Operator:
        """Return the operator whom *token* names.

        Raises:
            Unauthenticated: It proves nothing, or not now, or not here.
            Forbidden: It names somebody without any duty here.
            IdentityProviderUnavailable: There are no keys to judge it with.
        """
        unverified = access_token.parse(token)
        keys = self._usable(at)
        if keys is None or not keys.knows(unverified.key_id):
            await self._ask_again(at)
            keys = self._usable(at)
            if keys is None:
                raise IdentityProviderUnavailable(
                    "the identity provider's keys are not known; try again shortly"
                )
            if self._failed and not keys.knows(unverified.key_id):
                # It may have rotated its keys while it cannot be reached: neither yes nor no.
                raise IdentityProviderUnavailable(
                    "the token names a key that is not known here, and the identity provider does not answer"
                )
        keys.check(unverified)
        person = access_token.judge(access_token.claims_of(unverified.payload), self._rules, at)
        return Operator(
            cn=person.name,
            sub=person.subject,
            source=origin.address,
            method=Method.OIDC,
            duties=person.duties,
            authenticated_at=person.authenticated_at,
            within=person.within,
        )

    # Keys

    def _usable(self, at: datetime) -> SigningKeys | None:
        return None if self._older_than(timedelta(hours=LAST_GOOD_HOURS), at) else self._keys

    def _older_than(self, age: timedelta, at: datetime) -> bool:
        return self._keys is None or self._fetched_at is None or at - self._fetched_at > age

    async def _ask_again(self, at: datetime) -> None:
        """Fetch, because of a token; whoever comes while somebody does waits for the same answer."""
        if self._flight is None:
            asked_at = self._asked_at
            # A clock that was set back must not keep us from asking.
            if asked_at is not None and timedelta() <= at - asked_at < timedelta(seconds=REFETCH_SECONDS):
                return
            self._asked_at = at
        await self.refresh()

    async def refresh(self) -> None:
        """Fetch the provider's keys now; a failure is remembered and logged, never raised."""
        if self._flight is None:
            self._flight = asyncio.create_task(self._fetch())
            self._flight.add_done_callback(self._landed)
        # One who gives up waiting must not end the flight of the others.
        await asyncio.shield(self._flight)

    def _landed(self, _flight: asyncio.Task[None]) -> None:
        self._flight = None

    async def _refresh_for_ever(self) -> None:
        while True:
            try:
                await self.refresh()
            except Exception as e:  # noqa: BLE001 -- the border of this task: it must not end
                self._failed = True
                log.error("oidc.refresh_failed", kind=type(e).__name__)  # noqa: TRY400 -- may quote what was fetched
            if not self._failed:
                # Sooner than due, so that keys in use are never older, and not all workers at once.
                wait_seconds = self._every_seconds * SystemRandom().uniform(0.75, 0.95)
            else:
                wait_seconds = RETRY_WITHOUT_KEYS_SECONDS if self._keys is None else RETRY_SECONDS
            await asyncio.sleep(min(wait_seconds, self._every_seconds))

    async def _fetch(self) -> None:
        try:
            keys = await self.ask()
        except FAILURES as e:
            self._failed = True
            reason = str(e) if isinstance(e, ProviderAnswerInvalid) else type(e).__name__
            fetched_at = self._fetched_at.isoformat() if self._fetched_at else None
            log.warning(
                "oidc.keys_unavailable",
                issuer=self._issuer,
                reason=reason,
                last_good=fetched_at,
                stale=self.stale,
            )
            return
        recovered = self._failed or self._keys is None
        if self._keys is None or keys.by_id.keys() != self._keys.by_id.keys() or recovered:
            key_ids = sorted(str(key_id) for key_id in keys.by_id)
            log.info("oidc.keys", issuer=self._issuer, kids=key_ids, left_out=list(keys.left_out))
        self._keys, self._fetched_at, self._failed = keys, self._clock.now(), False

    async def ask(self) -> SigningKeys:
        """Return the provider's keys as they are now.

        Raises:
            FAILURES: It does not answer, or says something else than it must.
        """
        return parse_jwks(await self._get(await self._jwks_uri()), self._crypto_policy)

    async def _jwks_uri(self) -> str:
        """Return where the keys are, from the provider's metadata (OpenID Connect Discovery §4)."""
        metadata = document(await self._get(self._issuer.rstrip("/") + DISCOVERY_PATH), "the metadata")
        # Whoever answers must be the issuer, or one realm could speak for another (Discovery §4.3).
        if metadata.get("issuer") != self._issuer:
            raise ProviderAnswerInvalid(
                f"the metadata is of issuer {access_token.shown(metadata.get('issuer'))}, expected {self._issuer}"
            )
        uri = metadata.get("jwks_uri")
        if (
            not isinstance(uri, str)
            or not origin_of_url(uri)
            or origin_of_url(uri) != origin_of_url(self._issuer)
        ):
            raise ProviderAnswerInvalid("jwks_uri is not at the origin of the issuer")
        return uri

    async def _get(self, url: str) -> bytes:
        """Return one document: 200, JSON as it is, at most 256 KiB, within five seconds."""
        async with asyncio.timeout(FETCH_SECONDS), self._http.stream("GET", url) as response:
            self.said_at = response.headers.get("date")
            if response.status_code != httpx.codes.OK:
                raise ProviderAnswerInvalid(f"answered {response.status_code}")
            data = bytearray()
            # Raw: what is compressed unasked cannot swell here, it is just not JSON.
            async for chunk in response.aiter_raw():
                data += chunk
                if len(data) > MAX_DOCUMENT_BYTES:
                    raise ProviderAnswerInvalid(f"answered more than {MAX_DOCUMENT_BYTES} bytes")
            return bytes(data)


def _trust(settings: Settings) -> ssl.SSLContext:
    """Return whom to believe about the provider's name: the CAs of the file, else those of the system."""
    try:
        return ssl.create_default_context(cafile=settings.oidc_ca_file)
    except OSError as e:  # ssl.SSLError too: a file without certificates
        raise SettingsInvalid(
            f"ITL_OIDC_CA_FILE: cannot read {settings.oidc_ca_file}: {type(e).__name__}"
        ) from None


def rules_of(settings: Settings) -> Rules:
    """Return what *settings* demand of a token."""
    return Rules(
        issuer=settings.oidc_issuer,
        audience=settings.oidc_audience,
        clients=frozenset(settings.oidc_clients),
        role_client=settings.oidc_role_client or settings.oidc_audience,
        duties={
            settings.oidc_operator_role: Duty.OPERATOR,
            settings.oidc_viewer_role: Duty.VIEWER,
            settings.oidc_auditor_role: Duty.AUDITOR,
            settings.oidc_metrics_role: Duty.METRICS,
        },
        leeway_seconds=settings.oidc_leeway_seconds,
    )


def origin_of_url(url: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port of *url* (RFC 6454 §4); None for what is no web address."""
    try:
        parts: SplitResult = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in PORTS or not parts.hostname:
        return None
    return parts.scheme, parts.hostname, port or PORTS[parts.scheme]
