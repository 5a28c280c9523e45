"""`attestation cluster …`: what operators declare of clusters, and what is in them."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING

import click

from attestation.client.policy_words import place_words
from attestation.errors import RequestInvalid
from attestation_cli.options import listing, new_proposal_option, printing
from attestation_cli.render import Cell, Column, cell, moment_cell, time_cell
from attestation_cli.session import Session, checked

if TYPE_CHECKING:
    from attestation.api import ClusterDetail, ClusterSummary, PendingApproval


@click.group("cluster")
def group() -> None:
    """Clusters: declare them, see what is in each, and say which version of Talos it runs.

    A cluster that machines are in is listed, declared or not. From the first one that is declared, a machine is
    admitted only into those that are declared or have machines: a slip of the pen makes no new cluster.

    \b
    Examples:
      attestation cluster list
      attestation cluster create prod --talos-version v1.13.9
      attestation cluster show prod
    """


@group.command("list")
@click.option(
    "--limit", type=click.IntRange(min=0), default=0, help="Show at most so many; 0 shows all. [default: 0]"
)
@listing
def list_(session: Session, limit: int) -> None:
    """List clusters that are declared or that machines are in, in the order of their ids.

    \b
    Examples:
      attestation cluster list
      attestation cluster list -o csv
    """
    now = datetime.now(UTC)
    with session.client() as client:
        session.emit_list(
            islice(client.clusters(), limit or None),
            {
                Column("CLUSTER", shrink_to=8): lambda one: one.cluster_id,
                Column("DECLARED"): lambda one: "yes" if one.declared else "no",
                Column("TALOS"): version_of,
                Column("MACHINES"): lambda one: one.machines,
                Column("DESCRIPTION", shrink_to=8, drop=3): lambda one: one.description,
                Column("CREATED", drop=2): lambda one: time_cell(one.created_at, now),
                Column("BY", shrink_to=6, drop=1): lambda one: one.created_by,
            },
            "No clusters.",
        )


def version_of(cluster: ClusterSummary) -> str:
    """Return the version of Talos as it is shown: in brackets where it is the service's own."""
    return cluster.talos_version if cluster.talos_version_declared else f"({cluster.talos_version})"


@group.command()
@click.argument("cluster_id", metavar="CLUSTER")
@click.option("--description", help="What it is, for people.")
@click.option(
    "--talos-version", metavar="VERSION", help="What its machines run; left out: ITL_TALOS_VERSION."
)
@new_proposal_option
@printing
def create(session: Session, cluster_id: str, description: str | None, talos_version: str | None) -> None:
    """Declare a cluster; machines may be in it already.

    Where dual control asks for several people, saying a version is your vote for it.

    \b
    Examples:
      attestation cluster create prod --description "Rack 4 to 9"
      attestation cluster create edge --talos-version v1.13.9
    """
    from attestation.api import ClusterCreate

    request = checked(
        lambda: ClusterCreate(cluster_id=cluster_id, description=description, talos_version=talos_version)
    )
    with session.client() as client:
        made = client.create_cluster(request)
    _emit(session, made, request.cluster_id)


@group.command()
@click.argument("cluster_id", metavar="CLUSTER")
@printing
def show(session: Session, cluster_id: str) -> None:
    """Show a cluster: what is declared of it, its machines, and the policies that they meet.

    \b
    Examples:
      attestation cluster show prod
      attestation cluster show prod -o json
    """
    with session.client() as client:
        found = client.cluster(cluster_id)
    _emit(session, found, cluster_id)


@group.command("set")
@click.argument("cluster_id", metavar="CLUSTER")
@click.option("--description", help="What it is, for people; an empty one ends what was said.")
@click.option(
    "--talos-version",
    metavar="VERSION",
    help="What its machines run from now on; default: ITL_TALOS_VERSION.",
)
@new_proposal_option
@printing
def set_(session: Session, cluster_id: str, description: str | None, talos_version: str | None) -> None:
    """Change what is declared of a cluster; what is left out stays as it is.

    By the version the configurations of its machines are written and judged, from their next delivery on. Where dual
    control asks for several people, this is your vote for it.

    \b
    Examples:
      attestation cluster set prod --talos-version v1.14.0
      attestation cluster set prod --talos-version default
    """
    from attestation.api import ClusterChange

    if description is None and talos_version is None:
        raise RequestInvalid("say what to change: --description, --talos-version")
    request = checked(
        lambda: ClusterChange.model_validate({"description": description, "talos_version": talos_version})
    )
    with session.client() as client:
        done = client.change_cluster(cluster_id, request)
    _emit(session, done, cluster_id)


def _emit(session: Session, found: ClusterDetail | PendingApproval, cluster_id: str) -> None:
    from attestation.api import ClusterDetail

    if not isinstance(found, ClusterDetail):
        session.emit_pending(found, f"cluster {cluster_id}")
        return
    if session.json:
        session.emit_json(found)
        return
    now = datetime.now(UTC)
    counted = [f"{count} {word}" for word, count in found.by_status.items() if count]
    roles = [f"{count} {word}" for word, count in found.by_role.items() if count]
    roles += [f"{found.without_role} without one"] if found.without_role else []
    policies = [f"{each.policy} ({place_words(each.scope, each.subject)})" for each in found.policies]
    words = {"file": "file", "none": "none, so it gets nothing"}
    bases = [
        f"{each.role} {words.get(each.source, f'version {each.version}')}" for each in found.configurations
    ]
    fields: list[tuple[str, Cell]] = [
        ("cluster", cell(found.cluster_id)),
        ("declared", cell("yes" if found.declared else "no: it is listed because machines are in it")),
        ("description", cell(found.description)),
        ("Talos", cell(version_of(found))),
        ("machines", cell(", ".join(counted) or "none")),
        ("roles", cell(", ".join(roles) or "none")),
        (
            "policies",
            cell(", ".join(policies) or "none"),
        ),
        ("configurations", cell(", ".join(bases) or "none")),
        ("created", moment_cell(found.created_at, now)),
        ("created by", cell(found.created_by)),
        ("changed", moment_cell(found.changed_at, now)),
        ("changed by", cell(found.changed_by)),
    ]
    session.emit_fields(fields)
