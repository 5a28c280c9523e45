"""`attestation machine list` and `watch`: the machines there are, and what changes."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice

import click

from attestation.client.text import clean, short_ids
from attestation.machines import Role, Status
from attestation_cli.machine_acts import LIMIT
from attestation_cli.machine_rows import LISTED, called, listed_row
from attestation_cli.options import listing, printing
from attestation_cli.session import Session


@click.command("list")
@click.option("--status", type=click.Choice([s.value for s in Status]), help="Only in this status.")
@click.option("--role", type=click.Choice([r.value for r in Role]), help="Only in this role.")
@click.option("--cluster-id", help="Only of this cluster.")
@click.option("-q", "--search", help="Only where id, hostname or hardware contain this.")
@click.option(
    "-l",
    "--labels",
    metavar="KEY=VALUE,…",
    help="Only with all of these labels; a KEY alone: with any value.",
)
@LIMIT
@listing
def list_(
    session: Session,
    status: str | None,
    role: str | None,
    cluster_id: str | None,
    search: str | None,
    labels: str | None,
    limit: int,
) -> None:
    """List machines, newest first.

    Trust is what the last result is worth now: verified, failed, stale (it did not attest again in time) or
    unknown. A role in brackets is only wished for. On a small terminal the least important columns go;
    `-o wide` shows all of them whole, `-o json` everything the service knows.

    \b
    Examples:
      attestation machine list
      attestation machine list --status pending_approval -o wide
      attestation machine list -l rack=4,site --columns id,labels --sort hostname
      attestation machine list --role controlplane -q rack-4 -o csv > machines.csv
    """
    with session.client() as client:
        machines = islice(
            client.machine_records(
                status=Status(status) if status else None,
                role=Role(role) if role else None,
                cluster_id=cluster_id,
                q=search,
                labels=labels,
            ),
            limit or None,
        )
        if session.json:
            session.emit_json(machines)
            return
        found = list(machines)
    now = datetime.now(UTC)
    ids = short_ids(m.text("machine_id") for m in found)
    session.emit_table(LISTED, [listed_row(m, ids[m.text("machine_id")], now) for m in found], "No machines.")
    shared = [m for m in found if m.get("shares_names")]
    if shared:
        names = ", ".join(f"{ids[m.text('machine_id')]} ({clean(called(m))})" for m in shared)
        session.note(
            f"{len(shared)} of them have the host name or the address of another machine, from before these had to be "
            f"unique: {names}. Revoke or replace one of the two, or give one another name with `machine role`; until "
            "then neither gets a server certificate."
        )


@click.command()
@click.option(
    "-i",
    "--interval",
    "seconds",
    type=click.FloatRange(0.2, 3600),
    default=5.0,
    help="Seconds between looks [default: 5]",
)
@click.option("--status", type=click.Choice([s.value for s in Status]), help="Only in this status.")
@printing
def watch(session: Session, seconds: float, status: str | None) -> None:
    """Follow the machines: a live table on a terminal, else a line for each change.

    Ctrl-C ends it. With `-o json` each change is one line of JSON. A service that does not answer for a
    while is waited for.

    \b
    Examples:
      attestation machine watch
      attestation machine watch --interval 2 --status pending_approval
      attestation machine watch -o json | jq -c .
    """
    if session.output in ("csv", "yaml"):
        raise click.UsageError(f"-o {session.output} cannot follow; -o json can")
    from attestation_cli.watch import Watch

    chosen = Status(status) if status else None
    with session.client() as client:
        Watch(session, lambda: list(client.machine_records(status=chosen)), seconds).run()
