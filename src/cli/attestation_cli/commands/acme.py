"""`attestation acme …`: keys for accounts, accounts, orders."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from attestation.client.text import clean
from attestation_cli.options import listing, printing, seconds
from attestation_cli.render import Column, cell, moment_cell
from attestation_cli.session import Session, checked


@click.group("acme")
def group() -> None:
    """ACME: who may make an account, and what accounts ask for.

    \b
    Examples:
      attestation acme key-create --machine 3f0c5b7a-9d1e-4c62-b8f7-a6d5c4b3a291
      attestation acme orders
    """


@group.command("key-create")
@click.option("--machine", "machine_id", metavar="ID", help="The account asks for this machine alone.")
@click.option("--note", default="", help="Whom it is for.")
@click.option(
    "--expires-in",
    "expires_in_seconds",
    callback=seconds,
    default="24h",
    show_default=True,
    help="Number and unit: 90s, 30m, 12h, 7d.",
)
@printing
def key_create(session: Session, machine_id: str | None, note: str, expires_in_seconds: int) -> None:
    """Make a key with which an ACME client makes one account. It is shown this once.

    \b
    Examples:
      attestation acme key-create --note "lego on app-1"
    """
    from attestation.api import ACMEKeyRequest

    request = checked(
        lambda: ACMEKeyRequest(machine_id=machine_id, note=note, expires_in_seconds=expires_in_seconds)
    )
    with session.client() as client:
        made = client.make_acme_key(request)
    if session.json:
        session.emit_json(made.model_dump(mode="json"))
        return
    session.emit_fields(
        [
            ("key id", cell(made.key_id)),
            ("key", cell(made.hmac_key)),
            ("machine", cell(made.machine_id or "any")),
            ("expires", moment_cell(made.expires_at, datetime.now(UTC))),
        ]
    )
    session.note("The key is not shown again. An ACME client takes both, as kid and HMAC key.")


@group.command("keys")
@listing
def keys(session: Session) -> None:
    """List keys for accounts, newest first, without the keys.

    \b
    Examples:
      attestation acme keys
    """
    now = datetime.now(UTC)
    with session.client() as client:
        session.emit_list(
            client.acme_keys(),
            {
                Column("KEY ID"): lambda k: k.key_id,
                Column("MACHINE", shrink_to=8): lambda k: k.machine_id or "any",
                Column("STATE"): lambda k: _state(k.account_id, k.revoked_at, k.expires_at, now),
                Column("NOTE", shrink_to=8, drop=1): lambda k: k.note,
                Column("CREATED", drop=3): lambda k: moment_cell(k.created_at, now),
                Column("BY", shrink_to=6, drop=2): lambda k: k.created_by,
                Column("ACCOUNT", wide=True): lambda k: k.account_id,
            },
            "No keys for ACME accounts.",
        )


def _state(account_id: str | None, revoked_at: datetime | None, expires_at: datetime, now: datetime) -> str:
    if account_id is not None:
        return "used"
    if revoked_at is not None:
        return "revoked"
    return "expired" if expires_at <= now else "open"


@group.command("key-revoke")
@click.argument("key_id")
@click.option("--yes", is_flag=True, help="Do not ask.")
@printing
def key_revoke(session: Session, key_id: str, *, yes: bool) -> None:
    """Let a key make no account any more.

    \b
    Examples:
      attestation acme key-revoke 5c1f9a02e4b7d810
    """
    with session.client() as client:
        session.confirm(f"Revoke the key {clean(key_id)} for ACME accounts?", yes=yes)
        found = client.revoke_acme_key(key_id)
    session.emit_done(f"{clean(key_id)}: revoked", found.model_dump(mode="json"))


@group.command("accounts")
@listing
def accounts(session: Session) -> None:
    """List accounts, newest first.

    \b
    Examples:
      attestation acme accounts
    """
    now = datetime.now(UTC)
    with session.client() as client:
        session.emit_list(
            client.acme_accounts(),
            {
                Column("ACCOUNT"): lambda a: a.account_id,
                Column("STATUS"): lambda a: a.status,
                Column("MACHINE", shrink_to=8): lambda a: a.machine_id or "any",
                Column("CREATED", drop=2): lambda a: moment_cell(a.created_at, now),
                Column("KEY ID", drop=1): lambda a: a.key_id,
                Column("CONTACT", shrink_to=8, drop=3): lambda a: ", ".join(a.contact),
                Column("THUMBPRINT", wide=True): lambda a: a.thumbprint,
            },
            "No ACME accounts.",
        )


@group.command("account-revoke")
@click.argument("account_id")
@click.option("--reason", required=True, help="For the audit log.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@printing
def account_revoke(session: Session, account_id: str, reason: str, *, yes: bool) -> None:
    """End an account for good; its certificates stay.

    \b
    Examples:
      attestation acme account-revoke 0123456789abcdef0123456789abcdef \\
          --reason "app-1 is gone"
    """
    with session.client() as client:
        session.confirm(f"Revoke the ACME account {clean(account_id)}?", yes=yes)
        found = client.revoke_acme_account(account_id, reason)
    session.emit_done(f"{clean(account_id)}: revoked", found.model_dump(mode="json"))


@group.command("orders")
@listing
def orders(session: Session) -> None:
    """List orders, newest first, and why one came to nothing.

    \b
    Examples:
      attestation acme orders
    """
    now = datetime.now(UTC)
    with session.client() as client:
        session.emit_list(
            client.acme_orders(),
            {
                Column("ORDER", wide=True): lambda o: o.order_id,
                Column("IDENTIFIER", shrink_to=8): lambda o: o.identifier,
                Column("STATUS"): lambda o: o.status,
                Column("ACCOUNT", shrink_to=8, drop=1): lambda o: o.account_id,
                Column("CREATED", drop=3): lambda o: moment_cell(o.created_at, now),
                Column("SERIAL", shrink_to=8, drop=2): lambda o: " ".join(o.serials),
                Column("ERROR", shrink_to=8): lambda o: o.error,
                Column("MACHINE", wide=True): lambda o: o.machine_id,
            },
            "No ACME orders.",
        )
