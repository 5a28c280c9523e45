"""What a machine asks: a code for its console, and the token once somebody has read it there (RFC 8628 §3).

Whoever asks proves nothing, so each step is bounded before it is done:

1. requests of an address, as for everybody;
2. codes of a network and of all, in ten minutes;
3. codes that wait at once.

The token says that an operator stood at the console. No configuration is released on it, here or elsewhere.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final

import structlog
from fastapi import HTTPException, Request, Response

from attestation.audit import AuditEvent
from attestation.errors import RateLimited
from attestation.machines.console_code import HALF, LETTERS, PATTERN
from attestation.store import ConsoleCode, RateLimit, Tx
from attestation_service.border import limits
from attestation_service.border.networks import network_of, site_of
from attestation_service.console import forms
from attestation_service.console.forms import Refused
from attestation_service.context.request import Origin, origin_of
from attestation_service.entitlements.config_tokens import TOKEN_BYTES, sha256
from attestation_service.resources import Resources, resources_of

log = structlog.get_logger("attestation_service.console")

CODE_SECONDS: Final = 900
"""So long a code is good: time to walk to a rack, and no more. Then the machine shows another one."""
INTERVAL_SECONDS: Final = 10
TOKEN_SECONDS: Final = 600
KEPT: Final = timedelta(hours=1)
"""For so long after its end a code that nobody decided about answers `console-code-expired`."""
OPEN_AT_ONCE: Final = 1_000
CODES_OF_NETWORK: Final = RateLimit(requests=30, per_seconds=600)
CODES_OF_SITE: Final = RateLimit(requests=limits.SITE * 30, per_seconds=600)
"""Of one /48 of IPv6: it has 65,536 networks, and twenty of them would keep all others from codes."""
CODES_OF_ALL: Final = RateLimit(requests=600, per_seconds=600)
POLLS: Final = RateLimit(requests=4, per_seconds=2 * INTERVAL_SECONDS)
"""Two in each interval: the library of Talos sends each poll twice, because it does not know how we want its name."""
GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
PAGE: Final = "/device"
_TRIES: Final = 4
_Handler = Callable[[dict[str, str], Resources, Origin, datetime], Awaitable[Response]]


async def page(request: Request) -> Response:
    """Say to whoever follows the link on a console what to do.

    It does nothing by itself: a link that somebody sends would do it too (RFC 8628 §5.4).
    """
    res = resources_of(request.scope)
    demand_on(res)
    code = request.query_params.get("user_code", "")
    named = code if re.fullmatch(PATTERN, code) else "CODE"
    return Response(
        "A machine waits for somebody who stands before its console.\n\n"
        "If that is you, and the console shows this very code, log in as an operator and type\n\n"
        f"    attestation console approve {named}\n\n"
        "If somebody sent you here, deny it: attestation console deny " + named + "\n",
        media_type="text/plain",
    )


async def code(request: Request) -> Response:
    """Give a machine a code to show on its console.

    Form of RFC 8628 §3.1: `client_id`, and of `uuid`, `mac`, `serial`, `hostname` what it knows of itself.
    """
    return await _answered(request, _code)


async def token(request: Request) -> Response:
    """Give a machine its token once its code is approved.

    Form of RFC 8628 §3.4: `grant_type`, `device_code`, `client_id`.
    """
    return await _answered(request, _token)


def demand_on(res: Resources) -> None:
    """Be as if there were no such route where console approval is off.

    Raises:
        HTTPException: 404.
    """
    if not res.settings.console_approval:
        raise HTTPException(404, "Not Found")


async def _answered(request: Request, handle: _Handler) -> Response:
    res, origin = resources_of(request.scope), origin_of(request.scope)
    demand_on(res)
    at = res.clock.now()
    counted = limits.of_client(res.settings, origin.address)
    try:
        await res.store.read(lambda tx: limits.check(tx, counted, at))
        await res.store.write(lambda tx: limits.take(tx, counted, at))
        return await handle(await forms.read(request), res, origin, at)
    except Refused as e:
        log.info("console.refused", code=e.code, why=e.why)
        return e.response()
    except RateLimited as e:
        return Refused("temporarily_unavailable", str(e), 429, e.retry_after_seconds).response()


async def _code(form: dict[str, str], res: Resources, origin: Origin, at: datetime) -> Response:
    client = forms.shown(form.get("client_id"))
    if client is None:
        raise Refused("invalid_request", "client_id is needed")
    hints = {name: forms.shown(form.get(name)) for name in ("uuid", "mac", "serial")}
    if not any(hints.values()):
        raise Refused(
            "invalid_request",
            "uuid, mac or serial is needed: with Talos, talos.config.oauth.extra_variable=uuid",
        )
    of_codes = _of_codes(origin) if res.settings.rate_limits else ()
    device_code = secrets.token_urlsafe(TOKEN_BYTES)

    def work(tx: Tx) -> str:
        limits.check(tx, of_codes, at)
        if tx.console_codes.count_open(at) >= OPEN_AT_ONCE:
            raise Refused("temporarily_unavailable", "too many codes wait", 503, CODE_SECONDS)
        limits.take(tx, of_codes, at)
        for _ in range(_TRIES):
            user_code = _user_code()
            added = tx.console_codes.add(
                ConsoleCode(
                    user_code=user_code,
                    device_sha256=sha256(device_code),
                    client_id=client,
                    hw_uuid=hints["uuid"],
                    hw_mac=hints["mac"],
                    hw_serial=hints["serial"],
                    hostname=forms.shown(form.get("hostname")),
                    source=origin.address,
                    asked_at=at,
                    expires_at=at + timedelta(seconds=CODE_SECONDS),
                    kept_until=at + timedelta(seconds=CODE_SECONDS) + KEPT,
                )
            )
            if added:
                return user_code
        raise Refused("temporarily_unavailable", "no code is free", 503, INTERVAL_SECONDS)

    user_code = await res.store.write(work)
    log.info("console.asked", user_code=user_code, client=origin.address)
    where = res.settings.service_url + PAGE
    return forms.answer(
        {
            "device_code": device_code,
            "user_code": user_code,
            "verification_uri": where,
            "verification_uri_complete": f"{where}?user_code={user_code}",
            "expires_in": CODE_SECONDS,
            "interval": INTERVAL_SECONDS,
        }
    )


async def _token(form: dict[str, str], res: Resources, origin: Origin, at: datetime) -> Response:
    if form.get("grant_type") != GRANT:
        raise Refused("unsupported_grant_type", f"grant_type={GRANT} is needed")
    if "device_code" not in form or "client_id" not in form:
        raise Refused("invalid_request", "device_code and client_id are needed")
    digest = sha256(form["device_code"])

    def look(tx: Tx) -> ConsoleCode:
        return _good(tx.console_codes.of_device(digest), form, at)

    # Most polls end here, without a lock: nobody has decided yet.
    found = await res.store.read(look)
    if found.state == "pending":
        polls = (limits.Counted(f"console-poll:{found.user_code}", POLLS, "polls"),)
        try:
            await res.store.read(lambda tx: limits.check(tx, polls, at))
        except RateLimited:
            raise Refused("slow_down", f"poll every {INTERVAL_SECONDS} seconds") from None
        await res.store.write(lambda tx: limits.take(tx, polls, at))
        raise Refused("authorization_pending", "nobody at the console has approved the code yet")
    access_token = secrets.token_urlsafe(TOKEN_BYTES)

    def give(tx: Tx) -> None:
        approved = look(tx)
        if not tx.console_codes.give_token(
            digest,
            sha256(access_token),
            until=at + timedelta(seconds=TOKEN_SECONDS),
            source=origin.address,
            at=at,
        ):
            raise Refused("invalid_grant", "there was a token for this code")
        tx.audit.append(
            AuditEvent(
                operator_cn="machine",
                action="console_token",
                detail=f"code {approved.user_code}, which {approved.source} asked for",
                source_ip=origin.address,
            ),
            at,
        )

    await res.store.write(give)
    return forms.answer({"access_token": access_token, "token_type": "Bearer", "expires_in": TOKEN_SECONDS})


def _good(found: ConsoleCode | None, form: dict[str, str], at: datetime) -> ConsoleCode:
    """Return the code that a machine polls for, if a token may still come of it.

    Raises:
        Refused: Unknown, another client's, refused, expired, or used.
    """
    if found is None or found.client_id != forms.shown(form["client_id"]):
        raise Refused("invalid_grant", "no such device_code of this client")
    if found.token_sha256 is not None:
        raise Refused("invalid_grant", "there was a token for this code")
    if found.state == "denied":
        raise Refused("access_denied", "an operator denied the code")
    if at >= found.expires_at:
        raise Refused("expired_token", "the code has expired")
    return found


def _user_code() -> str:
    letters = "".join(secrets.choice(LETTERS) for _ in range(2 * HALF))
    return f"{letters[:HALF]}-{letters[HALF:]}"


def _of_codes(origin: Origin) -> limits.Limits:
    site = site_of(origin.address)
    of_site = (
        (limits.Counted(f"console-code:{site}", CODES_OF_SITE, "codes for this site"),)
        if site is not None
        else ()
    )
    return (
        *of_site,
        limits.Counted(
            f"console-code:{network_of(origin.address)}", CODES_OF_NETWORK, "codes for this network"
        ),
        limits.Counted("console-code", CODES_OF_ALL, "codes"),
    )
