"""The realm for Keycloak issues the tokens that the service demands by its defaults, and nothing more.

Keycloak itself is not run here. What it does with the file was read in its source (docs/operate/keycloak.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from attestation_service.settings import Settings
from tests.docs.pages import text
from tools.keycloak_realm import DEVICE_GRANT, PKCE, Person, Realm

REALM = Realm.load()
DOCUMENT = REALM.document
SETTINGS = Settings()
OURS = ("attestation-service", "attestation-cli", "attestation-web")
DUTIES = (SETTINGS.oidc_operator_role, SETTINGS.oidc_viewer_role, SETTINGS.oidc_auditor_role)
ALICE = Person(
    username="alice",
    sub="5b0e6a0c-0d84-4a1e-8f39-3f8f2b9f3d11",
    name="Alice",
    email="alice@itl.example",
    roles=(SETTINGS.oidc_operator_role, "default-roles-itl", "offline_access"),
)


def _client(client_id: str) -> Any:
    client = REALM.client(client_id)
    assert client is not None, client_id
    return client


def _members(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name, inner
            yield from _members(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _members(inner)


def test_the_realm_is_the_one_that_the_documentation_names() -> None:
    """The issuer ends in `/realms/itl`, and the realm is on."""
    assert REALM.name == "itl"
    assert DOCUMENT["enabled"] is True


def test_the_audience_is_the_one_that_the_service_demands() -> None:
    """One mapper writes `aud` into access tokens: `ITL_OIDC_AUDIENCE`, which is a client of the realm."""
    found = {
        (scope["name"], mapper["config"]["included.client.audience"], mapper["config"]["access.token.claim"])
        for scope in DOCUMENT["clientScopes"]
        for mapper in scope.get("protocolMappers", ())
        if mapper["protocolMapper"] == "oidc-audience-mapper"
    }
    assert found == {("attestation-api", SETTINGS.oidc_audience, "true")}
    assert REALM.client(SETTINGS.oidc_audience) is not None


def test_exactly_the_clients_that_the_service_accepts_get_that_audience() -> None:
    """Clients with the scope `attestation-api` by default are those of `ITL_OIDC_CLIENTS`."""
    having = {
        c["clientId"] for c in DOCUMENT["clients"] if "attestation-api" in c.get("defaultClientScopes", ())
    }
    assert having == set(SETTINGS.oidc_clients)
    assert "attestation-api" not in DOCUMENT["defaultDefaultClientScopes"]
    assert not any("attestation-api" in c.get("optionalClientScopes", ()) for c in DOCUMENT["clients"])


def test_the_roles_are_those_of_the_settings() -> None:
    """Operator, viewer and auditor are realm roles by their default names, and metrics beside them."""
    names = {role["name"] for role in DOCUMENT["roles"]["realm"]}
    assert {name for name in names if name.startswith("attestation-")} == {*DUTIES, "attestation-metrics"}
    assert SETTINGS.oidc_role_client == ""  # so realm roles count


def test_nobody_gets_a_role_by_default() -> None:
    """Whoever is added to the realm may do nothing until somebody gives them a role."""
    (default,) = (r for r in DOCUMENT["roles"]["realm"] if r["name"] == DOCUMENT["defaultRole"]["name"])
    assert not [name for name in default["composites"]["realm"] if name.startswith("attestation-")]
    assert "defaultGroups" not in DOCUMENT


@pytest.mark.parametrize("client_id", SETTINGS.oidc_clients)
def test_a_token_carries_what_the_validator_reads(client_id: str) -> None:
    """`aud`, `azp`, `sub`, `typ`, the name and our roles stand in an access token; foreign roles do not travel."""
    assert REALM.access_claims(client_id, ALICE) == {
        "typ": "Bearer",
        "azp": client_id,
        "aud": SETTINGS.oidc_audience,
        "sub": ALICE.sub,
        "preferred_username": "alice",
        "name": "Alice",
        "email": "alice@itl.example",
        "realm_access": {"roles": [SETTINGS.oidc_operator_role]},
    }


@pytest.mark.parametrize("client_id", SETTINGS.oidc_clients)
def test_each_duty_travels(client_id: str) -> None:
    """A role without a scope mapping would silently be left out of the token."""
    assert REALM.roles_for(client_id, DUTIES) == list(DUTIES)
    assert _client(client_id)["fullScopeAllowed"] is False


def test_the_command_line_is_a_public_client_with_pkce_and_device_flow() -> None:
    """It has no secret to lose, must prove that it began the login, and may use another device."""
    client = _client("attestation-cli")
    assert client["publicClient"] is True
    assert client["standardFlowEnabled"] is True
    assert client["attributes"][PKCE] == "S256"
    assert client["attributes"][DEVICE_GRANT] == "true"
    assert client["redirectUris"] == ["http://127.0.0.1/callback"]
    assert client["webOrigins"] == []


@pytest.mark.parametrize(
    ("uri", "accepted"),
    [
        ("http://127.0.0.1:49152/callback", True),
        ("http://127.0.0.1/callback", True),
        ("http://127.0.0.1:49152/other", False),
        ("http://127.0.0.1:49152/callback?next=x", False),
        ("http://localhost:49152/callback", False),
        ("https://127.0.0.1:49152/callback", False),
        ("http://127.0.0.1:49152@evil.example/callback", False),
        ("http://127.0.0.1.evil.example/callback", False),
        ("http://evil@127.0.0.1/callback", False),
        ("", False),
    ],
)
def test_the_code_goes_to_this_computer_only(uri: str, *, accepted: bool) -> None:
    """Any port of 127.0.0.1 with that path (RFC 8252 §7.3), and nothing else."""
    assert REALM.redirects("attestation-cli", uri) is accepted


def test_the_dashboard_is_confidential() -> None:
    """One exact redirect, PKCE, no device flow, and Keycloak tells it when a session ends."""
    client = _client("attestation-web")
    assert client["publicClient"] is False
    assert client["attributes"][PKCE] == "S256"
    assert client["attributes"][DEVICE_GRANT] == "false"
    (redirect,) = client["redirectUris"]
    assert "*" not in redirect
    assert client["attributes"]["backchannel.logout.url"].startswith("http")
    assert client["attributes"]["backchannel.logout.session.required"] == "true"


def test_nobody_logs_in_as_the_service() -> None:
    """`attestation-service` is an audience: each flow is off."""
    client = _client("attestation-service")
    assert client["standardFlowEnabled"] is False
    assert client["publicClient"] is False
    assert client["redirectUris"] == []
    assert client.get("attributes", {}).get(DEVICE_GRANT, "false") == "false"


@pytest.mark.parametrize("client_id", OURS)
def test_no_client_takes_passwords_or_skips_the_person(client_id: str) -> None:
    """Direct access grants, the implicit flow and service accounts are off, and no redirect has a wildcard."""
    client = _client(client_id)
    assert client["directAccessGrantsEnabled"] is False
    assert client["implicitFlowEnabled"] is False
    assert client["serviceAccountsEnabled"] is False
    assert client["frontchannelLogout"] is False
    assert not any("*" in uri for uri in client["redirectUris"])


def test_there_are_no_secrets_and_no_people_in_the_file() -> None:
    """Keycloak makes the secret of the dashboard and the keys of the realm itself, anew for each import."""
    forbidden = {
        "secret",
        "users",
        "federatedUsers",
        "credentials",
        "privateKey",
        "certificate",
        "components",
    }
    assert forbidden.isdisjoint(name for name, _ in _members(DOCUMENT))
    assert "id" not in {name for name, _ in _members(DOCUMENT)}


def test_the_realm_is_careful() -> None:
    """Guessing is slowed, TLS demanded, nobody registers themselves, tokens are short, refresh tokens good once."""
    assert DOCUMENT["bruteForceProtected"] is True
    assert DOCUMENT["failureFactor"] <= 10
    assert DOCUMENT["sslRequired"] == "external"
    assert DOCUMENT["registrationAllowed"] is False
    assert DOCUMENT["editUsernameAllowed"] is False
    assert DOCUMENT["accessTokenLifespan"] <= 300
    assert DOCUMENT["accessCodeLifespan"] <= 60
    assert DOCUMENT["ssoSessionIdleTimeout"] <= 3600
    assert DOCUMENT["ssoSessionMaxLifespan"] <= 43_200
    assert DOCUMENT["offlineSessionMaxLifespanEnabled"] is True
    assert DOCUMENT["revokeRefreshToken"] is True
    assert DOCUMENT["refreshTokenMaxReuse"] == 0
    assert DOCUMENT["defaultSignatureAlgorithm"] == "RS256"
    assert DOCUMENT["eventsEnabled"] is True


def test_every_name_in_the_file_is_defined_in_it() -> None:
    """A realm file with scopes of its own gets none of Keycloak's: each that is named must be there.

    Without `basic` there is no `sub`, without `roles` no roles, without `profile` no name.
    """
    scopes = {scope["name"] for scope in DOCUMENT["clientScopes"]}
    roles = {role["name"] for role in DOCUMENT["roles"]["realm"]}
    clients = {client["clientId"] for client in DOCUMENT["clients"]}
    for client in DOCUMENT["clients"]:
        named = {*client.get("defaultClientScopes", ()), *client.get("optionalClientScopes", ())}
        assert named <= scopes, client["clientId"]
    assert {*DOCUMENT["defaultDefaultClientScopes"], *DOCUMENT["defaultOptionalClientScopes"]} <= scopes
    for mapping in DOCUMENT["scopeMappings"]:
        assert set(mapping["roles"]) <= roles
        assert mapping.get("client", "attestation-cli") in clients
        assert mapping.get("clientScope", "basic") in scopes
    assert set(DOCUMENT["roles"]["client"]) <= clients
    assert {"basic", "profile", "roles"} <= {*DOCUMENT["defaultDefaultClientScopes"]}


@pytest.mark.parametrize("client_id", ["account-console", "security-admin-console"])
def test_the_consoles_of_keycloak_keep_their_scopes(client_id: str) -> None:
    """Made by Keycloak before it reads our scopes, they would have none, and answer Forbidden to everybody."""
    client = _client(client_id)
    assert {"basic", "profile", "roles", "web-origins"} <= set(client["defaultClientScopes"])
    assert client["attributes"][PKCE] == "S256"


def test_the_page_explains_what_the_file_makes() -> None:
    """Each of our roles, clients and scopes has its word in docs/operate/keycloak.md, with the lifetimes."""
    page = text("docs/operate/keycloak.md")
    for name in (*OURS, *DUTIES, "attestation-metrics", "attestation-api", "http://127.0.0.1/callback"):
        assert f"`{name}`" in page, name
    assert f"Access tokens live {DOCUMENT['accessTokenLifespan'] // 60} minutes" in page
    assert f"sessions {DOCUMENT['ssoSessionIdleTimeout'] // 60} minutes idle" in page
    assert f"{DOCUMENT['ssoSessionMaxLifespan'] // 3600} hours at most" in page
    assert f"events are kept for {DOCUMENT['eventsExpiration'] // 86400} days" in page
