"""`attestation auth login`: in a browser, with another device, or with a password."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from attestation.client.text import clean
from attestation.errors import RequestInvalid
from attestation_cli.login.cache import Login, LoginCache
from attestation_cli.login.current import Wanted, find
from attestation_cli.login.errors import ConfigInvalid
from attestation_cli.login.profiles import Profile, check_name, check_value, config_path, load, save
from attestation_cli.login_screen import emit_login, identity_options, login_meant
from attestation_cli.options import printing
from attestation_cli.render import Cell, fields
from attestation_cli.screen import is_terminal
from attestation_cli.session import Session

if TYPE_CHECKING:
    from attestation.client.openid.discovery import Provider
    from attestation_cli.login.device import DeviceCode

METHODS = ("interactive", "device", "password")
NO_PROVIDER = "an identity provider is needed: --issuer URL, ITL_OIDC_ISSUER, or a profile that names one"


@click.command()
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default="interactive",
    show_default=True,
    help="With a browser here, with another device, or (discouraged) with a password typed here.",
)
@identity_options
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
@printing
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
    device       without a browser here, e.g. over ssh: an address, a short code
                 and a QR code are shown; you log in with any device.
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
      attestation auth login --fresh -u ben       # not whom the browser remembers
      attestation auth login --keyring            # tokens in the system's keyring
    """
    from attestation.client.openid.discovery import Provider
    from attestation_cli.login.tokens import SCOPE, clock_note

    if profile_name is not None:
        check_name(profile_name)
        session.profile_name = profile_name
        session.profile = load(config_path()).profiles.get(profile_name, Profile())
        session.apply_settings()
    chosen = login_meant(session, **identity)
    issuer = chosen.issuer
    if issuer is None:
        raise ConfigInvalid(NO_PROVIDER)
    if issuer_ca_file is not None:
        check_value("issuer_ca_file", issuer_ca_file, "--issuer-ca-file")
        chosen = replace(chosen, ca_file=issuer_ca_file)
    cache, in_keyring = LoginCache(note=session.note), keyring or bool(session.profile.keyring)
    # Before anybody is asked for anything: what comes must be kept safely.
    cache.prepare(keyring=in_keyring)
    with Provider(issuer, ca_file=chosen.ca_file, carrier=session.login_carrier) as provider:
        found = _ask(session, provider, method, chosen, scope or SCOPE, fresh=fresh, no_browser=no_browser)
        if (note := clock_note(provider.clock, _now())) is not None:
            session.note(note)
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
    emit_login(session, found, {"profile": profile_name} if profile_name else {})
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
                raise RequestInvalid("a password is asked for at a terminal only: run it in one")
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
    used = find(cache, session.wanted())
    if used is None or used.name != found.name:
        session.note(
            "note: without the options of this call, commands use another login or none; --profile NAME remembers them"
        )


def _now() -> datetime:
    return datetime.now(UTC)
