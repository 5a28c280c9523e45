"""What the commands about logins share: the options that say which one is meant, and how one is shown."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from attestation.client.text import clean
from attestation_cli.login.cache import Login
from attestation_cli.login.current import Wanted
from attestation_cli.login.errors import ConfigInvalid
from attestation_cli.login.profiles import keycloak_issuer
from attestation_cli.render import instant, moment
from attestation_cli.session import Session

Command = TypeVar("Command", bound=Callable[..., Any])


def identity_options(command: Command) -> Command:
    """Add the options that say which login is meant."""
    for option in (
        click.option("--realm", hidden=True, help="Realm of --keycloak-url, as earlier versions took it."),
        click.option("--keycloak-url", hidden=True, metavar="URL", help="As earlier versions took it."),
        click.option(
            "-u",
            "--user",
            metavar="USER",
            help="Whose login, where several share this account: name, e-mail or sub.",
        ),
        click.option(
            "--client-id",
            metavar="ID",
            help="How the provider knows this program [ITL_OIDC_CLIENT_ID; default attestation-cli].",
        ),
        click.option(
            "--issuer", metavar="URL", help="The identity provider, as it calls itself [ITL_OIDC_ISSUER]."
        ),
    ):
        command = option(command)
    return command


def login_meant(
    session: Session,
    *,
    issuer: str | None,
    client_id: str | None,
    user: str | None,
    keycloak_url: str | None,
    realm: str | None,
) -> Wanted:
    """Return which login is meant by what `identity_options` adds.

    Raises:
        ConfigInvalid: A realm, and no address of its Keycloak.
    """
    if issuer is None and (keycloak_url or realm):
        base = keycloak_url or os.environ.get("KEYCLOAK_URL", "").strip()
        if not base:
            raise ConfigInvalid("--realm needs --keycloak-url or KEYCLOAK_URL; better: --issuer URL")
        issuer = keycloak_issuer(base, realm or os.environ.get("KEYCLOAK_REALM", "").strip())
    return session.wanted(issuer=issuer, client_id=client_id, user=user)


def roles_of(login: Login) -> list[str]:
    """Return the roles that the token of *login* names, unverified."""
    from attestation.client.openid.claims import roles, unverified_claims

    return roles(unverified_claims(login.access_token))


def realm_of(login: Login) -> str | None:
    """Return the realm of *login*, where its provider is a Keycloak."""
    head, found, tail = login.issuer.rpartition("/realms/")
    return tail if found and head else None


def members_of(login: Login) -> dict[str, str | bool | None]:
    """Return what may be shown of *login*: no token."""
    return {
        "username": login.username,
        "email": login.email,
        "subject": login.subject,
        "realm": realm_of(login),
        "issuer": login.issuer,
        "client_id": login.client_id,
        "expires_at": instant(login.expires_at),
        "renewable": login.refresh_token is not None,
        "kept_in": "keyring" if login.keyring else "file",
    }


def emit_login(session: Session, login: Login, more: dict[str, str]) -> None:
    """Print that somebody is logged in, and until when."""
    if session.json:
        session.emit_json({**members_of(login), "roles": roles_of(login), **more})
        return
    ends = moment(login.expires_at, datetime.now(UTC))
    renewal = " and is renewed by itself." if login.refresh_token is not None else "; then log in again."
    session.emit_done(
        f"Logged in as {clean(login.shown_name)} at {clean(login.issuer)}.\nThe token ends {ends}{renewal}",
        {**members_of(login), **more},
    )
