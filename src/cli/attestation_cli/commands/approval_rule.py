"""`attestation approval-rule …`: machines that are approved without a person."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from attestation.machines import Role
from attestation.results import Assurance
from attestation_cli.options import listing, new_proposal_option, printing
from attestation_cli.render import Cell, Column, cell, moment_cell
from attestation_cli.session import Session, checked

if TYPE_CHECKING:
    from attestation.api import ApprovalRuleDetail, PendingApproval

expression_option = click.option(
    "--where", "expression", required=True, metavar="CEL", help="What must be true of `machine`."
)
assurance_option = click.option(
    "--minimum-assurance",
    type=click.Choice([each.value for each in Assurance]),
    default=Assurance.EK_CHAIN.value,
    show_default=True,
    help="How well its EK must be vouched for.",
)
hostname_option = click.option(
    "--hostname", metavar="PATTERN", help="What it is called, with {serial}, {uuid} or {mac} in it."
)


@click.group("approval-rule")
def group() -> None:
    """Machines that are approved without a person, by rules that several people agreed to.

    None is there and none is enabled by itself. A rule reads what a machine says of itself, which anybody can say, and
    what is proven of its TPM; it never gives a role that is under dual control.

    \b
    Examples:
      attestation approval-rule try --where 'machine.product == "Example 9000"'
      attestation approval-rule list
    """


@group.command("list")
@listing
def list_(session: Session) -> None:
    """List the rules, in the order of their names.

    \b
    Examples:
      attestation approval-rule list
      attestation approval-rule list -o json
    """
    with session.client() as client:
        session.emit_list(
            client.approval_rules(),
            {
                Column("RULE", shrink_to=8): lambda one: one.name,
                Column("ENABLED"): lambda one: "yes" if one.enabled else "no",
                Column("PRIORITY", drop=2): lambda one: one.priority,
                Column("ROLE"): lambda one: one.role,
                Column("CLUSTER", drop=1): lambda one: one.cluster_id,
                Column("USED"): lambda one: f"{one.used} of {one.max_count}",
                Column("WHERE", shrink_to=16): lambda one: one.expression,
            },
            "No approval rules: a person approves each machine.",
        )


@group.command("try")
@expression_option
@assurance_option
@hostname_option
@listing
def try_(session: Session, expression: str, minimum_assurance: str, hostname: str | None) -> None:
    """Show which of the machines that wait a rule would have approved; changes nothing.

    \b
    Examples:
      attestation approval-rule try --where 'machine.product == "Example 9000"'
      attestation approval-rule try --where 'true' --hostname 'w-{mac}'
    """
    with session.client() as client:
        tried = client.try_approval_rule(expression, minimum_assurance=minimum_assurance, hostname=hostname)
        session.emit_list(
            iter(tried.items),
            {
                Column("MACHINE", shrink_to=8): lambda one: one.machine_id,
                Column("APPROVES"): lambda one: "yes" if one.approves else "no",
                Column("HOSTNAME", drop=1): lambda one: one.hostname,
                Column("WHY NOT", shrink_to=16): lambda one: one.why,
            },
            "No machine waits.",
        )


@group.command()
@click.argument("name")
@expression_option
@click.option(
    "--role", required=True, type=click.Choice([role.value for role in Role]), help="What it becomes."
)
@click.option("--cluster-id", default="default", show_default=True, help="Where it becomes that.")
@hostname_option
@assurance_option
@click.option(
    "--max-count", required=True, type=click.IntRange(1, 10_000), help="Machines that it may approve, ever."
)
@click.option(
    "--priority",
    type=click.IntRange(0, 1000),
    default=100,
    show_default=True,
    help="The higher one is asked first.",
)
@new_proposal_option
@printing
def create(
    session: Session,
    name: str,
    expression: str,
    role: str,
    cluster_id: str,
    hostname: str | None,
    minimum_assurance: str,
    max_count: int,
    priority: int,
) -> None:
    """Make a rule called NAME, or vote for it; it approves nobody before it is enabled.

    What it says never changes: remove it and make another.

    \b
    Examples:
      attestation approval-rule create rack-4 --role worker-app --max-count 40 \\
          --where 'machine.product == "Example 9000"' --hostname 'w-{serial}'
    """
    from attestation.api import ApprovalRuleCreate

    request = checked(
        lambda: ApprovalRuleCreate(
            name=name,
            expression=expression,
            role=Role(role),
            cluster_id=cluster_id,
            hostname=hostname,
            minimum_assurance=Assurance(minimum_assurance),
            max_count=max_count,
            priority=priority,
        )
    )
    with session.client() as client:
        made = client.create_approval_rule(request)
    _emit(session, made, name)


@group.command()
@click.argument("name")
@new_proposal_option
@printing
def enable(session: Session, name: str) -> None:
    """Let rule NAME approve machines from now on, or vote for it.

    \b
    Examples:
      attestation approval-rule enable rack-4
    """
    with session.client() as client:
        done = client.enable_approval_rule(name)
    _emit(session, done, name)


@group.command()
@click.argument("name")
@printing
def disable(session: Session, name: str) -> None:
    """Let rule NAME approve nobody any more; one operator is enough.

    \b
    Examples:
      attestation approval-rule disable rack-4
    """
    with session.client() as client:
        done = client.disable_approval_rule(name)
    _emit(session, done, name)


@group.command()
@click.argument("name")
@printing
def remove(session: Session, name: str) -> None:
    """Remove rule NAME; machines that it approved stay.

    \b
    Examples:
      attestation approval-rule remove rack-4
    """
    with session.client() as client:
        client.remove_approval_rule(name)
    session.emit_done(f"approval rule {name} is removed", {"name": name})


def _emit(session: Session, found: ApprovalRuleDetail | PendingApproval, name: str) -> None:
    from attestation.api import ApprovalRuleDetail

    if not isinstance(found, ApprovalRuleDetail):
        session.emit_pending(found, f"approval rule {name}")
        return
    if session.json:
        session.emit_json(found)
        return
    now = datetime.now(UTC)
    fields: list[tuple[str, Cell]] = [
        ("rule", cell(found.name)),
        ("enabled", cell("yes" if found.enabled else "no: it approves nobody")),
        ("where", cell(found.expression)),
        ("role", cell(f"{found.role} of {found.cluster_id}")),
        ("host name", cell(found.hostname)),
        ("assurance", cell(f"{found.minimum_assurance} at least")),
        ("used", cell(f"{found.used} of {found.max_count}")),
        ("priority", cell(str(found.priority))),
        ("changed", moment_cell(found.changed_at, now)),
        ("by", cell(found.changed_by)),
    ]
    session.emit_fields(fields)
