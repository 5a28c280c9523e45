"""Cells about a machine that is attested and has no configuration: nothing of it reads as if all were well."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from attestation.client.text import clean
from attestation_cli.render import Cell, cell, instant, moment

if TYPE_CHECKING:
    from attestation.client import Record


def status_cell(machine: Record) -> Cell:
    """Return the status of *machine*, marked where it has no configuration, never came, or has an alarm."""
    status = machine.text("status")
    marks = [
        *(["no config"] if _owed(machine) is not None else []),
        *(["expected"] if machine.get("expected") else []),
        *(["alarm"] if machine.get("alarm") is not None else []),
    ]
    return Cell(", ".join([clean(status), *marks]), "red", clean(status)) if marks else cell(status)


def configuration_cell(machine: Record, now: datetime) -> Cell:
    """Return why and since when *machine* has no configuration; a dash where it has."""
    owed = _owed(machine)
    return cell(None) if owed is None else not_delivered(owed.text("why"), owed.instant("since"), now)


def not_delivered(why: str, since: datetime, now: datetime) -> Cell:
    """Return *why* a configuration did not arrive, and since when it was to."""
    told = f"not delivered: {clean(why)}, since"
    return Cell(f"{told} {moment(since, now)}", "red", f"{told} {instant(since)}")


def _owed(machine: Record) -> Record | None:
    # A service from before says nothing of it.
    name = "configuration_not_delivered"
    return machine.optional_record(name) if machine.get(name) is not None else None
