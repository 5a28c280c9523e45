"""Tokens of the shipped realm, before the service's own judge; and what it says where the realm lacks a part."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey

from attestation.clock import SystemClock
from attestation.errors import Forbidden, Unauthenticated
from attestation_service.auth.oidc import OIDC
from attestation_service.context.identity import Duty, Method, Operator
from attestation_service.context.request import Origin
from attestation_service.settings import Settings
from tools.demo_identity import Provider, create_app, load_key
from tools.keycloak_realm import Person, Realm

ISSUER = "http://127.0.0.1:8081/realms/itl"
SETTINGS = Settings(oidc_issuer=ISSUER)
REALM = Realm.load()
SUB = "5b0e6a0c-0d84-4a1e-8f39-3f8f2b9f3d11"


def _person(*roles: str) -> Person:
    return Person(username="alice", sub=SUB, name="Alice", email="alice@itl.example", roles=roles)


def _without(scope: str) -> Realm:
    """Return the realm whose clients lack a default scope."""
    document: dict[str, Any] = copy.deepcopy(dict(REALM.document))
    for client in document["clients"]:
        client["defaultClientScopes"] = [s for s in client.get("defaultClientScopes", ()) if s != scope]
    return Realm(document)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> RSAKey:
    return load_key(tmp_path_factory.mktemp("key"))


def _judge(key: RSAKey, claims: Mapping[str, Any]) -> Operator:
    """Let the service judge a token with *claims*; it fetches the keys from the provider's own routes."""
    now = int(time.time())
    common = {"iss": ISSUER, "iat": now, "exp": now + 300, "jti": "1", "scope": "openid profile"}
    token = jwt.encode({"alg": "RS256", "typ": "JWT", "kid": key.kid}, {**common, **claims}, key)
    provider = httpx.ASGITransport(create_app(Provider(ISSUER, REALM, [], key)))

    async def ask() -> Operator:
        clock = SystemClock()
        oidc = OIDC(SETTINGS, clock, transport=provider)
        try:
            return await oidc.operator(token, Origin(request_id="test", address="192.0.2.1"), clock.now())
        finally:
            await oidc.aclose()

    return asyncio.run(ask())


@pytest.mark.parametrize("client", SETTINGS.oidc_clients)
@pytest.mark.parametrize(
    ("role", "duty"),
    [
        ("attestation-operator", Duty.OPERATOR),
        ("attestation-viewer", Duty.VIEWER),
        ("attestation-auditor", Duty.AUDITOR),
    ],
)
def test_a_token_of_the_realm_is_accepted(key: RSAKey, client: str, role: str, duty: Duty) -> None:
    """With the defaults of the settings, each role gives its duty, through each client."""
    found = _judge(key, REALM.access_claims(client, _person(role, "offline_access")))
    assert (found.cn, found.sub, found.method) == ("alice", f"{ISSUER}#{SUB}", Method.OIDC)
    assert found.duties == {duty}


@pytest.mark.parametrize("roles", [(), ("offline_access",), ("attestation-metrics",)], ids=str)
def test_who_has_no_role_is_known_and_may_nothing(key: RSAKey, roles: tuple[str, ...]) -> None:
    """Being in the realm is not enough; the answer says which roles would be."""
    with pytest.raises(Forbidden, match="alice has none of the roles attestation-auditor, "):
        _judge(key, REALM.access_claims("attestation-cli", _person(*roles)))


@pytest.mark.parametrize(
    ("scope", "error", "said"),
    [
        (
            "attestation-api",
            Unauthenticated,
            r"token has aud=\[\], expected attestation-service; add an audience",
        ),
        ("basic", Unauthenticated, "token has no sub; in Keycloak, give the client the scope basic"),
        (
            "roles",
            Forbidden,
            "token carries no roles at all; a lightweight access token, or a client without",
        ),
    ],
)
def test_a_missing_scope_is_named(key: RSAKey, scope: str, error: type[Exception], said: str) -> None:
    """Whoever sets a realm up by hand and forgets one is told which (docs/operate/keycloak.md)."""
    with pytest.raises(error, match=said):
        _judge(key, _without(scope).access_claims("attestation-cli", _person("attestation-operator")))


def test_the_texts_stand_in_the_documentation() -> None:
    """docs/operate/keycloak.md explains each of these answers."""
    page = (Path(__file__).resolve().parents[3] / "docs/operate/keycloak.md").read_text(encoding="utf-8")
    for text in (
        "expected attestation-service; add an audience mapper",
        "token has no sub",
        "carries no roles at all",
        "has none of the roles",
        "which is not one of the clients accepted",
        "token expired",
        "was issued in the future",
    ):
        assert text in page
