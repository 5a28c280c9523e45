"""`attestation approval …`: what waits for the vote of another operator."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from attestation_cli.render import Cell, Column, ago, cell, time_cell
from attestation_cli.session import Session, output_option, pass_session


@click.group("approval")
def group() -> None:
    """What waits for the vote of another operator.

    Where a role is under dual control, an act that yields credentials for it needs several people who ask for
    exactly the same. To agree, call the same command as the first one did; its answer shows it.

    \b
    Examples:
      attestation approval list
      attestation approval withdraw 17
    """


@group.command("list")
@output_option
@pass_session
def list_(session: Session) -> None:
    """List proposals that wait, newest first: about machines, tokens and the allow-list.

    Votes add up only for the same proposal, down to host name, address and what the machine has shown of
    itself. `-o json` shows every member that the votes bind.

    \b
    Examples:
      attestation approval list
      attestation approval list -o json
    """
    with session.client() as client:
        proposals = client.proposals()
        if session.json:
            session.emit_json(proposals)
            return
        found = list(proposals)
    now = datetime.now(UTC)
    session.emit_table(
        [
            Column("ACTION"),
            Column("ABOUT", shrink_to=16),
            Column("APPROVALS"),
            Column("BY", shrink_to=8),
            Column("EXPIRES"),
            Column("VOTES", drop=1),
            Column("PROPOSAL", wide=True),
        ],
        [
            [
                cell(p.action),
                cell(p.subject),
                Cell(f"{p.approvals_received} of {p.approvals_required}", "yellow"),
                cell(", ".join(p.voters)),
                time_cell(p.expires_at, now) if p.expires_at > now else cell(ago(p.expires_at, now)),
                cell(", ".join(str(v.id) for v in p.approvals if v.live)),
                cell(p.proposal_digest),
            ]
            for p in found
        ],
        "Nothing waits for a vote.",
    )


@group.command()
@click.argument("vote", type=click.IntRange(min=1))
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
@pass_session
def withdraw(session: Session, vote: int, *, yes: bool) -> None:
    """Take back your own live vote; VOTE is its number.

    \b
    Examples:
      attestation approval withdraw 17
    """
    with session.client() as client:
        session.confirm(f"Withdraw vote {vote}?", yes=yes)
        client.withdraw_approval(vote)
    session.emit_done(f"vote {vote}: withdrawn", {"approval_id": vote, "withdrawn": True})
