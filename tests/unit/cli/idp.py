"""An identity provider made by hand: it answers what it is told to, and remembers what it was asked."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import httpx

from attestation.client.openid.discovery import Provider
from attestation_cli.login.cache import Login
from tests.fixtures.over_httpx import OverHTTPX, answering

ISSUER = "https://id.example/realms/itl"
CLIENT = "attestation-cli"
SUB = "6f1c2c4e-0000-4000-8000-000000000001"
AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
CANARY = "canary"
"""Part of every secret here: nothing that is printed may contain it."""


def jwt(**claims: Any) -> str:
    """Return a token that nobody signed."""

    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'RS256'})}.{part(claims)}.{CANARY}"


def a_login(**changes: Any) -> Login:
    """Return a login of anna's, good for an hour."""
    known: dict[str, Any] = {
        "issuer": ISSUER,
        "client_id": CLIENT,
        "subject": SUB,
        "username": "anna",
        "email": "anna@itl.example",
        "access_token": jwt(
            sub=SUB, preferred_username="anna", realm_access={"roles": ["attestation-operator"]}
        ),
        "refresh_token": f"{CANARY}-refresh-0",
        "expires_at": AT + timedelta(hours=1),
        "obtained_at": AT,
        "api_url": "http://localhost:8080",
    }
    return Login(**(known | changes))


Answer = Callable[[dict[str, str]], httpx.Response]


@dataclass
class Idp:
    """The provider.

    Args:
        metadata: Members of the discovery document that differ from the good one; None leaves one out.
        token: Answers the token endpoint in place of the good answer.
        device: Members of the device answer that differ; None leaves one out.
        subject: Whose tokens these are.
        life_seconds: How long access tokens live.
    """

    metadata: dict[str, Any] = field(default_factory=dict)
    token: Answer | None = None
    device: dict[str, Any] = field(default_factory=dict)
    id_token: dict[str, Any] | None = field(default_factory=dict)
    subject: str = SUB
    life_seconds: int = 3600
    forms: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    requests: list[httpx.Request] = field(default_factory=list)
    nonce: str | None = None
    challenge: str | None = None
    issued: int = 0

    @property
    def carrier(self) -> OverHTTPX:
        """What carries requests to it."""
        return answering(self)

    def provider(self, **more: Any) -> Provider:
        """Return what the command line sees of it."""
        return Provider(ISSUER, carrier=self.carrier, **more)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer one request."""
        self.requests.append(request)
        path = request.url.path.removeprefix("/realms/itl/")
        if path == ".well-known/openid-configuration":
            base = f"{ISSUER}/protocol"
            known = {
                "issuer": ISSUER,
                "authorization_endpoint": f"{base}/auth",
                "token_endpoint": f"{base}/token",
                "device_authorization_endpoint": f"{base}/device",
                "revocation_endpoint": f"{base}/revoke",
                "code_challenge_methods_supported": ["plain", "S256"],
                "authorization_response_iss_parameter_supported": True,
            }
            return ok(known | self.metadata)
        form = dict(parse_qsl(request.content.decode()))
        self.forms.append((path, form))
        match path:
            case "protocol/token":
                return self.token(form) if self.token else self.tokens()
            case "protocol/device":
                known = {
                    "device_code": f"{CANARY}-device",
                    "user_code": "WDJB-MJHT",
                    "verification_uri": f"{ISSUER}/device",
                    "verification_uri_complete": f"{ISSUER}/device?user_code=WDJB-MJHT",
                    "expires_in": 600,
                    "interval": 5,
                }
                self.challenge = form.get("code_challenge")
                return ok(known | self.device)
            case "protocol/revoke":
                return httpx.Response(200)
        return httpx.Response(404, json={})

    def tokens(self, **changes: Any) -> httpx.Response:
        """Return a good token answer, with *changes*."""
        self.issued += 1
        identity = {"iss": ISSUER, "aud": CLIENT, "sub": self.subject, "exp": AT.timestamp() + 7200}
        if self.nonce is not None:
            identity["nonce"] = self.nonce
        known: dict[str, Any] = {
            "access_token": jwt(sub=self.subject, preferred_username="anna", jti=str(self.issued)),
            "token_type": "Bearer",
            "expires_in": self.life_seconds,
            "refresh_token": f"{CANARY}-refresh-{self.issued}",
        }
        if self.id_token is not None:
            told = {**identity, "email": "anna@itl.example", **self.id_token}
            known["id_token"] = jwt(**{k: v for k, v in told.items() if v is not None})
        return ok(known | changes)


def ok(members: dict[str, Any]) -> httpx.Response:
    """Return a JSON answer without the members that are None."""
    return httpx.Response(200, json={k: v for k, v in members.items() if v is not None})


def refused(error: str, description: str = "") -> Answer:
    """Return what answers with an error of OAuth."""
    return lambda form: httpx.Response(400, json={"error": error, "error_description": description})


@dataclass
class Browser:
    """A person with a browser: called with the address to open, it sends the provider's answer to the loopback.

    Args:
        idp: Is told nonce and challenge.
        changes: Parameters of the answer that differ; None leaves one out.
        query: The whole answer, in place of all that.
    """

    idp: Idp
    changes: dict[str, str | None] = field(default_factory=dict)
    query: str | None = None
    asked: dict[str, str] = field(default_factory=dict)
    pages: list[httpx.Response] = field(default_factory=list)
    send: bool = True

    def __call__(self, url: str) -> None:
        """Open *url*."""
        self.asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        self.idp.nonce, self.idp.challenge = self.asked["nonce"], self.asked["code_challenge"]
        answer = {"code": f"{CANARY}-code", "state": self.asked["state"], "iss": ISSUER, **self.changes}
        query = (
            urlencode({k: v for k, v in answer.items() if v is not None})
            if self.query is None
            else self.query
        )
        if self.send:
            self.pages.append(self.get(f"?{query}"))
            self.pages.append(self.get("", path="/done"))

    def get(self, query: str, *, path: str | None = None, **more: Any) -> httpx.Response:
        """Ask the loopback server."""
        uri = self.asked["redirect_uri"]
        url = uri if path is None else str(httpx.URL(uri).join(path))
        with httpx.Client(trust_env=False, timeout=60) as client:
            return client.get(f"{url}{query}", **more)


def verifies(verifier: str, challenge: str) -> bool:
    """True where S256 of *verifier* is *challenge*."""
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == challenge
