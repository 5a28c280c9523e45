"""What Keycloak does with a realm file, as far as our tokens are concerned.

The realm that we ship (`deploy/keycloak/itl-realm.json`) says who may log in where and what stands in a token. The
demo's identity provider obeys it by these rules, and the tests judge it by them.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

TEMPLATE: Final = Path(__file__).resolve().parents[1] / "deploy/keycloak/itl-realm.json"
OPENID: Final = "/protocol/openid-connect"
"""Where a realm keeps its endpoints, below the issuer."""
DEVICE_GRANT: Final = "oauth2.device.authorization.grant.enabled"
DASHBOARD: Final = "attestation-web"
POST_LOGOUT: Final = "post.logout.redirect.uris"
PKCE: Final = "pkce.code.challenge.method"


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """A user of the realm.

    Args:
        sub: Stable id, a UUID.
        roles: Names of realm roles.
    """

    username: str
    sub: str
    name: str
    email: str
    roles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Realm:
    """A parsed realm file, in the form of Keycloak's RealmRepresentation."""

    document: Mapping[str, Any]

    @classmethod
    def load(cls, path: Path = TEMPLATE) -> Self:
        """Read a realm file."""
        return cls(json.loads(path.read_text(encoding="utf-8")))

    def with_dashboard(self, url: str) -> Self:
        """Return the realm with the addresses of a dashboard at *url*, as the file says that they are changed."""
        document = copy.deepcopy(dict(self.document))
        client = next(c for c in document["clients"] if c["clientId"] == DASHBOARD)
        client["redirectUris"] = [f"{url}/auth/callback"]
        client["attributes"] |= {
            POST_LOGOUT: f"{url}/auth/logged-out",
            "backchannel.logout.url": f"{url}/auth/backchannel-logout",
        }
        return type(self)(document)

    @property
    def name(self) -> str:
        """The last part of the issuer."""
        return str(self.document["realm"])

    def client(self, client_id: str) -> Mapping[str, Any] | None:
        """Return a client, or None where the realm has no such one."""
        return next((c for c in self.document["clients"] if c["clientId"] == client_id), None)

    def redirects(self, client_id: str, uri: str) -> bool:
        """True where the client may be sent to *uri*: it is registered, or is so without the port and on 127.0.0.1."""
        client = self.client(client_id)
        if client is None:
            return False
        parts = urlsplit(uri)
        without_port = (
            f"http://127.0.0.1{parts.path}"
            if (parts.scheme, parts.hostname) == ("http", "127.0.0.1")
            else uri
        )
        exact = not (parts.query or parts.fragment or parts.username or parts.password)
        return exact and bool({uri, without_port} & set(client["redirectUris"]))

    def mappers(self, client_id: str) -> Iterator[Mapping[str, Any]]:
        """Yield the protocol mappers of the client and of its default scopes."""
        client = self.client(client_id)
        assert client is not None, client_id
        yield from client.get("protocolMappers", ())
        for scope in self.document["clientScopes"]:
            if scope["name"] in client.get("defaultClientScopes", ()):
                yield from scope.get("protocolMappers", ())

    def roles_for(self, client_id: str, roles: Sequence[str]) -> list[str]:
        """Return those of *roles* that a token for the client may carry."""
        client = self.client(client_id)
        assert client is not None, client_id
        if client["fullScopeAllowed"]:
            return list(roles)
        mapped = {
            role
            for mapping in self.document["scopeMappings"]
            if mapping.get("client") == client_id
            for role in mapping["roles"]
        }
        return [role for role in roles if role in mapped]

    def access_claims(self, client_id: str, person: Person) -> dict[str, Any]:
        """Return what the realm's mappers write into an access token for *person*."""
        audience: list[str] = []
        claims: dict[str, Any] = {"typ": "Bearer", "azp": client_id}
        for mapper in self.mappers(client_id):
            config = mapper["config"]
            if config.get("access.token.claim") != "true":
                continue
            match mapper["protocolMapper"]:
                case "oidc-audience-mapper":
                    audience.append(config["included.client.audience"])
                case "oidc-sub-mapper":
                    claims["sub"] = person.sub
                case "oidc-full-name-mapper":
                    claims["name"] = person.name
                case "oidc-usermodel-realm-role-mapper":
                    claims["realm_access"] = {"roles": self.roles_for(client_id, person.roles)}
                case "oidc-usermodel-attribute-mapper" if config["user.attribute"] in ("username", "email"):
                    claims[config["claim.name"]] = getattr(person, config["user.attribute"])
                case _:
                    # Nothing in it decides: names in parts, web origins, the time of the login.
                    continue
        if audience:
            # Keycloak writes one audience as a string.
            claims["aud"] = audience[0] if len(audience) == 1 else audience
        return claims
