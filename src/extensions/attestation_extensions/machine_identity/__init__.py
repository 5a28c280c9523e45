"""The service as an OpenID issuer for its machines: who is attested now gets a token that others verify.

A token lives ten minutes, for one audience of the deployment's list, and is bound to a key of the machine's TPM. Others
find the issuer by discovery and verify with its key set; `status/{jti}` and `revoked` say what ended before its time.
"""

# Algorithms for: machine-token
from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import Field, field_validator
from sqlalchemy.orm import DeclarativeBase

from attestation.errors import Conflict, KeyURIInvalid, NotAuthentic, RateLimited, RequestInvalid
from attestation.extension import (
    AttestationExtension,
    AttestedMachine,
    Caller,
    Confirm,
    Context,
    Event,
    Handler,
    KeyURI,
    Migrations,
    NodeEvent,
    NoSettings,
    OutboxEvent,
    QueryTable,
    Reply,
    Router,
    Status,
    Trust,
    Tx,
)
from attestation_extensions.machine_identity import tokens, wire
from attestation_extensions.machine_identity.audiences import Audience, parse_audiences
from attestation_extensions.machine_identity.keys import JWKS_SECONDS, OVERLAP, JWSAlgorithm, Keys
from attestation_extensions.machine_identity.records import (
    TOKENS,
    Issued,
    KeyRow,
    Records,
    StoredKey,
    TokenRow,
)

PREFIX: Final = "/api/v1/identity"
HOUR: Final = timedelta(hours=1)
ENDING: Final[Sequence[Event]] = (
    NodeEvent.LOCKED,
    NodeEvent.REJECTED,
    NodeEvent.DECOMMISSIONED,
    NodeEvent.WIPED,
    NodeEvent.ROLE_CHANGED,
    NodeEvent.ATTESTATION_FAILED,
)
"""What ends the tokens that a machine was given before."""


class AudienceForbidden(NotAuthentic):
    """No token is made for this audience, or not for this machine: the caller is not told which."""

    code = "audience-forbidden"


class IdentitySettings(NoSettings):
    """`ITL_EXT_MACHINE_IDENTITY_…`."""

    audiences: Mapping[str, Audience]
    """Who tokens may be made for, in the words of `audiences`."""
    key: KeyURI
    """URI of the first key that signs; it is made where there is none, and those after it lie beside it."""
    algorithm: JWSAlgorithm = "ES256"
    """Of keys that are made: P-256 for ES256, RSA-4096 for RS256."""
    issuer: str | None = None
    """`iss`, an https URL; without one, that of the service and the prefix of the extension."""
    lifetime_seconds: int = Field(default=600, ge=60, le=3600)
    """How long a token is good."""
    tokens_per_hour: int = Field(default=60, ge=1, le=3600)
    """How many tokens one machine may have within any hour."""

    @field_validator("audiences", mode="before")
    @classmethod
    def _audiences(cls, text: str) -> Mapping[str, Audience]:
        return parse_audiences(text)

    @field_validator("issuer")
    @classmethod
    def _issuer(cls, text: str) -> str:
        parts = urlsplit(text)
        # Discovery 1.0 §3: https, and nothing behind the path. Loopback is for trials.
        if parts.scheme != "https" and not (
            parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost")
        ):
            raise ValueError("an https URL is needed")
        if not parts.hostname or parts.query or parts.fragment or "@" in parts.netloc or text.endswith("/"):
            raise ValueError("a URL without user, query, fragment and slash at its end is needed")
        return text


class Extension(AttestationExtension):
    """The extension."""

    contract = 1
    name = "machine_identity"
    version = "1.0.0"
    description = "Identity tokens for attested machines: the service as their OpenID issuer."
    migrations = Migrations(scripts="attestation_extensions.machine_identity:revisions", head="0002")
    prefixes = (PREFIX,)
    cli_groups = ("identity",)
    Settings = IdentitySettings

    settings: IdentitySettings

    def get_models(self) -> Sequence[type[DeclarativeBase]]:
        """Return the tables."""
        return (KeyRow, TokenRow)

    def get_query_tables(self) -> Sequence[QueryTable]:
        """Let operators look up which tokens were issued."""
        about = {
            "jti": "The number of the token",
            "machine_id": "Whose it is",
            "audience": "For whom",
            "role": "Its role when it was issued",
            "cluster_id": "Its cluster when it was issued",
            "issued_at": "When it was issued",
            "expires_at": "Until when it is good",
            "revoked_at": "When it was ended",
        }
        what = "Identity tokens that machines were given; never the tokens"
        return (QueryTable(name="MachineTokens", statement=TOKENS, description=what, columns=about),)

    def get_subscriptions(self) -> Mapping[Event | str, Handler]:
        """End the tokens of a machine that is no longer what they say."""
        return dict.fromkeys(ENDING, self.end)

    def get_router(self) -> Router:
        """Return the routes."""
        router = Router()
        router.add("POST /token", "machine", self.token, AudienceForbidden, RateLimited)
        router.add("GET /.well-known/openid-configuration", "public", self.configuration)
        router.add("GET /jwks.json", "public", self.jwks)
        router.add("GET /status/{jti}", "public", self.status)
        router.add("GET /revoked", "public", self.revoked)
        router.add("GET /audiences", "read", self.audiences)
        router.add("GET /keys", "read", self.keys)
        router.add("POST /keys/rotate", "act", self.rotate, Conflict, RequestInvalid)
        return router

    async def on_startup(self, context: Context) -> None:
        """Open the key, and make the first one where there is none."""
        await super().on_startup(context)
        self._keys = Keys(
            context.store,
            uri=self.settings.key,
            algorithm=self.settings.algorithm,
            options=replace(context.key_options, allow_unencrypted=True),
            lifetime=self._lifetime,
        )
        await self._keys.begin(context.clock.now())

    async def on_shutdown(self) -> None:
        """Let go of the keys."""
        await asyncio.to_thread(self._keys.close)

    @property
    def _issuer(self) -> str:
        return self.settings.issuer or f"{self.context.service_url.rstrip('/')}{PREFIX}"

    @property
    def _lifetime(self) -> timedelta:
        return timedelta(seconds=self.settings.lifetime_seconds)

    # Machines

    async def token(self, request: wire.TokenRequest, machine: AttestedMachine) -> wire.MachineToken:
        """Give the machine a token for one audience.

        It lives ten minutes by default, and names machine, role and cluster as they are now.

        Raises:
            AudienceForbidden: Not for this audience, or not this machine.
            RateLimited: It had too many within the hour.
        """
        # 1. Only for audiences that the deployment listed. A token for any other could deceive its reader.
        audience = self.settings.audiences.get(request.audience)
        if audience is None or not audience.is_for(machine.role, machine.cluster_id):
            raise AudienceForbidden("no token for this audience")
        at = self.context.clock.now()
        bound = await self.context.store.read(lambda tx: tokens.bound_key(tx, machine, at))
        claims = tokens.claims_for(
            machine, issuer=self._issuer, audience=audience.name, bound=bound, at=at, lifetime=self._lifetime
        )
        key = await self._keys.signing(at)
        signed = await asyncio.to_thread(key.sign, claims)
        issued = Issued(
            jti=claims["jti"],
            machine_id=machine.machine_id,
            audience=audience.name,
            role=machine.role.value,
            cluster_id=machine.cluster_id,
            kid=key.kid,
            issued_at=at,
            expires_at=at + self._lifetime,
        )

        def work(tx: Tx) -> None:
            # 2. It still is what the token says. A lock may have come since its quote was judged.
            machine.still(tx)
            records = tx.of(Records)
            # 3. Not more than so many. Each is a row here and an entry of the audit log.
            records.forget(at - HOUR, at)
            given, first = records.issued_since(machine.machine_id, at - HOUR)
            if given >= self.settings.tokens_per_hour and first is not None:
                raise RateLimited(
                    "the machine had too many tokens within the hour",
                    retry_after_seconds=int((first + HOUR - at).total_seconds()) + 1,
                )
            records.add(issued)
            tx.audit.append(
                machine.event("identity_token", detail=f"audience {audience.name}, jti {issued.jti}"), at
            )

        await self.context.store.write(work)
        return wire.MachineToken(token=signed, expires_at=issued.expires_at)

    # Consumers

    async def configuration(self) -> Reply:
        """Show where the keys are: OpenID Connect Discovery 1.0."""
        return _json(tokens.document(self._issuer))

    async def jwks(self) -> Reply:
        """Show the keys that tokens are verified with (RFC 7517)."""
        published = await self._keys.published(self.context.clock.now())
        return _json({"keys": [dict(each.key.jwk) for each in published]})

    async def status(self, jti: str) -> wire.TokenStatus:
        """Say whether a token counts now; who asks has verified its signature.

        It does not count once its machine was locked, revoked or rejected, has another role or cluster, or is not
        verified any more; nor where its key was withdrawn.
        """
        at = self.context.clock.now()
        issued, active = await self.context.store.read(lambda tx: _looked_up(tx, jti, at))
        return wire.TokenStatus(
            active=active, expires_at=issued.expires_at if issued is not None and active else None
        )

    async def revoked(self) -> wire.RevokedTokens:
        """List the tokens that ended before their time, for consumers that would rather not ask for each."""
        at = self.context.clock.now()
        found, more = await self.context.store.scan(lambda tx: tx.of(Records).revoked(at))
        listed = [wire.RevokedToken(jti=jti, expires_at=until) for jti, until in found]
        return wire.RevokedTokens(revoked=listed, truncated=more)

    # Operators

    async def audiences(self) -> wire.AudienceList:
        """List the audiences, and who may have tokens for them."""
        return wire.AudienceList(
            issuer=self._issuer,
            audiences=[
                wire.AudienceDetail(
                    audience=each.name,
                    roles=sorted(each.roles) if each.roles is not None else None,
                    clusters=sorted(each.clusters) if each.clusters is not None else None,
                )
                for each in self.settings.audiences.values()
            ],
        )

    async def keys(self) -> wire.IdentityKeys:
        """List the keys that are published."""
        return await self._listed(self.context.clock.now())

    async def rotate(self, request: wire.RotateIdentityKey, who: Caller) -> wire.IdentityKeys:
        """Exchange the key that signs.

        The next one is published at once and signs a quarter of an hour later; the one before stays published until
        nothing that it signed is good any more. With `withdraw` the next one signs at once, and nothing else counts.

        Raises:
            Conflict: Another operator exchanges it at this moment, or a key is waiting to sign.
            RequestInvalid: The key's URI leaves no room for others.
        """
        at = self.context.clock.now()
        before = await self.context.store.read(lambda tx: tx.of(Records).all_keys())
        number = before[-1].number + 1
        try:
            made = await self._keys.prepare(number)
        except KeyURIInvalid as e:
            raise RequestInvalid(f"the key cannot be exchanged: {e}") from None
        key = StoredKey(
            number=number, kid=made.kid, published_at=at, signs_at=at if request.withdraw else at + OVERLAP
        )
        made.close()

        def work(tx: Tx) -> None:
            records = tx.of(Records)
            newest = records.all_keys()[-1]
            if newest.number >= number or (newest.signs_at > at and not request.withdraw):
                raise Conflict("a key is being exchanged already; `keys` shows which")
            records.add_key(key)
            if request.withdraw:
                records.withdraw_before(number, at)
            how = ", the former withdrawn" if request.withdraw else ""
            tx.audit.append(who.event("identity_key_rotated", detail=f"number {number}, {key.kid}{how}"), at)

        await self.context.store.write(work)
        return await self._listed(at)

    async def _listed(self, at: datetime) -> wire.IdentityKeys:
        return wire.IdentityKeys(
            keys=[
                wire.IdentityKey(
                    number=each.stored.number,
                    kid=each.key.kid,
                    algorithm=each.key.algorithm,
                    published_at=each.stored.published_at,
                    signs_at=each.stored.signs_at,
                    signs=each.signs,
                )
                for each in await self._keys.published(at)
            ]
        )

    # Events

    async def end(self, event: OutboxEvent) -> Confirm | None:
        """End what the machine was given until then; what it proves afterwards is its own."""
        machine_id = event.machine_id
        if machine_id is None:
            return None
        return lambda tx: tx.of(Records).revoke(machine_id, event.created_at)


def _looked_up(tx: Tx, jti: str, at: datetime) -> tuple[Issued | None, bool]:
    """Return what was noted of a token, and whether it counts at *at*."""
    issued = tx.of(Records).get(jti)
    if issued is None or issued.revoked_at is not None or issued.expires_at <= at:
        return issued, False
    # A withdrawn key may be in other hands by now.
    if any(each.kid == issued.kid and each.withdrawn_at is not None for each in tx.of(Records).all_keys()):
        return issued, False
    # The event that ends it may not have been handled yet: what the machine is now decides as well.
    machine = tx.machines.by_id(issued.machine_id)
    return issued, (
        machine is not None
        and machine.status is Status.ATTESTED
        and machine.trust(at) is Trust.VERIFIED
        and machine.role == issued.role
        and machine.cluster_id == issued.cluster_id
    )


def _json(content: Mapping[str, Any]) -> Reply:
    return Reply(
        body=json.dumps(content, separators=(",", ":")).encode(),
        media_type="application/json",
        headers={"Cache-Control": f"public, max-age={JWKS_SECONDS}"},
    )
