"""`attestation audit …`: read and verify the audit chain."""

from __future__ import annotations

from itertools import islice

import click

from attestation_cli.render import Cell, Column, cell
from attestation_cli.session import Session, output_option, pass_session


@click.group("audit")
def group() -> None:
    """Read and verify the audit chain.

    \b
    Examples:
      attestation audit list --machine-id cp-1
      attestation audit verify
    """


@group.command("list")
@click.option(
    "--machine-id",
    metavar="ID",
    help="Only about this machine: its id, the beginning of it, or its hostname.",
)
@click.option("--action", help="Only of this kind, e.g. approve, lock, attest_failed.")
@click.option(
    "--limit", type=click.IntRange(min=0), default=50, help="Show at most so many; 0 shows all. [default: 50]"
)
@output_option
@pass_session
def list_(session: Session, machine_id: str | None, action: str | None, limit: int) -> None:
    """List entries, newest first.

    \b
    Examples:
      attestation audit list --action approve
      attestation audit list --machine-id cp-1 --limit 0 -o csv > cp-1.csv
    """
    with session.client() as client:
        full_id = session.find_id(client, machine_id) if machine_id else None
        entries = islice(
            client.audit(machine_id=full_id, action=action, page_size=min(limit or 200, 200)), limit or None
        )
        if session.json:
            session.emit_json(entries)
            return
        found = list(entries)
    session.emit_table(
        [
            Column("ID"),
            Column("TIME"),
            Column("ACTION"),
            Column("OPERATOR", shrink_to=8),
            Column("MACHINE", drop=1),
            Column("CHANGE", shrink_to=10, drop=2),
            Column("DETAIL", shrink_to=24),
            Column("FROM", shrink_to=9, drop=4),
            Column("SUBJECT", wide=True),
            Column("HASH", wide=True),
        ],
        [
            [
                cell(e.id),
                cell(f"{e.timestamp[:19].replace('T', ' ')}Z", e.timestamp),
                cell(e.action),
                cell(e.operator_cn),
                cell(e.machine_id[:8] if e.machine_id else None, e.machine_id or ""),
                cell(
                    f"{e.prev_state or 'new'} → {e.new_state}"
                    if e.new_state not in (None, e.prev_state)
                    else None
                ),
                cell(e.detail),
                cell(e.source_ip),
                cell(e.operator_sub),
                cell(e.entry_hash),
            ]
            for e in found
        ],
        "No audit entries.",
    )


@group.command()
@output_option
@pass_session
@click.pass_context
def verify(ctx: click.Context, session: Session) -> None:
    """Let the service walk its whole chain; ends with 0 where it is valid, else with 1.

    \b
    Examples:
      attestation audit verify
    """
    with session.client() as client:
        verdict = client.verify_audit()
    if session.json:
        session.emit_json(verdict)
    else:
        word = "VALID" if verdict.valid else "INVALID"
        rows = [
            ("audit chain", Cell(word, "green" if verdict.valid else "red")),
            ("entries", cell(verdict.entries)),
            ("newest hash", cell(verdict.root_hash)),
        ]
        if not verdict.valid:
            rows += [
                ("first bad entry", cell(verdict.first_invalid_id)),
                ("why", cell(verdict.error)),
                (
                    "what to do",
                    cell("stop trusting entries from there on; compare with a backup or an export"),
                ),
            ]
        session.emit_fields(rows)
    ctx.exit(0 if verdict.valid else 1)
