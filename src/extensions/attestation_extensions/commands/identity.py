"""`attestation identity …`: who machines get tokens for, the keys that sign these, and which of them ended early."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from attestation_cli.plugin import Column, Session, cell, clean, listing, moment_cell, printing, time_cell

if TYPE_CHECKING:
    from attestation_extensions.machine_identity import wire


@click.group("identity")
def group() -> None:
    """Identity tokens of machines: audiences, keys, and which tokens ended before their time. No command makes one.

    \b
    Examples:
      attestation identity audiences
      attestation identity rotate
      attestation identity status 9f2c61d0a4e7b83515c0de7a6b94f02e
    """


@group.command("audiences")
@listing
def audiences(session: Session) -> None:
    """List who tokens are made for, and which machines may have them.

    \b
    Examples:
      attestation identity audiences
    """
    from attestation_extensions.commands.identity_api import Identity

    with session.client() as client:
        found = client.ask(Identity.audiences)
    columns: dict[Column, Callable[[Any], Any]] = {
        Column("AUDIENCE"): lambda a: a.audience,
        Column("ROLES"): lambda a: "any" if a.roles is None else ", ".join(a.roles),
        Column("CLUSTERS"): lambda a: "any" if a.clusters is None else ", ".join(a.clusters),
        Column("ISSUER", wide=True): lambda _: found.issuer,
    }
    session.emit_list(iter(found.audiences), columns, "Tokens are made for no audience.")


def _keys(session: Session, found: wire.IdentityKeys) -> None:
    now = datetime.now(UTC)
    columns: dict[Column, Callable[[Any], Any]] = {
        Column("KEY"): lambda k: k.number,
        Column("KID"): lambda k: k.kid,
        Column("ALGORITHM", drop=2): lambda k: k.algorithm,
        Column("SIGNS"): lambda k: "yes" if k.signs else "no",
        Column("FROM"): lambda k: moment_cell(k.signs_at, now),
        Column("PUBLISHED", drop=1): lambda k: time_cell(k.published_at, now),
    }
    session.emit_list(iter(found.keys), columns, "No key is published.")


@group.command("keys")
@listing
def keys(session: Session) -> None:
    """List the keys that are published, the oldest first, and which of them signs.

    \b
    Examples:
      attestation identity keys
    """
    from attestation_extensions.commands.identity_api import Identity

    with session.client() as client:
        _keys(session, client.ask(Identity.keys))


@group.command("rotate")
@click.option(
    "--withdraw",
    is_flag=True,
    help="Another person may have the former keys: nothing that they signed counts any more.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@listing
def rotate(session: Session, *, withdraw: bool, yes: bool) -> None:
    """Exchange the key that signs: the next one is published at once, and signs a quarter of an hour later.

    With --withdraw it signs at once, and the tokens of all machines end.

    \b
    Examples:
      attestation identity rotate
      attestation identity rotate --withdraw
    """
    from attestation_extensions.commands.identity_api import Identity
    from attestation_extensions.machine_identity import wire

    with session.client() as client:
        if withdraw:
            session.confirm("Withdraw the keys, and end the tokens of all machines?", yes=yes)
        _keys(session, client.ask(Identity.rotate, wire.RotateIdentityKey(withdraw=withdraw)))


@group.command("status")
@click.argument("jti")
@printing
def status(session: Session, jti: str) -> None:
    """Say whether the token with this JTI counts now; of one that was never made it says no.

    \b
    Examples:
      attestation identity status 9f2c61d0a4e7b83515c0de7a6b94f02e
    """
    from attestation_extensions.commands.identity_api import Identity

    with session.client() as client:
        found = client.ask(Identity.status, jti)
    if session.json:
        session.emit_json(found)
        return
    rows = [("jti", cell(clean(jti))), ("counts", cell("yes" if found.active else "no"))]
    if found.expires_at is not None:
        rows.append(("until", moment_cell(found.expires_at, datetime.now(UTC))))
    session.emit_fields(rows)


@group.command("revoked")
@listing
def revoked(session: Session) -> None:
    """List the tokens that ended before their time and would not be over by now.

    \b
    Examples:
      attestation identity revoked
    """
    from attestation_extensions.commands.identity_api import Identity

    now = datetime.now(UTC)
    with session.client() as client:
        found = client.ask(Identity.revoked)
    columns: dict[Column, Callable[[Any], Any]] = {
        Column("JTI"): lambda t: t.jti,
        Column("WOULD END"): lambda t: moment_cell(t.expires_at, now),
    }
    session.emit_list(iter(found.revoked), columns, "No token ended before its time.")
    if found.truncated:
        session.note(
            "There are more than the service lists: ask for each with `attestation identity status`."
        )
