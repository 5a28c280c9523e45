"""What a list says of a machine: its columns, and the cells under them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from attestation.machines import DEFAULT_CLUSTER
from attestation.machines.labels import told
from attestation_cli.render import Cell, Column, cell, time_cell, trust_cell
from attestation_cli.undelivered import configuration_cell, status_cell

if TYPE_CHECKING:
    from attestation.api import MachineDetail
    from attestation.client import Record

LISTED = [
    Column("ID"),
    Column("HOSTNAME", shrink_to=12),
    Column("STATUS"),
    Column("TRUST"),
    Column("ASSURANCE"),
    Column("ROLE", drop=1),
    Column("SEEN", drop=2),
    Column("ADDRESS", shrink_to=12, drop=5),
    Column("CLUSTER", shrink_to=8, drop=3),
    Column("HARDWARE", shrink_to=12, drop=4),
    Column("WISHED ROLE", wide=True),
    Column("REGISTERED", wide=True),
    Column("ATTESTED", wide=True),
    Column("TRUST ENDS", wide=True),
    Column("FAILED CHECKS", wide=True),
    Column("CONFIGURATION", wide=True),
    Column("LABELS", wide=True),
    Column("EK FINGERPRINT", wide=True),
]


def called(machine: Record) -> str:
    """Return what *machine* is called, for people."""
    return machine.optional_text("hostname") or machine.optional_text("assigned_ip") or "-"


def listed_row(machine: Record, short: str, now: datetime) -> list[Cell]:
    """Return the cells of *machine* under `LISTED`."""
    hardware = [t for t in (machine.text("hw_product"), machine.text("hw_serial")) if t and t != "unknown"]
    role, wish = machine.optional_text("role"), machine.optional_text("desired_role")
    last = machine.optional_record("last_result")
    cluster = machine.text("cluster_id")
    asked = (
        machine.optional_text("desired_cluster_id") if machine.text("status") == "pending_approval" else None
    )
    return [
        cell(short, machine.text("machine_id")),
        cell(machine.optional_text("hostname")),
        status_cell(machine),
        trust_cell(machine.text("trust"), machine.text("status")),
        cell(machine.text("assurance")),
        cell(role or (f"({wish}?)" if wish else None), role or ""),
        time_cell(last.instant("at") if last else None, now),
        cell(machine.optional_text("assigned_ip")),
        cell(
            f"({asked}?)"
            if asked not in (None, cluster)
            else cluster
            if cluster != DEFAULT_CLUSTER
            else None,
            cluster,
        ),
        cell(" ".join(hardware) or None),
        cell(wish),
        time_cell(machine.instant("registered_at"), now),
        time_cell(machine.optional_instant("attested_at"), now),
        time_cell(machine.optional_instant("trust_expires_at"), now),
        cell(last.optional_text("failed") if last else None),
        configuration_cell(machine, now),
        cell(labels_of(machine.get("labels"))),
        cell(machine.text("ek_fingerprint")),
    ]


def assurance_cell(machine: MachineDetail) -> Cell:
    """Return the assurance of *machine* and what that means."""
    from attestation.client.words import ASSURANCE

    text = f"{machine.assurance}: {ASSURANCE[machine.assurance]}"
    return Cell(text, cell(machine.assurance).colour, str(machine.assurance))


def labels_of(member: object) -> str | None:
    """Return the member `labels` of a machine as people write it; None where there is none: an older service."""
    return told(member) or None if isinstance(member, Mapping) else None
