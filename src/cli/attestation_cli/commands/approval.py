"""`attestation approval …`: what waits for the vote of another operator."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from attestation.api import ProposalDetail
from attestation.client import OperatorClient
from attestation.client.text import ago, clean
from attestation.errors import ApprovalUnknown, ProposalDiffers, RequestInvalid
from attestation.machines import Transition
from attestation.machines.dual_control import OFFLINE_BUNDLE, REGISTRATION_TOKEN, REPLACE
from attestation_cli.machine_acts import reason_of
from attestation_cli.options import FILE_PATH, listing, printing
from attestation_cli.render import Cell, Column, cell, time_cell
from attestation_cli.screen import DIGEST_DIGITS, Refused, is_terminal
from attestation_cli.session import Session

MIN_DIGITS: Final = 4
WHOLE_DIGITS: Final = 64
ADMITTING: Final = frozenset({Transition.APPROVE.value, REPLACE})
"""Acts that admit a machine: whoever agrees has read its fingerprint there."""


@click.group("approval")
def group() -> None:
    """What waits for the vote of another operator.

    Where a role is under dual control, an act that yields credentials for it needs several people who ask for
    exactly the same. `approve` agrees to what somebody else proposed, and to nothing else.

    \b
    Examples:
      attestation approval list
      attestation approval show 0856db90
      attestation approval approve 0856db90c14fe1aa
      attestation approval withdraw 17
      attestation approval object 0856db90 --reason "carla left yesterday"
    """


@group.command("list")
@listing
def list_(session: Session) -> None:
    """List proposals that wait, newest first: about machines, tokens and the allow-list.

    Votes add up only for the same proposal, down to host name, address and what the machine has shown of
    itself. `-o json` shows every member that the votes bind.

    \b
    Examples:
      attestation approval list
      attestation approval list -o json
    """
    now = datetime.now(UTC)
    with session.client() as client:
        session.emit_list(
            client.proposals(),
            {
                Column("ACTION"): lambda p: p.action,
                Column("ABOUT", shrink_to=16): lambda p: p.subject,
                Column("APPROVALS"): lambda p: (
                    Cell(f"void, changed since: {', '.join(p.overtaken)}", "red", "void")
                    if p.overtaken
                    else Cell(f"{p.approvals_received} of {p.approvals_required}", "yellow")
                ),
                Column("BY", shrink_to=8): lambda p: ", ".join(p.voters),
                Column("EXPIRES"): lambda p: (
                    time_cell(p.expires_at, now) if p.expires_at > now else cell(ago(p.expires_at, now))
                ),
                Column("VOTES", drop=1): lambda p: ", ".join(str(v.id) for v in p.approvals),
                Column("PROPOSAL"): lambda p: cell(p.proposal_digest[:DIGEST_DIGITS], p.proposal_digest),
            },
            "Nothing waits for a vote.",
        )


@group.command()
@click.argument("proposal")
@printing
def show(session: Session, proposal: str) -> None:
    """Show everything that the votes for one proposal bind; PROPOSAL begins its digest, or is the number of a vote.

    Who vouches for the machine and what it proved last stands beside it, and why each voter agreed, in their words.
    Where something is not so any more that was voted on, no vote counts.

    \b
    Examples:
      attestation approval show 0856db90
    """
    with session.client() as client:
        found = _proposal(client, proposal)
        if session.json:
            session.emit_json(found)
            return
        from attestation_cli.proposal_screen import print_proposal

        print_proposal(session, client, found)


@group.command()
@click.argument("proposal")
@click.option(
    "--fingerprint",
    metavar="HEX",
    help="The EK fingerprint, or the beginning of it (16 to 96 hex), as read from the machine itself.",
)
@click.option("-r", "--reason", help="Why you agree; kept in the audit.")
@click.option(
    "--out", type=FILE_PATH, help="Where a token, a certificate or a bundle is written that the act makes."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@printing
def approve(
    session: Session,
    proposal: str,
    fingerprint: str | None,
    reason: str | None,
    out: Path | None,
    *,
    yes: bool,
) -> None:
    """Agree to a proposal; PROPOSAL begins its digest, or is the number of a vote.

    It is shown whole and you are asked. What you agree to is what was shown: if anything of it changes before your
    vote arrives, nothing is done. Where a machine is admitted, you also say its EK fingerprint, read from the machine
    itself (`attestation-agent identify` there); it is shown when you have said it.

    With --yes nobody looks at what is shown, so PROPOSAL must be the whole digest or the number of a vote.

    \b
    Examples:
      attestation approval approve 0856db90c14fe1aa
      attestation approval approve 0856db90c14fe1aa --fingerprint 3010ed0c5ba1d2f4
    """
    from attestation.client.agreement import agree
    from attestation_cli.machine_acts import same_fingerprint
    from attestation_cli.proposal_screen import print_proposal

    if yes and not proposal.isdecimal() and len(proposal) != WHOLE_DIGITS:
        raise RequestInvalid(
            "with --yes give the whole digest, or the number of a vote: who proposes can make two that begin alike"
        )
    if session.json and not yes:
        raise Refused(
            f"-o {session.output} shows nothing that you could agree to: leave it out, or add --yes"
        )
    with session.client() as client:
        found = _proposal(client, proposal, seen=not yes)
        if found.overtaken:
            raise ProposalDiffers(f"this proposal is void, changed since: {', '.join(found.overtaken)}")
        if found.action == OFFLINE_BUNDLE and out is None:
            raise RequestInvalid("an offline bundle is a file: say where, with --out")
        asked = fingerprint is None and found.action in ADMITTING
        if not session.json:
            # What is to be read at the machine itself must not stand above the question to be copied from there.
            print_proposal(session, client, found, withheld=_ek(found) if asked else None)
        if asked:
            fingerprint = _read_at_the_machine(yes=yes)
        if fingerprint is not None:
            same_fingerprint(_ek(found), fingerprint)
        if asked:
            session.note(f"It is the TPM of this proposal, EK fingerprint {_ek(found)}.")
        session.confirm(f"Agree to exactly this: {clean(found.action)}, {clean(found.subject)}?", yes=yes)
        _vote(session, client, found, lambda: agree(client, found, reason), out)


def _vote(
    session: Session, client: OperatorClient, found: ProposalDetail, ask: Callable[[], Any], out: Path | None
) -> None:
    """Cast the vote by *ask*, and print or write what the act made."""
    from attestation.api import MachineDetail, OperatorCertificate, PendingApproval
    from attestation_cli.machine_acts import print_done

    if found.action == REGISTRATION_TOKEN:
        from attestation_cli.commands.token import issue

        issue(session, ask, out)
        return
    if found.action == OFFLINE_BUNDLE:
        from attestation_cli.commands.machine_delivery import write_bundle

        assert found.machine_id is not None
        assert out is not None
        write_bundle(session, client.machine(found.machine_id), ask, out)
        return
    answer = ask()
    if isinstance(answer, PendingApproval):
        session.emit_pending(answer, clean(found.subject))
    elif isinstance(answer, OperatorCertificate):
        from attestation_cli.commands.operator_cert import emit_new

        emit_new(session, answer, out)
    elif isinstance(answer, MachineDetail) and session.output in ("table", "wide"):
        print_done(session, f"{clean(found.action)} done, enough people agree", answer)
    else:
        members: dict[str, Any] = {
            "proposal_digest": found.proposal_digest,
            "action": found.action,
            "done": True,
        }
        if isinstance(answer, MachineDetail):
            now = answer.model_dump(mode="json")
            members |= {name: now[name] for name in ("machine_id", "hostname", "status", "role", "assurance")}
        session.emit_done(f"{clean(found.subject)}: {clean(found.action)} done, enough people agree", members)


def _ek(found: ProposalDetail) -> str:
    ek = found.proposal["ek_fingerprint"]
    if ek is None:
        raise RequestInvalid("this proposal is about no machine, so it has no fingerprint")
    return str(ek)


def _read_at_the_machine(*, yes: bool) -> str:
    if yes or not is_terminal():
        raise RequestInvalid(
            "a machine is admitted by this: say what you read at the machine itself with --fingerprint"
        )
    typed: str = click.prompt(
        "EK fingerprint, as the machine's own console or sticker shows it (16 digits up)", err=True
    )
    return typed.strip()


def _proposal(client: OperatorClient, wanted: str, *, seen: bool = True) -> ProposalDetail:
    """Return the proposal that *wanted* names: the number of a vote, or at least four digits of the digest.

    Where nobody will have *seen* it, all 64: a digest that begins like the number of a vote is made in a second.
    """
    least = MIN_DIGITS if seen else WHOLE_DIGITS
    found = [
        p
        for p in client.proposals()
        if any(str(v.id) == wanted for v in p.approvals)
        or (len(wanted) >= least and p.proposal_digest.startswith(wanted.lower()))
    ]
    if len(found) != 1:
        raise ApprovalUnknown(f"{len(found) or 'no'} proposals that wait are called {clean(wanted)!r}")
    # By its own name: the list leaves out what was sent with it.
    return client.proposal(found[0].proposal_digest)


@group.command("object")
@click.argument("proposal")
@click.option("--reason", required=True, help="Why; it stands in the audit.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@printing
def object_(session: Session, proposal: str, reason: str, *, yes: bool) -> None:
    """End every vote for a proposal; PROPOSAL begins its digest, or is the number of a vote.

    One operator is enough, break-glass too. Nothing is forbidden by it: whoever still wants it begins anew.

    \b
    Examples:
      attestation approval object 0856db90 --reason "carla left yesterday"
    """
    with session.client() as client:
        found = _proposal(client, proposal)
        why = reason_of(reason)
        session.confirm(f"Object to {clean(found.subject)}: {clean(found.action)}?", yes=yes)
        answer = client.object_to_proposal(found.proposal_digest, why)
    session.emit_done(
        f"{found.action}, {clean(found.subject)}: {answer.voided} votes void", answer.model_dump()
    )


@group.command()
@click.argument("vote", type=click.IntRange(min=1))
@click.option("--yes", is_flag=True, help="Do not ask.")
@printing
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
