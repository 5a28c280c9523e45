"""`attestation node-csr`: what was decided of certificate requests of Kubernetes nodes."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice

import click

from attestation_cli.ca_screen import LIMIT
from attestation_cli.complete import complete_machine
from attestation_cli.options import listing
from attestation_cli.render import Column, moment_cell
from attestation_cli.session import Session


@click.group("node-csr")
def group() -> None:
    """Certificate requests of Kubernetes nodes, which controllers of their cluster ask about.

    \b
    Examples:
      attestation node-csr list
    """


@group.command("list")
@click.option("--machine", metavar="ID", help="Only of this machine.", shell_complete=complete_machine)
@LIMIT
@listing
def list_(session: Session, machine: str | None, limit: int) -> None:
    """List what was decided of requests, newest first.

    A refusal is kept for a day; it names a machine only where its TPM signed. With a signer of the cluster's own there
    is no serial number: that certificate is not ours.

    \b
    Examples:
      attestation node-csr list
      attestation node-csr list --machine w-1 -o wide
    """
    now = datetime.now(UTC)
    with session.client() as client:
        machine_id = session.find_id(client, machine) if machine is not None else None
        session.emit_list(
            islice(client.node_csr_decisions(machine_id=machine_id), limit or None),
            {
                Column("REQUEST", shrink_to=20): lambda one: one.csr_name,
                Column("DECISION"): lambda one: one.decision,
                Column("REASON"): lambda one: one.reason,
                Column("NODE", drop=1): lambda one: one.node_name,
                Column("MACHINE", shrink_to=13): lambda one: one.machine_id,
                Column("TIER", drop=3): lambda one: one.tier_name,
                Column("AT"): lambda one: moment_cell(one.at, now),
                Column("CLUSTER", drop=4): lambda one: one.cluster_id,
                Column("SIGNER", wide=True): lambda one: one.signer_name,
                Column("SERIAL", wide=True): lambda one: one.serial,
                Column("UID", wide=True): lambda one: one.csr_uid,
                Column("RESULT", wide=True): lambda one: one.result_id,
                Column("MESSAGE", wide=True): lambda one: one.message,
            },
            "No requests.",
        )
