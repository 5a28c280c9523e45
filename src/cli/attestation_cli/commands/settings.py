"""`attestation settings`: the settings of the service."""

from __future__ import annotations

import click

from attestation_cli.options import listing
from attestation_cli.render import Column, cell
from attestation_cli.session import Session


@click.command("settings")
@click.option("--all", "every", is_flag=True, help="Also those that are as they are by default.")
@listing
def group(session: Session, *, every: bool) -> None:
    """List the settings of the process of the service that answers; `attestation config` has those of this program.

    What may hold a secret is said to be set, and not shown.

    \b
    Examples:
      attestation settings
      attestation settings --all -o json
    """
    with session.client() as client:
        found = client.settings().settings
    session.emit_list(
        (each for each in found if every or not each.is_default),
        {
            Column("SETTING"): lambda s: s.name,
            Column("VALUE", shrink_to=16): lambda s: (
                cell("(set, not shown)") if s.value is None and s.is_set else cell(s.value)
            ),
            Column("BY DEFAULT", drop=1): lambda s: "yes" if s.is_default else "no",
        },
        "Every setting is as it is by default.",
    )
