"""`attestation auth …`: log in and out; who you are."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from attestation.client.text import clean
from attestation_cli.login.cache import Login, LoginCache, Unusable
from attestation_cli.login.current import Wanted, bearer, find, wanted
from attestation_cli.login.errors import ConfigInvalid, LoginNeeded, ProviderInvalid, ProviderUnreachable
from attestation_cli.login.profiles import (
    Profile,
    check_name,
    check_value,
    config_path,
    keycloak_issuer,
    load,
    save,
)
from attestation_cli.render import Cell, Column, cell, fields, instant, moment, moment_cell
from attestation_cli.session import Refused, Session, is_terminal, output_option, pass_session

if TYPE_CHECKING:
    from attestation_cli.login.device import DeviceCode
    from attestation_cli.login.discovery import Provider

Command = TypeVar("Command", bound=Callable[..., Any])

METHODS = ("interactive", "device", "password")
NO_PROVIDER = "an identity provider is needed: --issuer URL, ITL_OIDC_ISSUER, or a profile that names one"


@click.group("auth")
def group() -> None:
    """Log in and out; who you are.

    \b
    Your identity provider says who you are; the service decides what you may do by
    the roles that it gives you: attestation-operator, -viewer or -auditor. A login
    is kept in ~/.itl/attestation-cache, readable by you only, and renewed by itself
    as long as the provider allows.

    \b
    Examples:
      attestation auth login --issuer https://id.example/realms/itl --profile prod
      attestation auth whoami --check
      attestation auth logout
    """


def _identity(command: Command) -> Command:
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


def _wanted(
    session: Session,
    *,
    issuer: str | None,
    client_id: str | None,
    user: str | None,
    keycloak_url: str | None,
    realm: str | None,
) -> Wanted:
    if issuer is None and (keycloak_url or realm):
        base = keycloak_url or os.environ.get("KEYCLOAK_URL", "").strip()
        if not base:
            raise ConfigInvalid("--realm needs --keycloak-url or KEYCLOAK_URL; better: --issuer URL")
        issuer = keycloak_issuer(base, realm or os.environ.get("KEYCLOAK_REALM", "").strip())
    return wanted(session, issuer=issuer, client_id=client_id, user=user)


@group.command()
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default="interactive",
    show_default=True,
    help="With a browser here, with another device, or (discouraged) with a password typed here.",
)
@_identity
@click.option(
    "--profile", "profile_name", metavar="NAME", help="Remember service and provider under this name."
)
@click.option("--fresh", is_flag=True, help="Log in anew, also where the browser remembers somebody.")
@click.option("--no-browser", is_flag=True, help="Print the address instead of opening a browser.")
@click.option("--keyring", is_flag=True, help="Keep the tokens in the keyring of the system.")
@click.option(
    "--issuer-ca-file",
    metavar="FILE",
    help="PEM file with the only CAs to trust for the provider, or `system` [ITL_OIDC_CA_FILE; default as --ca-file].",
)
@click.option("--scope", metavar="WORDS", help="What is asked for [default: openid profile email].")
@output_option
@pass_session
def login(
    session: Session,
    /,
    method: str,
    profile_name: str | None,
    issuer_ca_file: str | None,
    scope: str | None,
    *,
    fresh: bool,
    no_browser: bool,
    keyring: bool,
    **identity: str | None,
) -> None:
    """Log in at the identity provider.

    \b
    interactive  a browser on this computer opens; you log in there, with whatever
                 second factor the provider wants. The answer comes back to a port
                 of this computer that only this login knows. 2 minutes.
    device       without a browser here, e.g. over ssh: an address, a short code and
                 a QR code are shown; you log in with any device.
    password     DISCOURAGED: the password is typed into this program, second
                 factors do not work, and most providers refuse it. It is always
                 asked for, never taken from the command line.

    With --profile the service and the provider are remembered, so that afterwards
    `attestation --profile NAME …` is enough; the first profile is used by itself.

    \b
    Examples:
      attestation --api-url https://attest.example auth login \\
          --issuer https://id.example/realms/itl --profile prod
      attestation auth login                      # again, later
      attestation auth login --method device      # over ssh
      attestation auth login --fresh -u ben       # as somebody else than the browser remembers
      attestation auth login --keyring            # tokens in the system's keyring
    """
    from attestation_cli.login.discovery import Provider
    from attestation_cli.login.tokens import SCOPE

    if profile_name is not None:
        check_name(profile_name)
        session.profile_name = profile_name
        session.profile = load(config_path()).profiles.get(profile_name, Profile())
        session.apply_settings()
    chosen = _wanted(session, **identity)
    issuer = chosen.issuer
    if issuer is None:
        raise ConfigInvalid(NO_PROVIDER)
    if issuer_ca_file is not None:
        check_value("issuer_ca_file", issuer_ca_file, "--issuer-ca-file")
        chosen = replace(chosen, ca_file=issuer_ca_file)
    cache, in_keyring = LoginCache(note=session.note), keyring or bool(session.profile.keyring)
    # Before anybody is asked for anything: what comes must be kept safely.
    cache.prepare(keyring=in_keyring)
    with Provider(issuer, ca_file=chosen.ca_file, transport=session.login_transport) as provider:
        found = _ask(session, provider, method, chosen, scope or SCOPE, fresh=fresh, no_browser=no_browser)
    found = replace(found, api_url=chosen.api_url, keyring=in_keyring)
    with cache.lock(found.name):
        cache.save(found)
    if profile_name is not None:
        session.profile = _remember(
            session,
            chosen,
            profile_name,
            user=identity["user"],
            issuer_ca_file=issuer_ca_file,
            keyring=keyring,
        )
    _tell(session, found, {"profile": profile_name} if profile_name else {})
    _warn(session, cache, found)


def _ask(
    session: Session,
    provider: Provider,
    method: str,
    chosen: Wanted,
    scope: str,
    *,
    fresh: bool,
    no_browser: bool,
) -> Login:
    match method:
        case "device":
            from attestation_cli.login import device

            return device.login(
                provider,
                client_id=chosen.client_id,
                scope=scope,
                show=lambda code: _show_code(session, code),
                now=_now,
            )
        case "password":
            from attestation_cli.login import password

            if not is_terminal():
                raise Refused("a password is asked for at a terminal only")
            session.note("This passes your password through this program; `--method interactive` does not.")
            name = chosen.user or click.prompt("Name", err=True)
            return password.login(
                provider,
                client_id=chosen.client_id,
                scope=scope,
                username=name,
                ask=lambda: str(click.prompt("Password", hide_input=True, err=True)),
                now=_now,
            )
        case _:
            from attestation_cli.login import interactive

            return interactive.login(
                provider,
                client_id=chosen.client_id,
                scope=scope,
                show=lambda url: _show_address(session, url, no_browser=no_browser),
                now=_now,
                user=chosen.user,
                fresh=fresh,
            )


def _show_address(session: Session, url: str, *, no_browser: bool) -> None:
    from attestation_cli.login.interactive import WAIT_SECONDS, browser_opens, open_browser

    opened = not no_browser and browser_opens() and open_browser(url)
    if opened:
        session.note("Your browser shows the login of the identity provider. If it does not, open:")
    else:
        session.note("Open this address in a browser on this computer:")
    session.note(f"\n  {clean(url)}\n")
    if os.environ.get("SSH_CONNECTION"):
        session.note("You came over ssh: if your browser is elsewhere, end this and take `--method device`.")
    session.note(f"Waiting for the answer, at most {WAIT_SECONDS / 60:.0f} min; Ctrl-C ends it.")


def _show_code(session: Session, code: DeviceCode) -> None:
    import sys

    from attestation_cli.login.device import qr
    from attestation_cli.render import span

    lines = [
        ("On any device, open", Cell(clean(code.verification_uri))),
        ("and enter the code", Cell(clean(code.user_code), "green")),
    ]
    if code.verification_uri_complete is not None:
        lines.append(("or open", Cell(clean(code.verification_uri_complete))))
    session.note("")
    for line in fields(lines, colour=session.colour):
        session.note(f"  {line}")
    if code.verification_uri_complete is not None and sys.stderr.isatty():
        import shutil

        picture = qr(code.verification_uri_complete, shutil.get_terminal_size().columns)
        if picture is not None:
            session.note(f"\n{picture}")
    from datetime import timedelta

    session.note(f"\nWaiting for you, at most {span(timedelta(seconds=code.expires_in))}; Ctrl-C ends it.")


def _remember(
    session: Session,
    chosen: Wanted,
    name: str,
    *,
    user: str | None,
    issuer_ca_file: str | None,
    keyring: bool,
) -> Profile:
    path = config_path()
    config = load(path)
    known = config.profiles.get(name, Profile())
    given = {
        "api_url": chosen.api_url,
        "issuer": chosen.issuer,
        "client_id": chosen.client_id,
        "ca_file": _absolute(session.setting("ca_file").value),
        "issuer_ca_file": _absolute(issuer_ca_file or session.setting("issuer_ca_file").value),
        "user": user or known.user,
    }
    for setting, value in given.items():
        if value is not None:
            check_value(setting, value, f"profiles.{name}")
    profile = replace(known, keyring=keyring or known.keyring, **given)
    save(path, config.with_profile(name, profile))
    return profile


def _absolute(file: str | None) -> str | None:
    # What is remembered must mean the same in every directory; `system` is no file.
    return file if file in (None, "system") else str(Path(file).expanduser().absolute())


def _warn(session: Session, cache: LoginCache, found: Login) -> None:
    """Say where commands will not use this login, which would surprise."""
    if session.token_file is not None or os.environ.get("ITL_ADMIN_TOKEN", "").strip():
        session.note("note: --token-file or ITL_ADMIN_TOKEN is set and goes before this login")
    used = find(cache, wanted(session))
    if used is None or used.name != found.name:
        session.note(
            "note: without the options of this call, commands use another login or none; --profile NAME remembers them"
        )


def _now() -> datetime:
    return datetime.now(UTC)


def _roles(login: Login) -> list[str]:
    from attestation_cli.login.claims import roles, unverified_claims

    return roles(unverified_claims(login.access_token))


def _realm(login: Login) -> str | None:
    head, found, tail = login.issuer.rpartition("/realms/")
    return tail if found and head else None


def _as_json(login: Login) -> dict[str, str | bool | None]:
    """Return what may be shown of *login*: no token."""
    return {
        "username": login.username,
        "email": login.email,
        "subject": login.subject,
        "realm": _realm(login),
        "issuer": login.issuer,
        "client_id": login.client_id,
        "expires_at": instant(login.expires_at),
        "renewable": login.refresh_token is not None,
        "kept_in": "keyring" if login.keyring else "file",
    }


def _tell(session: Session, login: Login, more: dict[str, str]) -> None:
    """Print that somebody is logged in, and until when."""
    if session.json:
        session.emit_json({**_as_json(login), "roles": _roles(login), **more})
        return
    ends = moment(login.expires_at, _now())
    renewal = " and is renewed by itself." if login.refresh_token is not None else "; then log in again."
    session.emit_done(
        f"Logged in as {clean(login.shown_name)} at {clean(login.issuer)}.\nThe token ends {ends}{renewal}",
        {**_as_json(login), **more},
    )


@group.command()
@_identity
@output_option
@pass_session
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
    chosen = _wanted(session, **identity)
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
        {"removed": True, "revoked": revoked, **_as_json(login)},
    )


def _revoke(session: Session, login: Login, chosen: Wanted) -> bool:
    from attestation_cli.login.discovery import Provider
    from attestation_cli.login.tokens import revoked

    try:
        with Provider(login.issuer, ca_file=chosen.ca_file, transport=session.login_transport) as provider:
            return revoked(provider, login)
    except (ProviderUnreachable, ProviderInvalid) as e:
        session.note(f"note: {clean(str(e))}; a copy of the login would still work there")
        return False


@group.command()
@_identity
@click.option(
    "--check", is_flag=True, help="Ask the service whether it accepts the login, and what it lets you do."
)
@output_option
@pass_session
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
    chosen = _wanted(session, **identity)
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
    over = _now() >= login.expires_at and login.refresh_token is None
    if session.json:
        shown = {**_as_json(login), "roles": _roles(login), "expired": over, "verified": bool(may)}
        session.emit_json({"logged_in": True, **shown, **({} if may is None else {"may": may})})
    else:
        session.emit_fields(_rows(session, login, may))
    if over or may == []:
        ctx.exit(1)


def _rows(session: Session, login: Login, may: list[str] | None) -> list[tuple[str, Cell]]:
    now = _now()
    renewal = "renewed by itself" if login.refresh_token is not None else "then log in again"
    rows = [
        ("user", cell(login.shown_name)),
        ("e-mail", cell(login.email)),
        ("realm", cell(_realm(login))),
        ("issuer", cell(login.issuer)),
        ("roles", cell(", ".join(_roles(login)) or "none in the token")),
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


def _check(session: Session, cache: LoginCache, chosen: Wanted) -> list[str]:
    """Ask the service; return what the login may do there.

    Raises:
        Unauthenticated: The service does not accept it.
    """
    from attestation.errors import Forbidden

    may = []
    with session.client(bearer(cache, chosen, transport=session.login_transport)) as client:
        for right, ask in (
            ("read machines", lambda: client.machines(page_size=1)),
            ("read the audit log", lambda: client.audit(page_size=1)),
        ):
            try:
                next(iter(ask()), None)
            except Forbidden:
                continue
            may.append(right)
    return may


@group.command()
@_identity
@output_option
@pass_session
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

    chosen = _wanted(session, **identity)
    cache = LoginCache(note=session.note)
    login = find(cache, chosen)
    if login is None:
        raise LoginNeeded(f"there is no login to renew{f' at {chosen.issuer}' if chosen.issuer else ''}")
    _tell(
        session,
        renew(cache, login, ca_file=chosen.ca_file, force=True, transport=session.login_transport),
        {},
    )


@group.command("cache-list")
@output_option
@pass_session
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
    now = _now()
    if session.json:
        shown: list[dict[str, Any]] = [
            {**_as_json(e), "state": _state(e, now), "service": e.api_url} for e in logins
        ]
        session.emit_json(iter(shown))
        return
    session.emit_table(
        [
            Column("USER", shrink_to=8),
            Column("STATE"),
            Column("EXPIRES"),
            Column("ISSUER", shrink_to=16),
            Column("CLIENT", shrink_to=8, drop=2),
            Column("SERVICE", shrink_to=12, drop=1),
            Column("KEPT IN", drop=3),
        ],
        [
            [
                cell(e.shown_name),
                _coloured(_state(e, now)),
                moment_cell(e.expires_at, now),
                cell(e.issuer),
                cell(e.client_id),
                cell(e.api_url),
                cell("keyring" if e.keyring else "file"),
            ]
            for e in logins
        ],
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
@output_option
@pass_session
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
