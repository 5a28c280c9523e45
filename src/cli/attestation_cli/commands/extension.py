"""`attestation extension …`: what is added to the service, and which events it could not handle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from attestation.client.text import clean
from attestation.errors import ExtensionUnknown
from attestation_cli.options import listing, printing
from attestation_cli.render import Column, time_cell
from attestation_cli.session import Session

if TYPE_CHECKING:
    from attestation.client import OperatorClient


@contextmanager
def _client(session: Session) -> Iterator[OperatorClient]:
    """Give the client; of a service without extensions it tells that, not that the route is missing."""
    from attestation.client import APIError  # here: help need not wait for it

    with session.client() as client:
        try:
            yield client
        except APIError as e:
            if e.code == "route-unknown":
                raise ExtensionUnknown("no extension is enabled in this service") from e
            raise


@click.group("extension")
def group() -> None:
    """Extensions of the service: which are enabled, and which events they could not handle.

    \b
    Examples:
      attestation extension list
      attestation extension dead-letters webhooks
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
    with _client(session) as client:
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
    with _client(session) as client:
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


@group.command()
@click.argument("name")
@printing
def retry(session: Session, name: str) -> None:
    """Have the extension NAME handle all its dead letters again.

    \b
    Examples:
      attestation extension retry webhooks
    """
    with _client(session) as client:
        again = client.retry_dead_letters(name).events
    session.emit_done(
        f"{clean(name)}: {again} event{'' if again == 1 else 's'} on the way again",
        {"extension": name, "events": again},
    )
