"""`attestation machine approvals` and `withdraw`: the votes about a machine."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from attestation.client.text import ago, clean
from attestation.errors import ApprovalUnknown
from attestation_cli.machine_acts import ID, YES
from attestation_cli.options import listing, printing
from attestation_cli.render import Cell, Column, cell, time_cell
from attestation_cli.session import Ambiguous, Session

if TYPE_CHECKING:
    from attestation.api import ApprovalDetail
    from attestation.client import OperatorClient


@click.command()
@ID
@listing
def approvals(session: Session, machine: str) -> None:
    """Show the votes about a machine, newest first: live, expired, withdrawn and used ones.

    \b
    Examples:
      attestation machine approvals cp-1
    """
    now = datetime.now(UTC)
    with session.client() as client:
        session.emit_list(
            client.machine_approvals(session.find_id(client, machine)),
            {
                Column("VOTE"): lambda v: v.id,
                Column("OPERATOR", shrink_to=8): lambda v: v.operator_cn,
                Column("ACTION"): lambda v: v.action,
                Column("ROLE"): lambda v: v.role,
                Column("STATE"): lambda v: _vote_state(v, now),
                Column("CAST", drop=1): lambda v: time_cell(v.created_at, now),
                Column("HOSTNAME", shrink_to=8, drop=2): lambda v: v.hostname,
                Column("ADDRESS", shrink_to=10, drop=3): lambda v: v.assigned_ip,
                Column("EXPIRES", wide=True): lambda v: time_cell(v.expires_at, now),
                Column("PROPOSAL", wide=True): lambda v: v.proposal_digest,
            },
            "No votes.",
        )


def _vote_state(vote: ApprovalDetail, now: datetime) -> Cell:
    if vote.live:
        return Cell(f"live, ends {ago(vote.expires_at, now)}", "green", "live")
    if vote.void is not None:
        return Cell(f"void: {clean(vote.void)}", "red", "void")
    return cell("used" if vote.consumed else "withdrawn" if vote.withdrawn else "expired")


@click.command()
@ID
@click.option("--vote", type=int, metavar="NUMBER", help="Which one, where several are live.")
@YES
@printing
def withdraw(session: Session, machine: str, vote: int | None, *, yes: bool) -> None:
    """Take back your live vote about a machine.

    \b
    Examples:
      attestation machine withdraw cp-1
      attestation machine withdraw cp-1 --vote 17
    """
    with session.client() as client:
        machine_id = session.find_id(client, machine)
        number = _live_vote(client, machine_id, vote)
        session.confirm(f"Withdraw vote {number}?", yes=yes)
        client.withdraw_approval(number)
    session.emit_done(f"vote {number}: withdrawn", {"approval_id": number, "withdrawn": True})


def _live_vote(client: OperatorClient, machine_id: str, wanted: int | None) -> int:
    live = [v for v in client.machine_approvals(machine_id) if v.live]
    if wanted is not None:
        if wanted not in (v.id for v in live):
            raise ApprovalUnknown(f"there is no live vote {wanted} about this machine")
        return wanted
    if not live:
        raise ApprovalUnknown("there is no live vote about this machine")
    if len(live) > 1:
        lines = [f"--vote {v.id}  {clean(v.operator_cn)}: {clean(v.action)}" for v in live]
        raise Ambiguous("\n".join(["several votes are live; yours may be any of", *lines]))
    return live[0].id
