"""Where a policy applies: the options that say so, and the place that they mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from attestation.client.policy_words import place_words
from attestation.machines import Role
from attestation_cli.complete import complete_machine
from attestation_cli.render import Cell, cell
from attestation_cli.session import Session

if TYPE_CHECKING:
    from attestation.api.operations import Scope
    from attestation.client import OperatorClient


def place_options(command: Any) -> Any:
    """Add the options that say where a policy applies; *command* takes them as `**where`."""
    for option in (
        click.option("--machine", metavar="ID", help="This machine.", shell_complete=complete_machine),
        click.option("--role", type=click.Choice([r.value for r in Role]), help="Machines in this role."),
        click.option("--cluster", metavar="CLUSTER_ID", help="Machines of this cluster."),
        click.option("--fleet", is_flag=True, help="Every machine."),
    ):
        command = option(command)
    return command


def place_of(
    session: Session,
    client: OperatorClient,
    where: Mapping[str, Any],
    otherwise: tuple[Scope, str] | None = None,
) -> tuple[Scope, str]:
    """Return the one place that *where*, the values of `place_options`, means; *otherwise* where none was given."""
    narrower: tuple[Scope, ...] = ("cluster", "role", "machine")
    chosen: list[tuple[Scope, str]] = [("fleet", "*")] if where["fleet"] else []
    chosen += [(scope, where[scope]) for scope in narrower if where[scope] is not None]
    if not chosen and otherwise is not None:
        return otherwise
    if len(chosen) != 1:
        raise click.UsageError("give exactly one of --fleet, --cluster, --role, --machine")
    scope, subject = chosen[0]
    return scope, session.find(client, subject).machine_id if scope == "machine" else subject


def place_cell(scope: str, subject: str) -> Cell:
    """Return a place in words."""
    return cell(place_words(scope, subject))
