"""Logins over TLS, before a provider that this test plays: cookies, time, and what is left of a login that failed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
from flask.testing import FlaskClient
from itsdangerous import timed
from joserfc import jwt
from joserfc.jwk import RSAKey

from attestation_web.app import create_app
from attestation_web.login.current import EXTENSION, Web
from attestation_web.login.openid import LOGIN_SECONDS, LONGEST_TICKET, OpenID
from attestation_web.settings import Settings
from tests.fixtures.in_process import HeldClock
from tests.fixtures.over_httpx import answering
from tests.fixtures.web import SETTINGS, URL
from tests.unit.client.test_client import problem

ISSUER = str(SETTINGS["oidc_issuer"])
KEY = RSAKey.generate_key(2048, {"use": "sig", "alg": "RS256", "kid": "one"})
WHO = {"name": "anna", "subject": "s-1", "method": "oidc", "roles": ["operator"], "rights": ["read", "act"]}


class Provider:
    """Answers as a provider does; `claims` replaces members of its ID tokens."""

    def __init__(self, clock: HeldClock) -> None:
        self._clock = clock
        self.nonce = ""
        self.claims: dict[str, Any] = {}
        self.asked: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer *request*."""
        self.asked.append(request)
        match request.url.path.rpartition("/")[2]:
            case "openid-configuration":
                names = ("authorization", "token", "end_session", "revocation")
                more = {f"{name}_endpoint": f"{ISSUER}/{name}" for name in names}
                return httpx.Response(200, json={"issuer": ISSUER, "jwks_uri": f"{ISSUER}/certs", **more})
            case "certs":
                return httpx.Response(200, json={"keys": [KEY.as_dict(private=False)]})
            case _:
                return httpx.Response(200, json=self._tokens(self._clock.now()))

    def _tokens(self, at: datetime) -> dict[str, Any]:
        now = int(at.timestamp())
        said = {"iss": ISSUER, "aud": "attestation-web", "sub": "s-1", "iat": now, "exp": now + 300}
        said |= {"nonce": self.nonce, "auth_time": now, "preferred_username": "anna"} | self.claims
        token = jwt.encode({"alg": "RS256", "kid": "one"}, said, KEY)
        return {"access_token": "a-1", "id_token": token, "token_type": "Bearer", "expires_in": 300}


class World:
    """A dashboard, its provider, and a browser."""

    def __init__(self, service: Callable[[httpx.Request], httpx.Response], **settings: Any) -> None:
        self.clock = HeldClock(datetime.now().astimezone())
        self.provider = Provider(self.clock)
        app = create_app(
            Settings.model_validate({**SETTINGS, **settings}),
            service=answering(service),
            provider=answering(self.provider),
            now=self.clock.now,
        )
        self.web: Web = app.extensions[EXTENSION]
        self.browser: FlaskClient = app.test_client()

    def begin(self, path: str = "/auth/login") -> dict[str, str]:
        """Begin a login, and return what the provider is asked for."""
        sent = self.browser.get(path, base_url=URL)
        asked = {n: v[0] for n, v in parse_qs(urlsplit(sent.headers["Location"]).query).items()}
        self.provider.nonce = asked["nonce"]
        return asked

    def finish(self, asked: dict[str, str]) -> Any:
        """Come back from the provider."""
        query = {"state": asked["state"], "code": "c-1"}
        return self.browser.get("/auth/callback", query_string=query, base_url=URL)


def _known(_: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json=WHO)


def test_cookies_are_for_this_host_alone() -> None:
    """`__Host-` demands TLS, no domain and all paths; no script reads it; the client's secret goes in a header."""
    world = World(_known)
    begun = world.browser.get("/auth/login", base_url=URL)
    [ticket] = begun.headers.getlist("Set-Cookie")
    asked = world.begin()
    answer = world.finish(asked)
    cookies = answer.headers.getlist("Set-Cookie")
    session = next(c for c in cookies if c.startswith("__Host-itl-web="))
    for cookie in (ticket, session):
        assert cookie.startswith("__Host-itl-web")
        assert {"Secure", "HttpOnly", "Path=/", "SameSite=Lax"} <= {p.strip() for p in cookie.split(";")}
        assert "Domain" not in cookie
    token = next(r for r in world.provider.asked if r.url.path.endswith("/token"))
    assert token.headers["authorization"].startswith("Basic ")
    assert b"a+secret" not in token.content
    assert len(world.web.sessions) == 1


@pytest.mark.parametrize(
    "refused", [problem(403, "forbidden"), problem(401, "unauthenticated"), problem(503, "store-busy")]
)
def test_whom_the_service_does_not_take_has_no_session(refused: httpx.Response) -> None:
    """A page says why; no cookie, no token that lies in memory, and no circle of redirects."""
    world = World(lambda _: refused)
    answer = world.finish(world.begin())
    assert answer.status_code == refused.status_code
    assert not any(c.startswith("__Host-itl-web=") for c in answer.headers.getlist("Set-Cookie"))
    assert len(world.web.sessions) == 0


@pytest.mark.threat("T272")
@pytest.mark.parametrize("claims", [{"nonce": "x"}, {"aud": "other"}, {"iss": "https://evil.example"}])
def test_a_token_of_another_login_logs_nobody_in(claims: dict[str, Any]) -> None:
    """Although it is signed by the provider."""
    world = World(_known)
    world.provider.claims = claims
    assert world.finish(world.begin()).status_code == 400
    assert len(world.web.sessions) == 0


@pytest.mark.threat("T272")
def test_a_long_address_is_gone_back_to_as_long_as_a_browser_keeps_it() -> None:
    """A query that somebody wrote, for example; a longer one than a cookie holds leads to the first page."""
    for size, kept in ((3_000, True), (7_000, False)):
        world = World(_known)
        wanted = "/query?q=" + random.Random(7).randbytes(size // 2).hex()
        asked = world.begin(f"/auth/login?{urlencode({'to': wanted})}")
        cookies = [c.value for c in (world.browser._cookies or {}).values() if "-login-" in c.key]
        assert all(len(value) < 4_000 for value in cookies)
        assert world.finish(asked).headers["Location"] == (wanted if kept else "/")


def test_a_ticket_of_a_stranger_is_not_unpacked() -> None:
    """Of a few bytes many may come."""
    world = World(_known)
    bomb = OpenID(world.web.settings, world.web.openid._provider, world.clock.now)
    small, large = (str(bomb._tickets.dumps({"to": "/machines", "x": "x" * n})) for n in (10, 8_000_000))
    assert len(large) > LONGEST_TICKET
    assert world.web.openid.wanted(small) == "/machines"
    assert world.web.openid.wanted(large) is None


def test_many_tabs_that_log_in_make_no_cookie_too_long() -> None:
    """The newest logins stay under way; those before begin again, and lead to where they were going."""
    world = World(_known)
    asked = []
    for _ in range(40):
        world.clock.pass_(seconds=1)
        asked.append(world.begin("/auth/login?to=/account"))
    tickets = [c for c in (world.browser._cookies or {}).values() if "-login-" in c.key]
    assert 4 <= len(tickets) < 20
    assert sum(len(c.value) for c in tickets) < 6_000
    assert world.finish(asked[-1]).headers["Location"] == "/account"


def test_a_login_that_took_too_long_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a browser kept is good for ten minutes, and only as we signed it."""
    world = World(_known)
    asked = world.begin()
    late = int(time.time()) + LOGIN_SECONDS + 5
    monkeypatch.setattr(timed.TimestampSigner, "get_timestamp", lambda _: late)
    answer = world.finish(asked)
    assert answer.status_code == 400
    assert "too long ago" in answer.text
    monkeypatch.undo()
    asked = world.begin()
    for cookie in list((world.browser._cookies or {}).values()):
        world.browser.set_cookie(cookie.key, f"{cookie.value}x", domain="dash.example", secure=True)
    assert world.finish(asked).status_code == 400
    assert len(world.web.sessions) == 0


@pytest.mark.threat("T275")
def test_who_logs_in_again_does_so_as_strongly_as_is_demanded() -> None:
    """The levels are asked for and looked at; a first login needs none."""
    world = World(_known, oidc_acr_values="gold silver")
    assert world.finish(world.begin()).status_code == 303
    asked = world.begin("/auth/again?to=/account")
    assert (asked["acr_values"], asked["prompt"], asked["login_hint"]) == ("gold silver", "login", "anna")
    assert world.finish(asked).status_code == 400
    world.provider.claims = {"acr": "silver"}
    answer = world.finish(world.begin("/auth/again?to=/account"))
    assert (answer.status_code, answer.headers["Location"]) == (303, "/account")
    assert len(world.web.sessions) == 1
    assert next(iter(world.web.sessions._kept.values())).acr == "silver"


def test_a_provider_that_does_not_say_when_somebody_logged_in_lets_nobody_decide() -> None:
    """Its cookie may be days old: such a login shows pages, and acts ask for another one."""
    world = World(_known)
    world.provider.claims = {"auth_time": None}
    assert world.finish(world.begin()).status_code == 303
    session = next(iter(world.web.sessions._kept.values()))
    assert (world.clock.now() - session.authenticated_at).days >= 1
