"""An identity provider for the demo: it serves the realm that we ship, as Keycloak would.

For the demo ONLY. It listens on the loopback interface, its people and their passwords are made up at the first
start, and it keeps sessions in memory. Beside the code flow with PKCE and the device flow it answers the password
grant, which the shipped realm has switched off, so that the demo can be tried without a browser.

    python -m tools.demo_identity --directory DIR --port P
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import hmac
import html
import secrets
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, unquote_plus, urlencode, urlsplit

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import RSAKey
from starlette.middleware.trustedhost import TrustedHostMiddleware

from tools.demo_people import Account, load_people, write_private
from tools.keycloak_realm import DEVICE_GRANT, OPENID, PKCE, POST_LOGOUT, Person, Realm

KEY_FILE: Final = "identity-key.pem"
SECRET_FILE: Final = "dashboard-secret"
DEVICE_CODE: Final = "urn:ietf:params:oauth:grant-type:device_code"
MAX_FORM_BYTES: Final = 16_384
MAX_PENDING: Final = 1_000
WRONG_PASSWORD_SECONDS: Final = 0.5
POLL_SECONDS: Final = 1
USER_CODE_LETTERS: Final = "BCDFGHJKLMNPQRSTVWXZ"

PAGE: Final = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
body{{font:16px/1.5 system-ui,sans-serif;max-width:24rem;margin:3rem auto;padding:0 1rem}}
label{{display:block;margin:.8rem 0}}input{{display:block;width:100%;padding:.4rem;font:inherit;box-sizing:border-box}}
button{{padding:.5rem 1.5rem;font:inherit}}.note{{color:#555;font-size:.85rem}}.error{{color:#a00}}
</style></head><body><h1>{title}</h1>{body}
<p class="note">Demo identity provider of <code>./dev run</code>. Never use it for anything else.</p></body></html>"""


class Refused(Exception):
    """An OAuth 2.0 error (RFC 6749 §5.2): its code, and what to say."""

    def __init__(self, code: str, description: str) -> None:
        super().__init__(description)
        self.code = code


@dataclass(slots=True, kw_only=True)
class Grant:
    """What a code, a device code or a refresh token stands for."""

    client_id: str
    scope: str
    expires_at: float
    person: Person | None = None
    session: str = field(default_factory=lambda: str(uuid.uuid4()))
    redirect_uri: str = ""
    challenge: str = ""
    nonce: str = ""
    user_code: str = ""
    authenticated_at: int = 0
    denied: bool = False


def load_key(directory: Path) -> RSAKey:
    """Return the key that signs tokens; it survives a restart, so tokens do."""
    path = directory / KEY_FILE
    if not path.exists():
        made = RSAKey.generate_key(2048, auto_kid=True)
        write_private(path, made.as_pem(private=True).decode("ascii"))
    key = RSAKey.import_key(path.read_text(encoding="ascii"), {"use": "sig", "alg": "RS256"})
    key.ensure_kid()
    return key


def load_secret(directory: Path) -> str:
    """Return the secret of the dashboard's client; it survives a restart."""
    path = directory / SECRET_FILE
    if not path.exists():
        write_private(path, secrets.token_urlsafe(32) + "\n")
    return path.read_text(encoding="ascii").strip()


class Provider:
    """The rules of the provider; the routes below only speak HTTP."""

    def __init__(
        self, issuer: str, realm: Realm, people: list[Account], key: RSAKey, secret: str | None = None
    ) -> None:
        self.issuer = issuer
        # Of the client that has one, the dashboard's; without it that client is not served.
        self._secret = secret
        self._realm = realm
        self._accounts = {account.person.username: account for account in people}
        self._key = key
        self._codes: dict[str, Grant] = {}
        self._devices: dict[str, Grant] = {}
        self._refresh: dict[str, Grant] = {}

    # Documents

    def discovery(self) -> dict[str, Any]:
        """Return the provider's metadata (OpenID Connect Discovery 1.0 §3)."""
        at = self.issuer + OPENID
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{at}/auth",
            "token_endpoint": f"{at}/token",
            "jwks_uri": f"{at}/certs",
            "userinfo_endpoint": f"{at}/userinfo",
            "end_session_endpoint": f"{at}/logout",
            "revocation_endpoint": f"{at}/revoke",
            "device_authorization_endpoint": f"{at}/auth/device",
            "grant_types_supported": ["authorization_code", "refresh_token", "password", DEVICE_CODE],
            "response_types_supported": ["code"],
            "response_modes_supported": ["query"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic"],
            "scopes_supported": ["openid", "profile", "email"],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
        }

    def certs(self) -> dict[str, Any]:
        """Return the public key, as a JWK set."""
        return {"keys": [self._key.as_dict(private=False)]}

    # People

    def authenticate(self, username: str, password: str) -> Person | None:
        """Return who this is, or None."""
        account = self._accounts.get(username)
        expected = account.password if account else secrets.token_hex(4)
        same = hmac.compare_digest(expected.encode(), password.encode())
        return account.person if account and same else None

    # The code flow

    def begin(self, query: Mapping[str, str]) -> Grant:
        """Judge an authorization request (RFC 6749 §4.1.1 with PKCE, RFC 7636).

        Raises:
            Refused: Not a request of a client of the realm; the browser must not be sent anywhere.
        """
        client_id, redirect_uri = query.get("client_id", ""), query.get("redirect_uri", "")
        client = self._realm.client(client_id)
        served = client is not None and (client["publicClient"] or self._secret is not None)
        if client is None or not served or not client["standardFlowEnabled"]:
            raise Refused("unauthorized_client", "Client not found")
        if not self._realm.redirects(client_id, redirect_uri):
            raise Refused("invalid_request", "Invalid parameter: redirect_uri")
        if query.get("response_type") != "code":
            raise Refused("unsupported_response_type", "Only the code flow is served")
        return self._grant(client_id, query, seconds=60, redirect_uri=redirect_uri)

    def finish(self, grant: Grant, person: Person) -> str:
        """Return a code for *person*; it is good once, for 60 seconds."""
        grant.person, grant.authenticated_at = person, int(time.time())
        return self._keep(self._codes, grant)

    def after_logout(self, client_id: str, target: str) -> str | None:
        """Return where a browser goes after a logout that *client_id* began, or None where it stays."""
        client = self._realm.client(client_id)
        allowed = client is not None and client["attributes"].get(POST_LOGOUT)
        return target if allowed and target == allowed else None

    # The device flow

    def offer(self, form: Mapping[str, str]) -> dict[str, Any]:
        """Begin a device flow (RFC 8628 §3.1); as in Keycloak, PKCE is demanded here too."""
        client_id = form.get("client_id", "")
        client = self._realm.client(client_id)
        if client is None or client["attributes"].get(DEVICE_GRANT) != "true":
            raise Refused(
                "unauthorized_client", "Client not allowed for OAuth 2.0 Device Authorization Grant"
            )
        grant = self._grant(client_id, form, seconds=int(self._realm.document["oauth2DeviceCodeLifespan"]))
        letters = "".join(secrets.choice(USER_CODE_LETTERS) for _ in range(8))
        grant.user_code = f"{letters[:4]}-{letters[4:]}"
        page = f"{self.issuer}/device"
        return {
            "device_code": self._keep(self._devices, grant),
            "user_code": grant.user_code,
            "verification_uri": page,
            "verification_uri_complete": f"{page}?{urlencode({'user_code': grant.user_code})}",
            "expires_in": int(grant.expires_at - time.time()),
            "interval": POLL_SECONDS,
        }

    def confirm(self, user_code: str, person: Person | None) -> bool:
        """Let the device with this code in as *person*; None refuses it. False where no device waits."""
        for grant in self._devices.values():
            waits = grant.person is None and not grant.denied and grant.expires_at > time.time()
            if waits and hmac.compare_digest(grant.user_code.encode(), user_code.strip().upper().encode()):
                grant.person, grant.denied = person, person is None
                grant.authenticated_at = int(time.time())
                return True
        return False

    # Tokens

    def token(self, form: Mapping[str, str], basic: tuple[str, str] | None = None) -> dict[str, Any]:
        """Answer the token endpoint (RFC 6749 §3.2).

        Args:
            form: What was sent.
            basic: Name and secret of a client that has one.

        Raises:
            Refused: With the error code that the client acts on.
        """
        client_id = form.get("client_id", "")
        client = self._realm.client(client_id)
        if client is None or not (client["publicClient"] or self._knows(client_id, basic)):
            raise Refused("invalid_client", "Invalid client or Invalid client credentials")
        match form.get("grant_type"):
            case "authorization_code":
                grant = self._codes.pop(form.get("code", ""), None)
                self._check(grant, client_id, "Code not valid")
                assert grant is not None
                if grant.redirect_uri != form.get("redirect_uri"):
                    raise Refused("invalid_grant", "Incorrect redirect_uri")
                self._check_verifier(grant, form)
            case "urn:ietf:params:oauth:grant-type:device_code":
                grant = self._poll(form, client_id)
                self._check_verifier(grant, form)
            case "refresh_token":
                # Good once, as in the realm: `revokeRefreshToken`.
                grant = self._refresh.pop(form.get("refresh_token", ""), None)
                self._check(grant, client_id, "Token is not active")
                assert grant is not None
            case "password":
                person = self.authenticate(form.get("username", ""), form.get("password", ""))
                if person is None:
                    raise Refused("invalid_grant", "Invalid user credentials")
                grant = Grant(
                    client_id=client_id, scope=form.get("scope", "openid"), expires_at=0, person=person
                )
            case _:
                raise Refused("unsupported_grant_type", "Unsupported grant_type")
        return self._issue(grant)

    def _knows(self, client_id: str, basic: tuple[str, str] | None) -> bool:
        """True where *basic* proves that the dashboard's client asks."""
        if self._secret is None or basic is None or basic[0] != client_id:
            return False
        return hmac.compare_digest(basic[1].encode(), self._secret.encode())

    def who(self, token: str) -> dict[str, Any] | None:
        """Return what `userinfo` says to the bearer of an access token."""
        try:
            claims = jwt.decode(token, self._key, algorithms=["RS256"]).claims
        except (JoseError, ValueError):
            return None
        if claims.get("typ") != "Bearer" or claims["exp"] < time.time():
            return None
        return {
            name: claims[name] for name in ("sub", "preferred_username", "name", "email") if name in claims
        }

    def end(self, refresh_token: str) -> None:
        """Forget a refresh token."""
        self._refresh.pop(refresh_token, None)

    def _grant(
        self, client_id: str, query: Mapping[str, str], *, seconds: int, redirect_uri: str = ""
    ) -> Grant:
        client = self._realm.client(client_id)
        assert client is not None
        method, challenge = query.get("code_challenge_method"), query.get("code_challenge", "")
        if method != client["attributes"][PKCE] or len(challenge) != 43:
            raise Refused("invalid_request", "Missing parameter: code_challenge_method")
        if "openid" not in query.get("scope", "").split():
            raise Refused("invalid_scope", "Invalid scopes: openid is missing")
        return Grant(
            client_id=client_id,
            scope=query["scope"],
            expires_at=time.time() + seconds,
            redirect_uri=redirect_uri,
            challenge=challenge,
            nonce=query.get("nonce", ""),
        )

    def _keep(self, where: dict[str, Grant], grant: Grant) -> str:
        now = time.time()
        for name in [name for name, kept in where.items() if kept.expires_at < now]:
            del where[name]
        if len(where) >= MAX_PENDING:
            raise Refused("temporarily_unavailable", "Too many logins at once")
        name = secrets.token_urlsafe(32)
        where[name] = grant
        return name

    def _check(self, grant: Grant | None, client_id: str, otherwise: str) -> None:
        if grant is None or grant.client_id != client_id or grant.expires_at < time.time():
            raise Refused("invalid_grant", otherwise)

    def _check_verifier(self, grant: Grant, form: Mapping[str, str]) -> None:
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        found = base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")
        if not hmac.compare_digest(found, grant.challenge):
            raise Refused("invalid_grant", "PKCE verification failed: Code mismatch")

    def _poll(self, form: Mapping[str, str], client_id: str) -> Grant:
        name = form.get("device_code", "")
        grant = self._devices.get(name)
        if grant is None or grant.client_id != client_id:
            raise Refused("invalid_grant", "Device code not valid")
        if grant.expires_at < time.time():
            raise Refused("expired_token", "Device code is expired")
        if grant.denied:
            raise Refused("access_denied", "The end user denied the authorization request")
        if grant.person is None:
            raise Refused("authorization_pending", "The authorization request is still pending")
        del self._devices[name]
        return grant

    def _issue(self, grant: Grant) -> dict[str, Any]:
        person = grant.person
        assert person is not None
        now, lives = int(time.time()), int(self._realm.document["accessTokenLifespan"])
        idle = int(self._realm.document["ssoSessionIdleTimeout"])
        authenticated_at = grant.authenticated_at or now
        common = {
            "iss": self.issuer,
            "iat": now,
            "exp": now + lives,
            "sid": grant.session,
            "auth_time": authenticated_at,
        }
        access = {
            **common,
            **self._realm.access_claims(grant.client_id, person),
            "jti": str(uuid.uuid4()),
            "scope": grant.scope,
        }
        id_token = {
            **common,
            "jti": str(uuid.uuid4()),
            "aud": grant.client_id,
            "azp": grant.client_id,
            "typ": "ID",
            "sub": person.sub,
            "preferred_username": person.username,
            "name": person.name,
            "email": person.email,
            **({"nonce": grant.nonce} if grant.nonce else {}),
        }
        renewed = Grant(
            client_id=grant.client_id,
            scope=grant.scope,
            expires_at=now + idle,
            person=person,
            session=grant.session,
            authenticated_at=authenticated_at,
        )
        return {
            "access_token": self._sign(access),
            "expires_in": lives,
            "refresh_token": self._keep(self._refresh, renewed),
            "refresh_expires_in": idle,
            "token_type": "Bearer",
            "id_token": self._sign(id_token),
            "scope": grant.scope,
            "session_state": grant.session,
        }

    def _sign(self, claims: dict[str, Any]) -> str:
        return jwt.encode({"alg": "RS256", "typ": "JWT", "kid": self._key.kid}, claims, self._key)


# ---------------------------------------------------------------- HTTP


def _page(title: str, body: str, status: int = 200) -> HTMLResponse:
    headers = {
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "X-Frame-Options": "DENY",
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    }
    return HTMLResponse(PAGE.format(title=title, body=body), status, headers)


def _login_form(hint: str, *, error: str = "", more: str = "") -> str:
    said = f'<p class="error" role="alert">{html.escape(error)}</p>' if error else ""
    return (
        f'{said}<form method="post">{more}'
        f'<label>User name <input name="username" autocomplete="username" required autofocus value="{hint}"></label>'
        '<label>Password <input name="password" type="password" autocomplete="current-password" required></label>'
        '<button type="submit">Sign in</button></form>'
    )


async def _form(request: Request) -> dict[str, str]:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise Refused("invalid_request", "The form is too long")
    return {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}


def _basic(request: Request) -> tuple[str, str] | None:
    """Return name and secret of a client (RFC 6749 §2.3.1), or None."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, _, secret = base64.b64decode(given, validate=True).decode("ascii").partition(":")
    except ValueError:
        return None
    return unquote_plus(name), unquote_plus(secret)


async def _sign_in(provider: Provider, form: Mapping[str, str]) -> Person | None:
    person = provider.authenticate(form.get("username", ""), form.get("password", ""))
    if person is None:
        # Whoever guesses waits.
        await asyncio.sleep(WRONG_PASSWORD_SECONDS)
    return person


def create_app(provider: Provider) -> FastAPI:
    """Build the application."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    # A page elsewhere that resolves its own name to 127.0.0.1 is not answered.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    realm = urlsplit(provider.issuer).path
    endpoints = realm + OPENID

    @app.exception_handler(Refused)
    async def refused(request: Request, e: Refused) -> Response:
        if request.url.path in (f"{endpoints}/auth", f"{realm}/device"):
            return _page("We are sorry", f'<p class="error">{html.escape(str(e))}</p>', 400)
        body = {"error": e.code, "error_description": str(e)}
        return JSONResponse(body, 401 if e.code == "invalid_client" else 400, {"Cache-Control": "no-store"})

    @app.get(f"{realm}/.well-known/openid-configuration")
    async def discovery() -> dict[str, Any]:
        return provider.discovery()

    @app.get(f"{endpoints}/certs")
    async def certs() -> dict[str, Any]:
        return provider.certs()

    @app.get(f"{endpoints}/auth")
    async def ask(request: Request) -> Response:
        grant = provider.begin(request.query_params)
        hint = html.escape(request.query_params.get("login_hint", ""), quote=True)
        return _page("Sign in", f"<p>to <code>{html.escape(grant.client_id)}</code></p>" + _login_form(hint))

    @app.post(f"{endpoints}/auth")
    async def log_in(request: Request) -> Response:
        grant = provider.begin(request.query_params)
        form = await _form(request)
        person = await _sign_in(provider, form)
        if person is None:
            hint = html.escape(form.get("username", ""), quote=True)
            return _page("Sign in", _login_form(hint, error="Invalid username or password."), 401)
        answer = {
            "code": provider.finish(grant, person),
            "iss": provider.issuer,
            "session_state": grant.session,
        }
        if state := request.query_params.get("state"):
            answer["state"] = state
        return RedirectResponse(
            f"{grant.redirect_uri}?{urlencode(answer)}", 303, {"Cache-Control": "no-store"}
        )

    @app.post(f"{endpoints}/auth/device")
    async def offer(request: Request) -> dict[str, Any]:
        return provider.offer(await _form(request))

    @app.get(f"{realm}/device")
    async def device(request: Request) -> Response:
        code = html.escape(request.query_params.get("user_code", ""), quote=True)
        more = f'<label>Code shown by the device <input name="user_code" required value="{code}"></label>'
        return _page("Let a device in", _login_form("", more=more))

    @app.post(f"{realm}/device")
    async def confirm(request: Request) -> Response:
        form = await _form(request)
        person = await _sign_in(provider, form)
        if person is None:
            raise Refused("access_denied", "Invalid username or password.")
        if not provider.confirm(form.get("user_code", ""), person):
            raise Refused("invalid_request", "Invalid code, please try again.")
        return _page("Device login successful", "<p>You may close this page and go back to the device.</p>")

    @app.post(f"{endpoints}/token")
    async def token(request: Request) -> Response:
        form = await _form(request)
        try:
            return JSONResponse(provider.token(form, _basic(request)), headers={"Cache-Control": "no-store"})
        except Refused:
            if form.get("grant_type") == "password":
                await asyncio.sleep(WRONG_PASSWORD_SECONDS)
            raise

    @app.get(f"{endpoints}/userinfo")
    async def userinfo(request: Request) -> Response:
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        found = provider.who(bearer) if scheme.lower() == "bearer" else None
        if found is None:
            return Response(status_code=401, headers={"WWW-Authenticate": 'Bearer error="invalid_token"'})
        return JSONResponse(found, headers={"Cache-Control": "no-store"})

    @app.get(f"{endpoints}/logout")
    async def log_out_and_go(request: Request) -> Response:
        # Whoever logged in is asked for their password the next time too: there is no session to end.
        asked = request.query_params
        to = provider.after_logout(asked.get("client_id", ""), asked.get("post_logout_redirect_uri", ""))
        if to is None:
            return _page("Logged out", "<p>You may close this page.</p>")
        return RedirectResponse(to, 303, {"Cache-Control": "no-store"})

    @app.post(f"{endpoints}/logout")
    async def log_out(request: Request) -> Response:
        provider.end((await _form(request)).get("refresh_token", ""))
        return Response(status_code=204)

    @app.post(f"{endpoints}/revoke")
    async def revoke(request: Request) -> Response:
        provider.end((await _form(request)).get("token", ""))
        return Response(status_code=200)

    return app


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description="The identity provider of the demo; for nothing else.")
    parser.add_argument("--directory", type=Path, required=True, help="where its people and its key are kept")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument(
        "--dashboard", metavar="URL", help="where the dashboard is; without it nobody logs in there"
    )
    options = parser.parse_args()
    realm = Realm.load()
    if options.dashboard:
        realm = realm.with_dashboard(options.dashboard)
    provider = Provider(
        f"http://127.0.0.1:{options.port}/realms/{realm.name}",
        realm,
        load_people(options.directory),
        load_key(options.directory),
        load_secret(options.directory) if options.dashboard else None,
    )
    uvicorn.run(
        create_app(provider), host="127.0.0.1", port=options.port, log_level="warning", access_log=False
    )


if __name__ == "__main__":
    main()
