"""`attestation findings`: what a running service finds of itself."""

from __future__ import annotations

import click

from attestation.client.text import clean
from attestation_cli.options import printing
from attestation_cli.render import Cell, Column, cell
from attestation_cli.session import Session

COLOURS = {"failed": "red", "warning": "yellow", "ok": "green"}
"""The worst first."""


@click.command("findings")
@click.option("--all", "every", is_flag=True, help="Also what is good.")
@printing
@click.pass_context
def group(ctx: click.Context, session: Session, *, every: bool) -> None:
    """Tell what a running service finds of itself, the worst first, and what to do.

    Settings that weaken it, folders, disk, files, collateral, backups. It may be half a minute old. What opens a
    device or asks somebody else only `attestation-service doctor` looks at, where the service runs. Ends with 1
    where something failed.

    \b
    Examples:
      attestation findings
      attestation findings --all -o json
    """
    with session.client() as client:
        found = client.health_findings()
    levels = list(COLOURS)
    shown = sorted(
        (each for each in found.findings if every or each.level != "ok"),
        key=lambda each: levels.index(each.level),
    )
    if session.json:
        session.emit_json(found.model_copy(update={"findings": shown}))
    else:
        session.emit_table(
            [
                Column("LEVEL"),
                Column("PART"),
                Column("WHAT", shrink_to=24),
                Column("WHAT TO DO", shrink_to=16),
            ],
            [
                [
                    Cell(each.level, COLOURS[each.level]),
                    cell(each.part),
                    cell(each.what),
                    cell(each.todo),
                ]
                for each in shown
            ],
            "Nothing that needs somebody.",
        )
        session.note(f"not looked at from inside: {clean(', '.join(found.not_looked_at)) or 'nothing'}")
    ctx.exit(any(each.level == "failed" for each in found.findings))
