"""Operators for tests that are about rights and votes, not about how a token is verified (test_oidc.py is)."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from attestation.errors import Unauthenticated
from attestation_service.auth import Duty, Method, Operator
from attestation_service.context.request import Origin
from attestation_service.resources import Resources

ISSUER = "https://sts.example/realms/itl"


class People:
    """Knows everybody whom a test introduces; stands where `auth.oidc.OIDC` stands."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, frozenset[Duty]]] = {}
        self.within: dict[str, frozenset[tuple[Duty, str]]] = {}
        self.logged_in: dict[str, datetime | None] = {}

    def headers(self, name: str, *duties: Duty) -> dict[str, str]:
        """Introduce *name* with *duties*, an operator where none is named, and return their credential."""
        token = f"token.of.{name}"
        self._known[token] = (name, frozenset(duties or {Duty.OPERATOR}))
        return {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def of_clusters(self, name: str, *clusters: str, duty: Duty = Duty.OPERATOR) -> dict[str, str]:
        """Introduce *name*, who has one duty in *clusters* and none in others, and return their credential."""
        headers = self.headers(name)
        self._known[f"token.of.{name}"] = (name, frozenset())
        self.within[name] = frozenset((duty, each) for each in clusters)
        return headers

    async def operator(self, token: str, origin: Origin, at: datetime) -> Operator:
        """See `context.AccessTokens.operator`."""
        if token not in self._known:
            raise Unauthenticated("the token is not valid")
        name, duties = self._known[token]
        return Operator(
            cn=name,
            sub=f"{ISSUER}#{name}",
            source=origin.address,
            method=Method.OIDC,
            duties=duties,
            authenticated_at=self.logged_in.get(name, at),
            within=self.within.get(name, frozenset()),
        )


def introduce(resources: Resources) -> tuple[Resources, People]:
    """Return *resources* of a service that knows people, and the people."""
    people = People()
    return replace(resources, oidc=people), people
