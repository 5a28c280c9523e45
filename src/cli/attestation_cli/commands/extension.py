"""`attestation extension …`: what is added to the service, and which events it could not handle."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import click

from attestation.client.text import clean
from attestation_cli.options import listing, printing
from attestation_cli.render import Column, cell, moment_cell, time_cell
from attestation_cli.session import Session, checked


@click.group("extension")
def group() -> None:
    """Extensions of the service: which are enabled, and which events they could not handle.

    \b
    Examples:
      attestation extension list
      attestation extension dead-letters webhooks
      attestation extension dead-letter hooks 5e0c1a5c-3c5e-4a52-9a0d-0b8c7f1d2e3f
      attestation extension retry webhooks
    """


@group.command("list")
@listing
def list_(session: Session) -> None:
    """List the extensions that are enabled, how many events wait for each, and why one is skipped.

    \b
    Examples:
      attestation extension list
    """
    with session.client() as client:
        session.emit_list(
            iter(client.extensions().extensions),
            {
                Column("NAME"): lambda e: e.name,
                Column("VERSION"): lambda e: e.version,
                Column("PENDING"): lambda e: e.pending,
                Column("DEAD LETTERS"): lambda e: e.dead_letters,
                Column("SKIPPED", drop=1): lambda e: e.skipped,
                Column("DESCRIPTION", drop=2): lambda e: e.description,
            },
            "No extensions.",
        )


@group.command("dead-letters")
@click.argument("name")
@listing
def dead_letters(session: Session, name: str) -> None:
    """List the newest hundred events that the extension NAME gave up.

    \b
    Examples:
      attestation extension dead-letters webhooks
    """
    now = datetime.now(UTC)
    with session.client() as client:
        session.emit_list(
            iter(client.dead_letters(name).items),
            {
                Column("EVENT"): lambda e: e.event,
                Column("MACHINE", shrink_to=8): lambda e: e.machine_id,
                Column("CREATED"): lambda e: time_cell(e.created_at, now),
                Column("ATTEMPTS", drop=1): lambda e: e.attempts,
                Column("ERROR"): lambda e: e.error,
                Column("EVENT ID", wide=True): lambda e: e.event_id,
            },
            "No dead letters.",
        )


@group.command("dead-letter")
@click.argument("name")
@click.argument("event_id")
@printing
def dead_letter(session: Session, name: str, event_id: str) -> None:
    """Show one event that the extension NAME gave up: why, after how many attempts, and what it says.

    \b
    Examples:
      attestation extension dead-letter hooks 5e0c1a5c-3c5e-4a52-9a0d-0b8c7f1d2e3f
    """
    now = datetime.now(UTC)
    with session.client() as client:
        found = client.dead_letter(name, event_id)
    if session.json:
        session.emit_json(found)
        return
    session.emit_fields(
        [
            ("event", cell(found.event)),
            ("event ID", cell(found.event_id)),
            ("machine", cell(found.machine_id)),
            ("created", moment_cell(found.created_at, now)),
            ("attempts", cell(found.attempts)),
            ("error", cell(found.error)),
            ("payload", cell(json.dumps(found.payload, sort_keys=True))),
        ]
    )


@group.command()
@click.argument("name")
@click.argument("event_ids", metavar="[EVENT_ID]…", nargs=-1)
@printing
def retry(session: Session, name: str, event_ids: tuple[str, ...]) -> None:
    """Have the extension NAME handle its dead letters again: all, or those of each EVENT_ID, all or none of them.

    \b
    Examples:
      attestation extension retry webhooks
      attestation extension retry hooks 5e0c1a5c-3c5e-4a52-9a0d-0b8c7f1d2e3f
    """
    from attestation.api import RetryRequest

    request = checked(lambda: RetryRequest(event_ids=list(event_ids))) if event_ids else None
    with session.client() as client:
        again = client.retry_dead_letters(name, request).events
    session.emit_done(
        f"{clean(name)}: {again} event{'' if again == 1 else 's'} on the way again",
        {"extension": name, "events": again},
    )
