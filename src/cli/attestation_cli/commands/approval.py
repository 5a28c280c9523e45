"""`attestation approval …`: what waits for the vote of another operator."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import click

from attestation.api import ProposalDetail, ReasonRequest
from attestation.client import OperatorClient
from attestation.client.text import ago, clean
from attestation.errors import ApprovalUnknown
from attestation_cli.render import Cell, Column, cell, time_cell
from attestation_cli.session import Session, output_option, pass_session

MIN_DIGITS: Final = 4


@click.group("approval")
def group() -> None:
    """What waits for the vote of another operator.

    Where a role is under dual control, an act that yields credentials for it needs several people who ask for
    exactly the same. To agree, call the same command as the first one did; its answer shows it.

    \b
    Examples:
      attestation approval list
      attestation approval show 0856db90
      attestation approval withdraw 17
      attestation approval object 0856db90 --reason "carla left yesterday"
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
                Cell(f"void, changed since: {', '.join(p.overtaken)}", "red", "void")
                if p.overtaken
                else Cell(f"{p.approvals_received} of {p.approvals_required}", "yellow"),
                cell(", ".join(p.voters)),
                time_cell(p.expires_at, now) if p.expires_at > now else cell(ago(p.expires_at, now)),
                cell(", ".join(str(v.id) for v in p.approvals)),
                cell(p.proposal_digest),
            ]
            for p in found
        ],
        "Nothing waits for a vote.",
    )


@group.command()
@click.argument("proposal")
@output_option
@pass_session
def show(session: Session, proposal: str) -> None:
    """Show everything that the votes for one proposal bind; PROPOSAL begins its digest, or is the number of a vote.

    What it says of the machine was so when it was voted on. Where it is not so any more, no vote counts.

    \b
    Examples:
      attestation approval show 0856db90
    """
    with session.client() as client:
        found = _proposal(client, proposal)
    if session.json:
        session.emit_json(found)
        return
    now = datetime.now(UTC)
    void = f"void, changed since: {', '.join(found.overtaken)}" if found.overtaken else None
    session.emit_fields(
        [
            ("about", cell(found.subject)),
            (
                "approvals",
                Cell(void, "red")
                if void
                else cell(f"{found.approvals_received} of {found.approvals_required}"),
            ),
            ("voted", cell(", ".join(v.operator_cn for v in found.approvals))),
            ("expires", time_cell(found.expires_at, now)),
            *(
                (name, cell(_words(value)))
                for name, value in found.proposal.items()
                if value not in (None, {}, [])
            ),
            ("proposal", cell(found.proposal_digest)),
        ]
    )


def _words(value: object) -> str:
    """Return a member of a proposal in words."""
    if isinstance(value, dict) and "parts" in value:
        parts = [f"{part['ref']}{'' if part['agreed'] else ' (one operator)'}" for part in value["parts"]]
        made = f", of {', '.join(parts)}" if parts else ""
        policy = value["policy"]
        return f"{policy['ref']} sha256 {policy['sha256']}, at least {value['minimum']}{made}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_words(each)}" for name, each in value.items() if each is not None)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _proposal(client: OperatorClient, wanted: str) -> ProposalDetail:
    """Return the proposal that *wanted* names: the number of a vote, or at least four digits of the digest."""
    found = [
        p
        for p in client.proposals()
        if any(str(v.id) == wanted for v in p.approvals)
        or (len(wanted) >= MIN_DIGITS and p.proposal_digest.startswith(wanted.lower()))
    ]
    if len(found) != 1:
        raise ApprovalUnknown(f"{len(found) or 'no'} proposals that wait are called {clean(wanted)!r}")
    return found[0]


@group.command("object")
@click.argument("proposal")
@click.option("--reason", required=True, help="Why; it stands in the audit.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
@pass_session
def object_(session: Session, proposal: str, reason: str, *, yes: bool) -> None:
    """End every vote for a proposal; PROPOSAL begins its digest, or is the number of a vote.

    One operator is enough, break-glass too. Nothing is forbidden by it: whoever still wants it begins anew.

    \b
    Examples:
      attestation approval object 0856db90 --reason "carla left yesterday"
    """
    with session.client() as client:
        found = _proposal(client, proposal)
        session.confirm(f"Object to {clean(found.subject)}: {clean(found.action)}?", yes=yes)
        answer = client.object_to_proposal(found.proposal_digest, ReasonRequest(reason=reason))
    session.emit_done(
        f"{found.action}, {clean(found.subject)}: {answer.voided} votes void", answer.model_dump()
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
