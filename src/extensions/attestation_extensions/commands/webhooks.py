"""`attestation webhook …`: who is told of events, and what became of each message."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pydantic import SecretStr

from attestation.errors import RequestInvalid
from attestation_cli.plugin import (
    FILE_PATH,
    Column,
    Session,
    cell,
    checked,
    clean,
    listing,
    moment_cell,
    printing,
    time_cell,
)

if TYPE_CHECKING:
    from attestation_extensions.webhooks import wire
    from attestation_extensions.webhooks.records import State


@click.group("webhook")
def group() -> None:
    """Endpoints that are told of events by HTTPS, signed; what was delivered, and what was given up.

    \b
    Examples:
      attestation webhook add --url https://hooks.example.com/itl -e machine.locked -e attestation.failed
      attestation webhook deliveries ID --status dead
      attestation webhook replay ID
    """


_secret_file = click.option(
    "--secret-file", type=FILE_PATH, help="File with the receiver's secret, whsec_…; - is standard input."
)
_yes = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def _show(session: Session, shown: wire.WebhookResponse | wire.WebhookSecret) -> None:
    if session.json:
        session.emit_json(shown)
        return
    made: Any = shown
    secret: str | None = getattr(made, "secret", None)
    found: wire.WebhookResponse = getattr(made, "webhook", made)
    now = datetime.now(UTC)
    rows = [
        ("webhook id", cell(found.webhook_id)),
        ("url", cell(found.url)),
        ("events", cell(", ".join(found.events))),
        ("enabled", cell("yes" if found.enabled else f"no: {found.disabled_why}")),
        ("attempts", cell(f"{found.trigger_count}, {found.failure_count} failed")),
        ("last", moment_cell(found.last_triggered_at, now) if found.last_triggered_at else cell("never")),
        ("created", moment_cell(found.created_at, now)),
        ("by", cell(found.created_by)),
    ]
    if secret is not None:
        rows.append(("secret", cell(secret)))
    session.emit_fields(rows)
    if secret is not None:
        session.note("The secret is shown this once: the receiver verifies messages by it.")


def _add(session: Session, url: str, events: tuple[str, ...], secret_file: Path | None) -> None:
    """Add an endpoint; its secret is made by the service, or read from a file, and shown this once."""
    from attestation_extensions.commands.webhooks_api import Webhooks
    from attestation_extensions.webhooks import wire

    named = [each.strip() for given in events for each in given.split(",")]
    secret = None if secret_file is None else _read(secret_file)
    request = checked(lambda: wire.CreateWebhook(url=url, events=named, secret=secret))
    with session.client() as client:
        made = client.ask(Webhooks.create, request)
    _show(session, made)


def _read(file: Path) -> SecretStr:
    try:
        # It has 93 characters at most.
        text = sys.stdin.read(4096) if str(file) == "-" else file.read_text(encoding="ascii")[:4096]
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "is not text"
        raise RequestInvalid(f"{file}: {reason}") from e
    return SecretStr(text.strip())


for _name in ("add", "create"):
    _command = click.option(
        "-e", "--events", multiple=True, required=True, metavar="NAME", help="What it is told of; * for all."
    )(printing(_add))
    _command = _secret_file(_command)
    group.command(_name, hidden=_name == "create")(
        click.option("-u", "--url", required=True, help="Where it is: https.")(_command)
    )


@group.command("list")
@listing
def list_(session: Session) -> None:
    """List the endpoints, the oldest first."""
    from attestation_extensions.commands.webhooks_api import Webhooks

    now = datetime.now(UTC)
    with session.client() as client:
        found = client.ask(Webhooks.all).webhooks
    columns: dict[Column, Callable[[Any], Any]] = {
        Column("WEBHOOK"): lambda w: w.webhook_id,
        Column("URL"): lambda w: w.url,
        Column("EVENTS", drop=2): lambda w: ", ".join(w.events),
        Column("ENABLED"): lambda w: "yes" if w.enabled else "no",
        Column("ATTEMPTS", drop=1): lambda w: w.trigger_count,
        Column("FAILED"): lambda w: w.failure_count,
        Column("LAST", drop=1): lambda w: (
            time_cell(w.last_triggered_at, now) if w.last_triggered_at else "never"
        ),
        Column("WHY", wide=True): lambda w: w.disabled_why or "-",
        Column("BY", wide=True): lambda w: w.created_by,
    }
    session.emit_list(iter(found), columns, "No endpoint is told of events.")


@group.command("events")
@listing
def events_(session: Session) -> None:
    """List what an endpoint can be told of."""
    from attestation_extensions.commands.webhooks_api import Webhooks

    with session.client() as client:
        found = client.ask(Webhooks.events).events
    session.emit_list(
        iter([{"event": each} for each in found]), {Column("EVENT"): lambda e: e["event"]}, "None."
    )


@group.command("get")
@click.argument("webhook")
@printing
def get(session: Session, webhook: str) -> None:
    """Show an endpoint, without its secret."""
    from attestation_extensions.commands.webhooks_api import Webhooks

    with session.client() as client:
        _show(session, client.ask(Webhooks.show, webhook))


@group.command("update")
@click.argument("webhook")
@click.option("-u", "--url", help="Where it is from now on.")
@click.option(
    "-e", "--events", multiple=True, metavar="NAME", help="What it is told of, in place of what it was."
)
@_secret_file
@click.option("--enable/--disable", "enabled", default=None, help="Whether it is told anything.")
@printing
def update(
    session: Session,
    webhook: str,
    url: str | None,
    events: tuple[str, ...],
    secret_file: Path | None,
    *,
    enabled: bool | None,
) -> None:
    """Change where an endpoint is, what it is told of, or whether, or its secret; the former signs for a day yet."""
    from attestation_extensions.commands.webhooks_api import Webhooks
    from attestation_extensions.webhooks import wire

    named = [each.strip() for given in events for each in given.split(",")] or None
    secret = None if secret_file is None else _read(secret_file)
    members = {"url": url, "events": named, "enabled": enabled, "secret": secret}
    given = {name: value for name, value in members.items() if value is not None}
    if not given:
        raise RequestInvalid("say what is to change: --url, --events, --secret-file, --enable or --disable")
    request = checked(lambda: wire.UpdateWebhook.model_validate(given))
    with session.client() as client:
        _show(session, client.ask(Webhooks.update, webhook, request))


@group.command("delete")
@click.argument("webhook")
@_yes
@printing
def delete(session: Session, webhook: str, *, yes: bool) -> None:
    """Remove an endpoint with its deliveries."""
    from attestation_extensions.commands.webhooks_api import Webhooks

    with session.client() as client:
        found = client.ask(Webhooks.show, webhook)
        session.confirm(f"Tell {clean(found.url)} nothing any more, and forget what it was told?", yes=yes)
        client.ask(Webhooks.delete, webhook)
    session.emit_done(f"{clean(webhook)}: deleted", {"webhook_id": webhook, "deleted": True})


@group.command("rotate")
@click.argument("webhook")
@printing
def rotate(session: Session, webhook: str) -> None:
    """Exchange the secret of an endpoint: for a day both sign, so that the receiver can change over."""
    from attestation_extensions.commands.webhooks_api import Webhooks

    with session.client() as client:
        made = client.ask(Webhooks.rotate, webhook)
    _show(session, made)


@group.command("test")
@click.argument("webhook")
@printing
def test(session: Session, webhook: str) -> None:
    """Send the event webhook.test to this endpoint alone, once."""
    from attestation_extensions.commands.webhooks_api import Webhooks

    with session.client() as client:
        sent = client.ask(Webhooks.test, webhook)
    session.emit_done(
        f"{clean(webhook)}: {clean(sent.delivery_id)} is on its way", {"delivery_id": sent.delivery_id}
    )


@group.command("deliveries")
@click.argument("webhook")
@click.option("--status", type=click.Choice(["waiting", "delivered", "dead"]), help="Only those.")
@click.option("--limit", type=click.IntRange(1, 500), default=100, show_default=True)
@listing
def deliveries(session: Session, webhook: str, status: State | None, limit: int) -> None:
    """List what an endpoint was or will be told, the newest first; those that are dead were given up."""
    from attestation_extensions.commands.webhooks_api import Webhooks

    now = datetime.now(UTC)
    with session.client() as client:
        found = client.ask(Webhooks.deliveries, webhook, status, limit).deliveries
    columns: dict[Column, Callable[[Any], Any]] = {
        Column("DELIVERY"): lambda d: d.delivery_id,
        Column("EVENT"): lambda d: d.event_type,
        Column("STATUS"): lambda d: d.status,
        Column("HTTP"): lambda d: d.response_status or "-",
        Column("MS", drop=2): lambda d: "-" if d.duration_ms is None else d.duration_ms,
        Column("ATTEMPTS", drop=1): lambda d: d.attempts,
        Column("CREATED", drop=1): lambda d: time_cell(d.created_at, now),
        Column("NEXT", drop=1): lambda d: moment_cell(d.next_attempt_at, now) if d.next_attempt_at else "-",
        Column("ERROR", wide=True): lambda d: d.error or "-",
    }
    session.emit_list(iter(found), columns, "It was told nothing.")


@group.command("delivery")
@click.argument("webhook")
@click.argument("delivery")
@printing
def delivery(session: Session, webhook: str, delivery: str) -> None:
    """Show one delivery to auditors: what was sent, and the beginning of what came back."""
    from attestation_extensions.commands.webhooks_api import Webhooks

    now = datetime.now(UTC)
    with session.client() as client:
        found = client.ask(Webhooks.delivery, webhook, delivery)
    if session.json:
        session.emit_json(found)
        return
    about = found.delivery
    session.emit_fields(
        [
            ("delivery id", cell(about.delivery_id)),
            ("event", cell(about.event_type)),
            ("status", cell(about.status)),
            ("attempts", cell(str(about.attempts))),
            ("created", moment_cell(about.created_at, now)),
            ("delivered", moment_cell(about.delivered_at, now) if about.delivered_at else cell("-")),
            ("next", moment_cell(about.next_attempt_at, now) if about.next_attempt_at else cell("-")),
            ("answer", cell(str(about.response_status or "-"))),
            ("error", cell(about.error or "-")),
            ("sent", cell(found.payload)),
            ("came back", cell(found.response_body or "-")),
        ]
    )


@group.command("replay")
@click.argument("webhook")
@click.argument("delivery", required=False)
@printing
def replay(session: Session, webhook: str, delivery: str | None) -> None:
    """Send DELIVERY again under its id; without one, all that was given up."""
    from attestation_extensions.commands.webhooks_api import Webhooks

    with session.client() as client:
        if delivery is None:
            sent = client.ask(Webhooks.replay_dead, webhook)
        else:
            sent = client.ask(Webhooks.replay, webhook, delivery)
    session.emit_done(
        f"{clean(webhook)}: {sent.deliveries} on the way again", {"deliveries": sent.deliveries}
    )
