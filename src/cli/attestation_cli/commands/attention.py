"""`attestation attention`: what operators should look at."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from attestation_cli.options import printing
from attestation_cli.render import Cell, cell, time_cell
from attestation_cli.session import Session

if TYPE_CHECKING:
    from attestation.api import Attention


@click.command("attention")
@printing
def group(session: Session) -> None:
    """Tell what operators should look at, in numbers: who waits, what failed, what ends, how far the log is signed.

    Counted by the service, all of one moment.

    \b
    Examples:
      attestation attention
      attestation attention -o json
    """
    with session.client() as client:
        found = client.attention()
    if session.json:
        session.emit_json(found)
    else:
        session.emit_fields(_fields(found, datetime.now(UTC)))


def _fields(found: Attention, now: datetime) -> list[tuple[str, Cell]]:
    waits, oldest = found.pending, found.oldest_result
    ages = ((waits.hour, "an hour"), (waits.day, "a day"), (waits.week, "a week"))
    by_age = [f"{count} up to {length}" for count, length in ages] + [f"{waits.longer} longer"]
    return [
        ("machines that wait", cell(f"{sum(dict(waits).values())} ({', '.join(by_age)})")),
        ("the first of them since", time_cell(found.pending_since, now)),
        ("with an alarm", _trouble(found.alarms)),
        ("failed in the last 24 h", _trouble(found.failed_recently)),
        ("without their configuration", _trouble(found.undelivered)),
        ("oldest result", time_cell(None if oldest is None else oldest.at, now)),
        ("whose", cell(None if oldest is None else oldest.hostname or oldest.machine_id)),
        ("certificates not renewed in time", _trouble(found.expiring)),
        ("the first of them ends", time_cell(found.next_expiry, now)),
        ("the CA that signs ends", time_cell(found.ca_ends_at, now)),
        ("entries of the audit log", cell(f"{found.audit_entries:,}", str(found.audit_entries))),
        ("signed by a checkpoint", cell(f"{found.checkpoint_entries:,}", str(found.checkpoint_entries))),
        ("unsigned since", time_cell(found.unsigned_since, now)),
    ]


def _trouble(count: int) -> Cell:
    return Cell(str(count), "red" if count else "green")
