"""`attestation policy …`: what machines are measured against."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from attestation.errors import RequestInvalid
from attestation.machines import Role
from attestation_cli.complete import complete_machine
from attestation_cli.render import Cell, Column, cell, clean, time_cell
from attestation_cli.session import Session, checked, output_option, pass_session

if TYPE_CHECKING:
    from attestation.api import PendingApproval, PolicyAssignment, PolicyDetail
    from attestation.client import OperatorClient
    from attestation.client.operator import Scope

MAX_FILE_CHARACTERS = 1 << 20


@click.group("policy")
def group() -> None:
    """What machines are measured against; the narrowest assignment wins.

    Without any, the shipped policy identity-only applies: identity proven, boot state not appraised.

    \b
    Examples:
      attestation policy create workers.json
      attestation policy assign workers@1 --role worker-app
    """


@group.command("list")
@output_option
@pass_session
def list_(session: Session) -> None:
    """List policies and where they apply.

    \b
    Examples:
      attestation policy list
    """
    with session.client() as client:
        listed = client.policies()
    if session.json:
        session.emit_json(listed)
        return
    now = datetime.now(UTC)
    session.emit_table(
        [
            Column("POLICY"),
            Column("CREATED", drop=1),
            Column("BY", shrink_to=8, drop=2),
            Column("APPLIES TO", shrink_to=12),
            Column("SHA-256", shrink_to=13, drop=3),
        ],
        [
            [
                cell(f"{p.name}@{p.version}"),
                time_cell(p.created_at, now) if p.created_at else cell("shipped"),
                cell(p.created_by),
                cell(_places(p, listed.assignments)),
                cell(p.sha256),
            ]
            for p in listed.policies
        ],
        "No policies.",
    )


@group.command()
@click.argument("file", type=click.File("r", encoding="utf-8"))
@output_option
@pass_session
def create(session: Session, file: Any) -> None:
    """Store a policy version from FILE (JSON, - for stdin). It cannot be changed afterwards.

    It applies nowhere until it is assigned.

    \b
    Examples:
      attestation policy create workers.json
    """
    try:
        document = json.loads(file.read(MAX_FILE_CHARACTERS))
    except (OSError, ValueError, RecursionError) as e:
        raise RequestInvalid(f"{file.name}: not JSON: {e}") from e
    if not isinstance(document, dict):
        raise RequestInvalid(f"{file.name}: a policy is a JSON object")
    with session.client() as client:
        created = client.create_policy(document)
    if session.json:
        session.emit_json(created)
        return
    reference = f"{cell(created.name).text}@{created.version}"
    if session.output != "csv":
        session.emit(f"{reference}: stored")
    session.emit_fields([("sha256", cell(created.sha256))], indent="  ")
    session.note(
        f"It applies nowhere yet: attestation policy assign {created.name}@{created.version} --fleet"
    )


def _where(command: Any) -> Any:
    for option in (
        click.option("--machine", metavar="ID", help="This machine.", shell_complete=complete_machine),
        click.option("--role", type=click.Choice([r.value for r in Role]), help="Machines in this role."),
        click.option("--cluster", metavar="CLUSTER_ID", help="Machines of this cluster."),
        click.option("--fleet", is_flag=True, help="Every machine."),
    ):
        command = option(command)
    return command


def _subject(
    session: Session,
    client: OperatorClient,
    *,
    fleet: bool,
    cluster: str | None,
    role: str | None,
    machine: str | None,
) -> tuple[Scope, str]:
    chosen: list[tuple[Scope, str]] = []
    if fleet:
        chosen.append(("fleet", "*"))
    if cluster is not None:
        chosen.append(("cluster", cluster))
    if role is not None:
        chosen.append(("role", role))
    if machine is not None:
        chosen.append(("machine", machine))
    if len(chosen) != 1:
        raise click.UsageError("give exactly one of --fleet, --cluster, --role, --machine")
    scope, subject = chosen[0]
    return scope, session.find(client, subject).machine_id if scope == "machine" else subject


@group.command()
@click.argument("policy", metavar="NAME@VERSION")
@_where
@output_option
@pass_session
def assign(
    session: Session,
    policy: str,
    cluster: str | None,
    role: str | None,
    machine: str | None,
    *,
    fleet: bool,
) -> None:
    """Let a policy apply there, from the next challenge on; the narrowest assignment wins.

    \b
    Examples:
      attestation policy assign workers@1 --role worker-app
      attestation policy assign strict@2 --machine cp-1
    """
    from attestation.api import PolicyAssignment, PolicyAssignmentRequest

    checked(lambda: PolicyAssignmentRequest(policy=policy))
    with session.client() as client:
        scope, subject = _subject(session, client, fleet=fleet, cluster=cluster, role=role, machine=machine)
        assigned = client.assign_policy(scope, subject, policy)
    if not isinstance(assigned, PolicyAssignment):
        _emit_pending(session, assigned, scope, subject, ["policy", "assign", policy])
        return
    if session.json:
        session.emit_json(assigned)
        return
    rows = [("policy", cell(assigned.policy)), ("applies to", _place(assigned.scope, assigned.subject))]
    session.emit_fields(rows)


@group.command()
@_where
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
@pass_session
def unassign(
    session: Session, cluster: str | None, role: str | None, machine: str | None, *, fleet: bool, yes: bool
) -> None:
    """Let the next wider assignment apply there again.

    \b
    Examples:
      attestation policy unassign --role worker-app
    """
    with session.client() as client:
        scope, subject = _subject(session, client, fleet=fleet, cluster=cluster, role=role, machine=machine)
        place = _place(scope, subject).text
        session.confirm(
            f"Remove the policy assignment of {place}? Its machines may be measured less.", yes=yes
        )
        pending = client.unassign_policy(scope, subject)
    if pending is not None:
        _emit_pending(session, pending, scope, subject, ["policy", "unassign"])
        return
    session.emit_done(
        f"{place}: no policy of its own any more", {"scope": scope, "subject": subject, "unassigned": True}
    )


def _emit_pending(
    session: Session, pending: PendingApproval, scope: Scope, subject: str, words: list[str]
) -> None:
    where = ["--fleet"] if scope == "fleet" else [f"--{scope}", clean(subject)]
    session.emit_pending(pending, _place(scope, subject).text, [*words, *where])


def _places(policy: PolicyDetail, assignments: list[PolicyAssignment]) -> str | None:
    reference = f"{policy.name}@{policy.version}"
    places = [_place(a.scope, a.subject).text for a in assignments if a.policy == reference]
    if not places and policy.created_at is None:
        return "wherever no other does"
    return ", ".join(places) or None


def _place(scope: str, subject: str) -> Cell:
    return cell("fleet" if scope == "fleet" else f"{scope} {subject}")
