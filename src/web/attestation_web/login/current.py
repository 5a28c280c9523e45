"""Who asks now: the session of this request, and the API in their name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, cast

from flask import current_app, g, request

from attestation.client.acts import Acts
from attestation.client.openid.errors import LoginNeeded, ProviderInvalid, ProviderUnreachable
from attestation.errors import Unauthenticated
from attestation_web.login.address import address_of
from attestation_web.login.errors import NotLoggedIn
from attestation_web.login.openid import OpenID
from attestation_web.login.sessions import Session, Sessions
from attestation_web.settings import Settings

if TYPE_CHECKING:
    from attestation.api import WhoAmI
    from attestation.client import OperatorClient

RENEW_BEFORE: Final = timedelta(seconds=30)
EXTENSION: Final = "attestation-web"


@dataclass(frozen=True, slots=True, kw_only=True)
class Web:
    """What the application owns.

    Args:
        settings: What was set.
        service: A client of the service, in nobody's name: `speaking_for` gives it one.
        openid: The provider.
        sessions: Who is here.
        now: Tells the time, UTC.
    """

    settings: Settings
    service: OperatorClient
    openid: OpenID
    sessions: Sessions
    now: Callable[[], datetime]

    @property
    def cookie(self) -> str:
        """Name of the cookie with the session's id; a browser takes `__Host-` only from this very host, over TLS."""
        port = self.settings.url.rpartition(":")[2].strip("/")
        return "__Host-itl-web" if self.settings.is_encrypted else f"itl-web-{port}"


def web() -> Web:
    """Return what the application owns."""
    return cast("Web", current_app.extensions[EXTENSION])


def session() -> Session:
    """Return the session of who asks.

    Raises:
        NotLoggedIn: There is none.
    """
    found = session_or_none()
    if found is None:
        raise NotLoggedIn("nobody is logged in in this browser, or not any more")
    return found


def session_or_none() -> Session | None:
    """Return the session of who asks, or None; looked up once."""
    if "session" not in g:
        here = web()
        # A page that is left open asks for ever: nobody is there.
        g.session = here.sessions.find(
            request.cookies.get(here.cookie, ""), here.now(), by_itself=asks_by_itself()
        )
    return cast("Session | None", g.session)


def asks_by_itself() -> bool:
    """True where a page asks for a part of itself: nobody pressed anything, and nobody sees the rest of the answer."""
    return "HX-Request" in request.headers


def access_token() -> str:
    """Return the access token of who asks, renewed where it is about to end.

    Raises:
        NotLoggedIn: The login has ended.
        ProviderUnreachable, ProviderInvalid: It ended, and the provider does not answer as it should.
    """
    here, mine = web(), session()
    with mine.lock:
        at = here.now()
        if at >= mine.tokens.expires_at - RENEW_BEFORE:
            try:
                mine.tokens = here.openid.renew(mine.tokens)
            except LoginNeeded as e:
                forget()
                raise NotLoggedIn(str(e)) from None
            except (ProviderUnreachable, ProviderInvalid):
                # A token is used to its end: the provider takes new logins with it, and nothing else.
                if at >= mine.tokens.expires_at:
                    raise
        return mine.tokens.access


def address() -> str | None:
    """Return from which address who asks does, where the service is told it."""
    chosen = web().settings
    if not chosen.tell_address:
        return None
    forwarded = request.headers.getlist("X-Forwarded-For")
    return address_of(request.remote_addr, forwarded, chosen.trusted_proxies)


def api(acts: Acts | None = None) -> OperatorClient:
    """Return the API in the name of who asks.

    Args:
        acts: How acts are named; by themselves without.

    Raises:
        NotLoggedIn: Nobody is logged in, or not any more.
    """
    return web().service.speaking_for(access_token(), acts, address=address())


def whoami() -> WhoAmI:
    """Return whom the service takes them for, and what they may; asked once for each access token.

    Raises:
        NotLoggedIn: The service does not take the token any more.
    """
    mine, token = session(), access_token()
    if mine.whoami is None or mine.whoami[0] != token:
        try:
            mine.whoami = token, web().service.speaking_for(token, address=address()).whoami()
        except Unauthenticated as e:
            forget()
            raise NotLoggedIn(f"the service does not accept the login: {e}") from None
    return mine.whoami[1]


def may(right: str | None) -> bool:
    """True where who asks has *right* (`read`, `act`, `audit`); None is the right of everybody who is known."""
    return right is None or right in whoami().rights


def is_fresh(seconds: int | None = None) -> bool:
    """True where they logged in within the last *seconds*, as strongly as is demanded.

    Without *seconds* within `ITL_WEB_REAUTHENTICATION_SECONDS`. A first login may be a weak one, however new it is.
    """
    here, mine = web(), session()
    most = timedelta(seconds=here.settings.reauthentication_seconds if seconds is None else seconds)
    demanded = here.settings.oidc_acr_values.split()
    return here.now() - mine.authenticated_at <= most and (not demanded or mine.acr in demanded)


def forget() -> None:
    """End the session of who asks, here."""
    here = web()
    here.sessions.close(request.cookies.get(here.cookie, ""))
    g.session = None
