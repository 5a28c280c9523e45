"""From a request to what a handler of ACME gets, and from what it returns to an answer.

Each step costs us little until the one before it holds:

1. the form of the JWS, and that it is for this very URL (RFC 8555, 6.4);
2. the nonce is ours and in time: no database yet;
3. the key: that of an account which may ask, or one that comes along where the resource allows that;
4. the signature;
5. the nonce is used up, and the request counted, in one unit. Of two that replay it, one ends here.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

import structlog
from fastapi import HTTPException, Request, Response

from attestation.algorithms import CryptoPolicy
from attestation.audit import AuditEvent
from attestation.errors import AlgorithmForbidden, AttestationError
from attestation.store import ACMEAccount, ACMEOrder, RateLimit, Tx
from attestation_service.acme import nonces
from attestation_service.acme.jose import AccountKey, Signed, parse_key, parse_signed
from attestation_service.acme.problems import Refused, refused
from attestation_service.border import limits
from attestation_service.border.bodies import media_type
from attestation_service.context.request import Origin, origin_of
from attestation_service.resources import Resources, resources_of

log = structlog.get_logger("attestation_service.acme")

JOSE: Final = "application/jose+json"
BASE: Final = "/acme"
WHO: Final = "acme"
"""In place of an operator's name in the audit."""
Keys = Literal["account", "jwk", "either"]
"""What a resource takes: a request of an account, one with the key in it, or both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request that its key signed, for this resource, for the first time.

    Args:
        res: What the process owns.
        origin: Where it came from.
        at: Now.
        in_path: What the path names.
        signed: The JWS.
        key: That signed it.
        account: Whose key that is; None of a request that brought it along.
    """

    res: Resources = field(repr=False)
    origin: Origin
    at: datetime
    in_path: Mapping[str, str]
    signed: Signed = field(repr=False)
    key: AccountKey
    account: ACMEAccount | None

    @property
    def holder(self) -> ACMEAccount:
        """The account that asks; there is one where the resource takes nothing else."""
        assert self.account is not None
        return self.account

    @property
    def is_look(self) -> bool:
        """True of a POST-as-GET (RFC 8555, 6.3)."""
        return not self.signed.payload

    def url(self, path: str) -> str:
        """Return the URL of a resource."""
        return url(self.res, path)

    def count(self, tx: Tx, what: str, of: str, limit: RateLimit) -> None:
        """Count what is kept for long: its client may have many addresses, and make room for more by giving it up.

        Raises:
            RateLimited: The account or machine *of* had so many.
        """
        if not self.res.settings.rate_limits:
            return
        counted = (limits.Counted(f"acme-{what}:{of}", limit, what),)
        limits.check(tx, counted, self.at)
        limits.take(tx, counted, self.at)

    def event(
        self,
        action: str,
        detail: str,
        *,
        machine_id: str | None,
        prev: str | None = None,
        new: str | None = None,
        who: str = WHO,
    ) -> AuditEvent:
        """Return the audit entry of what came of the request."""
        return AuditEvent(
            operator_cn=who,
            action=action,
            machine_id=machine_id,
            prev_state=prev,
            new_state=new,
            detail=detail,
            source_ip=self.origin.address,
        )

    def own_order(self, tx: Tx) -> ACMEOrder:
        """Return the order that the path names, which is the account's.

        Raises:
            Refused: It has none of that name.
        """
        name = self.in_path["order_id"]
        found = tx.acme.order(name) if name.isprintable() else None
        if found is None or found.account_id != self.holder.account_id:
            # Of somebody else's the same: who asks does not learn that it is there.
            raise Refused("malformed", "this account has no such order")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a handler says.

    Args:
        body: An object of JSON; or bytes, as they are; or None.
        status: Of HTTP.
        headers: Beside those of every answer.
        media_type: Of the body.
        links: Values of Link beside the index.
    """

    body: Mapping[str, Any] | bytes | None = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    media_type: str = "application/json"
    links: tuple[str, ...] = ()


Handler = Callable[[Asked], Awaitable[Answer]]
Endpoint = Callable[[Request], Awaitable[Response]]


def url(res: Resources, path: str) -> str:
    """Return the URL of a resource of ACME."""
    return f"{res.settings.service_url}{BASE}/{path}"


def demand_on(res: Resources) -> None:
    """Be as if there were no such route where ACME is off.

    Raises:
        HTTPException: 404.
    """
    if res.settings.acme == "off":
        raise HTTPException(404, "Not Found")


def posted(keys: Keys = "account") -> Callable[[Handler], Endpoint]:
    """Return what makes an endpoint of a handler; see the module."""

    def make(handler: Handler) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            res = resources_of(request.scope)
            demand_on(res)
            at = res.clock.now()
            links = [f'<{url(res, "directory")}>;rel="index"']
            try:
                answer = await handler(await _ask(request, keys, res, at))
                found = Response(
                    answer.body
                    if isinstance(answer.body, bytes) or answer.body is None
                    else json.dumps(answer.body),
                    status_code=answer.status,
                    headers=dict(answer.headers),
                    media_type=answer.media_type if answer.body is not None else None,
                )
                links += answer.links
            except Refused as e:
                log.info("acme.refused", kind=e.kind, detail=e.detail)
                found = e.response()
            except AttestationError as e:
                log.info("acme.refused", code=e.code, detail=str(e))
                found = refused(e).response()
            for link in links:
                found.headers.append("Link", link)
            try:
                found.headers["Replay-Nonce"] = nonces.make(res, at)
            except AttestationError:
                log.warning("acme.no_nonce")  # the answer itself says why
            return found

        endpoint.__name__, endpoint.__doc__ = handler.__name__, handler.__doc__
        return endpoint

    return make


async def _ask(request: Request, keys: Keys, res: Resources, at: datetime) -> Asked:
    origin = origin_of(request.scope)
    counted = limits.of_client(res.settings, origin.address)
    await res.store.read(lambda tx: limits.check(tx, counted, at))
    try:
        signed = await _for_here(request, res)
        nonce = signed.word("nonce")
        end = nonces.end_of(nonce, res, at)
        key, account = await _key(signed, keys, res)
        key.verify(signed)
    except (Refused, AlgorithmForbidden):
        await res.store.write(lambda tx: limits.take(tx, counted, at))
        raise

    # A stranger with a key of their own comes this far; they are counted like everybody.
    def use(tx: Tx) -> bool:
        limits.check(tx, counted, at)
        limits.take(tx, counted, at)
        return tx.acme.use(nonce, end)

    if not await res.store.write(use):
        raise Refused("badNonce", "the nonce was used before")
    return Asked(
        res=res,
        origin=origin,
        at=at,
        in_path=dict(request.path_params),
        signed=signed,
        key=key,
        account=account,
    )


async def _for_here(request: Request, res: Resources) -> Signed:
    """Return the JWS, which is for this resource: what was signed for another one says something else."""
    if media_type(request.headers.get("content-type")) != JOSE:
        raise Refused("unsupportedMediaType", f"Content-Type: {JOSE} is needed")
    signed = parse_signed(await request.body())
    if signed.word("url") != f"{res.settings.service_url}{request.scope['path']}":
        raise Refused("unauthorized", "url in the protected header is not that of this resource")
    return signed


async def _key(signed: Signed, keys: Keys, res: Resources) -> tuple[AccountKey, ACMEAccount | None]:
    policy = CryptoPolicy(res.settings.crypto_policy)
    if ("jwk" in signed.header) == ("kid" in signed.header):
        raise Refused("malformed", "the protected header has either jwk or kid")
    if "jwk" in signed.header:
        if keys == "account":
            raise Refused("malformed", "the protected header names no account (kid)")
        return parse_key(signed.header["jwk"], policy), None
    if keys == "jwk":
        raise Refused("malformed", "the protected header has no jwk")
    prefix = url(res, "accounts/")
    kid = signed.word("kid")
    account = None
    if kid.startswith(prefix):
        account = await res.store.read(lambda tx: tx.acme.account(kid.removeprefix(prefix)))
    if account is None:
        raise Refused("accountDoesNotExist", "there is no such account")
    if account.status != "valid":
        raise Refused("unauthorized", f"the account is {account.status}")
    return parse_key(json.loads(account.jwk), policy), account
