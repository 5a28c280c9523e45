"""`attestation policy activate` and its like: which policy applies where."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from attestation.client.text import clean
from attestation.errors import PolicyUnknown
from attestation_cli.complete import complete_policy
from attestation_cli.options import listing, new_proposal_option, printing
from attestation_cli.policy_place import place_cell, place_of, place_options
from attestation_cli.render import Column, cell, time_cell
from attestation_cli.session import Session, checked

if TYPE_CHECKING:
    from attestation.api import PolicyAssignment
    from attestation.api.operations import Scope


@click.command()
@click.argument("policy", metavar="NAME@VERSION", shell_complete=complete_policy)
@place_options
@new_proposal_option
@printing
def activate(session: Session, policy: str, **where: Any) -> None:
    """Let a policy apply there, from the next challenge on, instead of the one before.

    Where dual control asks for several people, this is your vote for exactly this document in this place.

    \b
    Examples:
      attestation policy activate workers@1 --role worker-app
      attestation policy activate strict@2 --machine cp-1
    """
    _activate(session, policy, where)


@click.command()
@click.argument("policy", metavar="NAME@VERSION", shell_complete=complete_policy)
@place_options
@new_proposal_option
@printing
def assign(session: Session, policy: str, **where: Any) -> None:
    """Do the same as `activate`, under its older name.

    \b
    Examples:
      attestation policy assign workers@1 --role worker-app
    """
    _activate(session, policy, where)


def _activate(session: Session, policy: str, where: Mapping[str, Any]) -> None:
    from attestation.api import PolicyAssignment, PolicyAssignmentRequest

    checked(lambda: PolicyAssignmentRequest(policy=policy))
    with session.client() as client:
        scope, subject = place_of(session, client, where)
        assigned = client.assign_policy(scope, subject, policy)
    if not isinstance(assigned, PolicyAssignment):
        session.emit_pending(assigned, place_cell(scope, subject).text)
        return
    _emit_assigned(session, assigned)


def _emit_assigned(session: Session, assigned: PolicyAssignment) -> None:
    if session.json:
        session.emit_json(assigned)
        return
    rows = [("policy", cell(assigned.policy)), ("applies to", place_cell(assigned.scope, assigned.subject))]
    session.emit_fields(rows)


@click.command()
@place_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@new_proposal_option
@printing
def unassign(session: Session, *, yes: bool, **where: Any) -> None:
    """Let only what is assigned more widely apply there.

    \b
    Examples:
      attestation policy unassign --role worker-app
    """
    with session.client() as client:
        scope, subject = place_of(session, client, where)
        place = place_cell(scope, subject).text
        session.confirm(
            f"Remove the policy assignment of {place}? Its machines may be measured less.", yes=yes
        )
        pending = client.unassign_policy(scope, subject)
    if pending is not None:
        session.emit_pending(pending, place_cell(scope, subject).text)
        return
    _emit_unassigned(session, scope, subject)


def _emit_unassigned(session: Session, scope: Scope, subject: str) -> None:
    session.emit_done(
        f"{place_cell(scope, subject).text}: no policy of its own any more",
        {"scope": scope, "subject": subject, "unassigned": True},
    )


@click.command()
@place_options
@click.option("--yes", is_flag=True, help="Do not ask.")
@new_proposal_option
@printing
def rollback(session: Session, *, yes: bool, **where: Any) -> None:
    """Let what applied there before apply again.

    It is an activation like any other: under dual control your vote counts together with that of whoever activates
    the same version by name.

    \b
    Examples:
      attestation policy rollback --role worker-app
    """
    from attestation.api import PendingApproval, PolicyAssignment

    with session.client() as client:
        scope, subject = place_of(session, client, where)
        place = place_cell(scope, subject).text
        changes = client.policy_history(scope, subject, page_size=2)
        now = next(changes, None)
        if now is None:
            raise PolicyUnknown(f"nothing was ever assigned to {place}")
        earlier = next(changes, None)
        before = None if earlier is None else earlier.policy
        told = f"{clean(before)} again" if before is not None else "no policy of its own"
        instead = "" if now.policy is None else f", instead of {clean(now.policy)}"
        session.confirm(f"{place}: {told}{instead}?", yes=yes)
        answer = client.roll_back_policy(scope, subject)
    if isinstance(answer, PendingApproval):
        session.emit_pending(answer, place_cell(scope, subject).text)
    elif isinstance(answer, PolicyAssignment):
        _emit_assigned(session, answer)
    else:
        _emit_unassigned(session, scope, subject)


@click.command()
@place_options
@click.option(
    "--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many."
)
@listing
def history(session: Session, limit: int, **where: Any) -> None:
    """List what applied where and since when, newest first: everywhere, or in one place.

    \b
    Examples:
      attestation policy history
      attestation policy history --role worker-app
    """
    from itertools import islice

    with session.client() as client:
        chosen: tuple[Scope | None, str | None] = (None, None)
        if any(value not in (None, False) for value in where.values()):
            chosen = place_of(session, client, where)
        now = datetime.now(UTC)
        session.emit_list(
            islice(client.policy_history(*chosen, page_size=min(limit, 200)), limit),
            {
                Column("WHEN"): lambda c: time_cell(c.at, now),
                Column("WHERE", shrink_to=16): lambda c: place_cell(c.scope, c.subject),
                Column("POLICY"): lambda c: c.policy or "none of its own",
                Column("BY", shrink_to=8, drop=1): lambda c: c.by,
            },
            "Nothing was ever assigned there.",
        )
