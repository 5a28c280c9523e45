"""An identity provider that a test holds in its hand: documents, keys, failures, and tokens of any kind."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cache
from typing import Any

import httpx
from joserfc import jwk

from tests.fixtures.openid.provider import new_key, sign
from tests.unit.service.conftest import HeldClock

ORIGIN = "https://sts.example"
ISSUER = f"{ORIGIN}/realms/itl"
SUB = "8f3c6a1e-6f2d-4a57-9d1c-1f0f4b1f7a11"

Answer = Callable[[httpx.Request], Awaitable[httpx.Response]]


def a_key(algorithm: str = "RS256", number: int = 0) -> jwk.Key:
    """Return a key for *algorithm*; the same for the same number, because RSA keys take long to make."""
    return _made(algorithm, number)


@cache
def _made(algorithm: str, number: int) -> jwk.Key:
    return new_key(algorithm, kid=f"{algorithm.lower()}-{number}")


class Realm:
    """The provider; stands behind `httpx` as a transport."""

    def __init__(self, clock: HeldClock) -> None:
        self.clock = clock
        self.keys: list[Any] = [a_key()]
        self.asked: Counter[str] = Counter()
        self.down = False
        self.metadata: dict[str, Any] = {
            "issuer": ISSUER,
            "jwks_uri": f"{ISSUER}/protocol/openid-connect/certs",
        }
        self.instead: dict[str, Answer] = {}
        """Answers by document, `discovery` or `certs`, in the place of the true ones."""

    def transport(self) -> httpx.MockTransport:
        """Return what stands where the network would."""
        return httpx.MockTransport(self._answer)

    def jwks(self) -> dict[str, Any]:
        """Return the JWKS; members of `keys` that are dicts are taken as they are."""
        return {"keys": [key if isinstance(key, dict) else key.as_dict(private=False) for key in self.keys]}

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        document = "discovery" if request.url.path.endswith("/.well-known/openid-configuration") else "certs"
        self.asked[document] += 1
        assert str(request.url) == (
            f"{ISSUER}/.well-known/openid-configuration"
            if document == "discovery"
            else self.metadata["jwks_uri"]
        )
        if self.down:
            raise httpx.ConnectError("refused", request=request)
        if document in self.instead:
            return await self.instead[document](request)
        return streamed(200, json=self.metadata if document == "discovery" else self.jwks())

    def answer_instead(self, document: str, status: int = 200, **more: Any) -> None:
        """Answer *document* with this; arguments as of `httpx.Response`."""

        async def answer(_request: httpx.Request) -> httpx.Response:
            return streamed(status, **more)

        self.instead[document] = answer

    def claims(self, *roles: str, **other: Any) -> dict[str, Any]:
        """Return claims of a good token; None removes a member."""
        now = int(self.clock.at.timestamp())
        written: dict[str, Any] = {
            "exp": now + 300,
            "iat": now,
            "jti": "1",
            "iss": ISSUER,
            "aud": ["attestation-service", "account"],
            "sub": SUB,
            "typ": "Bearer",
            "azp": "attestation-cli",
            "preferred_username": "anna",
            "realm_access": {"roles": list(roles or ("attestation-operator",))},
            "resource_access": {"account": {"roles": ["manage-account"]}},
        }
        return {k: v for k, v in (written | other).items() if v is not None}

    def token(self, *roles: str, **other: Any) -> str:
        """Return a token that the provider could have issued."""
        return sign(self.keys[0], self.claims(*roles, **other))


def streamed(status: int, **more: Any) -> httpx.Response:
    """Return a response whose body is yet to be read, as from a network; arguments as of `httpx.Response`."""
    whole = httpx.Response(status, **{k: v for k, v in more.items() if k != "headers"})

    async def body() -> AsyncIterator[bytes]:
        for start in range(0, len(whole.content), 16_384):
            yield whole.content[start : start + 16_384]

    return httpx.Response(status, headers=more.get("headers"), content=body())


def bearer(token: str) -> dict[str, str]:
    """Return the header of a request."""
    return {"Authorization": f"Bearer {token}"}


def as_json(value: object) -> bytes:
    """Return JSON."""
    return json.dumps(value).encode()
