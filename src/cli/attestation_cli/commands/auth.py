"""`attestation auth …`: log in and out; who you are."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

import click

from attestation.client.openid.errors import LoginNeeded, ProviderInvalid, ProviderUnreachable
from attestation.client.text import clean
from attestation_cli.commands.auth_login import login
from attestation_cli.login.cache import Login, LoginCache, Unusable
from attestation_cli.login.current import Wanted, bearer, find, known
from attestation_cli.login_screen import (
    emit_login,
    identity_options,
    login_meant,
    members_of,
    realm_of,
    roles_of,
)
from attestation_cli.options import listing, printing
from attestation_cli.render import Cell, Column, cell, instant, moment, moment_cell
from attestation_cli.session import Session


@click.group("auth")
def group() -> None:
    """Log in and out; who you are.

    \b
    Your identity provider says who you are; the service decides what you may do
    by the roles that it gives you: attestation-operator, -viewer or -auditor. A
    login is kept in ~/.itl/attestation-cache, readable by you only, and renewed
    by itself as long as the provider allows.

    \b
    Examples:
      attestation auth login --issuer https://id.example/realms/itl --profile prod
      attestation auth whoami --check
      attestation auth logout
    """


@group.command()
@identity_options
@printing
def logout(session: Session, /, **identity: str | None) -> None:
    """Forget a login, and end it at the provider.

    The refresh token is revoked (RFC 7009), so that a copy of it is worth nothing either. If the provider cannot
    be reached, the login is forgotten all the same.

    \b
    Examples:
      attestation auth logout
      attestation --profile prod auth logout
      attestation auth logout -u anna
    """
    chosen = login_meant(session, **identity)
    cache = LoginCache(note=session.note)
    login = find(cache, chosen)
    if login is None:
        session.emit_done("There is no such login.", {"removed": False, "revoked": False})
        return
    # Under the lock: a command that renews it just now would put it back.
    with cache.lock(login.name):
        login = cache.load(login.name) or login
        cache.remove(login)
    revoked = _revoke(session, login, chosen)
    told = "and the provider has ended it" if revoked else "but the provider has not ended it"
    session.emit_done(
        f"The login of {clean(login.shown_name)} at {clean(login.issuer)} is forgotten, {told}.",
        {"removed": True, "revoked": revoked, **members_of(login)},
    )
    # Without an option that only this run had: what the next command would use, and nobody may expect.
    following = known(cache, session.wanted())
    session.note(
        "No login is in use now."
        if following is None
        else f"In use now: the older login of {clean(following.shown_name)} at {clean(following.issuer)}; "
        "`attestation auth logout` ends that too."
    )


def _revoke(session: Session, login: Login, chosen: Wanted) -> bool:
    from attestation.client.openid.discovery import Provider
    from attestation_cli.login.tokens import revoked

    try:
        with Provider(login.issuer, ca_file=chosen.ca_file, carrier=session.login_carrier) as provider:
            return revoked(provider, login)
    except (ProviderUnreachable, ProviderInvalid) as e:
        session.note(f"note: {clean(str(e))}; a copy of the login would still work there")
        return False


@group.command()
@identity_options
@click.option(
    "--check", is_flag=True, help="Ask the service whether it accepts the login, and what it lets you do."
)
@printing
@click.pass_context
def whoami(ctx: click.Context, session: Session, /, *, check: bool, **identity: str | None) -> None:
    """Show who you are.

    Whose login is used, what its token says, and until when. The token is shown as it describes itself; only the
    service verifies it: with --check it is asked. Exit code 1 where there is no login, or it has ended, or no role
    lets you do anything.

    \b
    Examples:
      attestation auth whoami
      attestation auth whoami --check
      attestation auth whoami -o json
    """
    chosen = login_meant(session, **identity)
    cache = LoginCache(note=session.note)
    login = find(cache, chosen)
    if os.environ.get("ITL_ADMIN_TOKEN", "").strip() or session.token_file is not None:
        session.note("note: other commands use break-glass (ITL_ADMIN_TOKEN or --token-file), not a login")
    if login is None:
        if session.json:
            session.emit_json({"logged_in": False})
        else:
            session.note("You are not logged in: `attestation auth login`.")
        ctx.exit(1)
    may = _check(session, cache, chosen) if check else None
    login = find(cache, chosen) or login
    over = datetime.now(UTC) >= login.expires_at and login.refresh_token is None
    if session.json:
        shown = {**members_of(login), "roles": roles_of(login), "expired": over, "verified": bool(may)}
        session.emit_json({"logged_in": True, **shown, **({} if may is None else {"may": may})})
    else:
        session.emit_fields(_rows(session, login, may))
    if over or may == []:
        ctx.exit(1)


def _rows(session: Session, login: Login, may: list[str] | None) -> list[tuple[str, Cell]]:
    now = datetime.now(UTC)
    renewal = "renewed by itself" if login.refresh_token is not None else "then log in again"
    rows = [
        ("user", cell(login.shown_name)),
        ("e-mail", cell(login.email)),
        ("realm", cell(realm_of(login))),
        ("issuer", cell(login.issuer)),
        ("roles", cell(", ".join(roles_of(login)) or "none in the token")),
        ("expires", cell(f"{moment(login.expires_at, now)}, {renewal}", instant(login.expires_at))),
        ("service", cell(session.url)),
    ]
    if may is None:
        rows.append(
            (
                "verified",
                Cell("no: this is what the token says of itself; --check asks the service", "yellow"),
            )
        )
    elif may:
        rows.append(("verified", Cell(f"yes, by the service; you may: {', '.join(may)}", "green")))
    else:
        rows.append(("verified", Cell("yes, by the service; but no role lets you do anything there", "red")))
    return rows


RIGHTS = {
    "read": "read machines",
    "act": "decide about machines and what they are measured against",
    "audit": "read the audit log",
}
"""What each right of the service lets somebody do."""


def _check(session: Session, cache: LoginCache, chosen: Wanted) -> list[str]:
    """Ask the service; return what the login may do there.

    Raises:
        Unauthenticated: The service does not accept it.
    """
    from attestation.errors import Forbidden

    with session.client(bearer(cache, chosen, carrier=session.login_carrier)) as client:
        try:
            found = client.whoami()
        except Forbidden:
            return []
    return [
        f"{RIGHTS.get(right, right)}, in {' and '.join(found.clusters[right])} only"
        if right in found.clusters
        else RIGHTS.get(right, right)
        for right in found.rights
    ]


@group.command()
@identity_options
@printing
def refresh(session: Session, /, **identity: str | None) -> None:
    """Renew a login now.

    E.g. to get a role that was just granted. Not needed otherwise: a command renews a login that ends within five
    minutes by itself.

    \b
    Examples:
      attestation auth refresh
      attestation auth refresh && attestation auth whoami
    """
    from attestation_cli.login.current import refresh as renew

    chosen = login_meant(session, **identity)
    cache = LoginCache(note=session.note)
    login = find(cache, chosen)
    if login is None:
        raise LoginNeeded(f"there is no login to renew{f' at {chosen.issuer}' if chosen.issuer else ''}")
    emit_login(
        session,
        renew(cache, login, ca_file=chosen.ca_file, force=True, carrier=session.login_carrier),
        {},
    )


@group.command("cache-list")
@listing
def cache_list(session: Session) -> None:
    """List the logins that are kept.

    Newest first, which is the one that commands use; no token is shown.

    \b
    Examples:
      attestation auth cache-list
      attestation auth cache-list -o json
    """
    entries = LoginCache(note=session.note).entries()
    logins = [entry for entry in entries if isinstance(entry, Login)]
    for entry in entries:
        if isinstance(entry, Unusable):
            session.note(f"warning: {clean(entry.reason)}")
    now = datetime.now(UTC)
    if session.json:
        shown: list[dict[str, Any]] = [
            {**members_of(e), "state": _state(e, now), "service": e.api_url} for e in logins
        ]
        session.emit_json(iter(shown))
        return
    session.emit_rows(
        logins,
        {
            Column("USER", shrink_to=8): lambda e: e.shown_name,
            Column("STATE"): lambda e: _coloured(_state(e, now)),
            Column("EXPIRES"): lambda e: moment_cell(e.expires_at, now),
            Column("ISSUER", shrink_to=16): lambda e: e.issuer,
            Column("CLIENT", shrink_to=8, drop=2): lambda e: e.client_id,
            Column("SERVICE", shrink_to=12, drop=1): lambda e: e.api_url,
            Column("KEPT IN", drop=3): lambda e: "keyring" if e.keyring else "file",
        },
        "No logins are kept.",
    )


def _state(login: Login, now: datetime) -> str:
    """Return `valid`, `renewable` (the token has ended, the login not) or `expired`."""
    if not login.is_expired(now):
        return "valid"
    return "renewable" if login.refresh_token is not None or login.keyring else "expired"


def _coloured(state: str) -> Cell:
    return Cell(state, {"valid": "green", "renewable": "yellow"}.get(state, "red"))


@group.command("clear-cache")
@click.option("--yes", is_flag=True, help="Do not ask.")
@printing
def clear_cache(session: Session, *, yes: bool) -> None:
    """Forget every login.

    Also those that cannot be used any more. The providers are not asked to end them; `attestation auth logout` does
    that for one.

    \b
    Examples:
      attestation auth clear-cache
      attestation auth clear-cache --yes
    """
    cache = LoginCache(note=session.note)
    count = len(cache.entries())
    if count:
        session.confirm(f"Forget {count} login{'s' if count > 1 else ''}?", yes=yes)
    deleted = cache.clear()
    session.emit_done(f"{deleted} login{'' if deleted == 1 else 's'} forgotten.", {"deleted": deleted})


group.add_command(login)
