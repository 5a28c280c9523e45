"""What the commands about a machine share: the options that name it and say why, and how an act on it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import update_wrapper
from typing import TYPE_CHECKING, Any

import click

from attestation.client.comparing import is_this_tpm
from attestation.client.text import clean
from attestation_cli.complete import complete_machine
from attestation_cli.machine_rows import assurance_cell
from attestation_cli.options import new_proposal_option, output_option
from attestation_cli.render import cell
from attestation_cli.session import OtherTPM, Session, checked, name_of, pass_session

if TYPE_CHECKING:
    from attestation.api import MachineDetail, PendingApproval
    from attestation.api.operation import ClientMethod

ID = click.argument("machine", metavar="ID", shell_complete=complete_machine)
YES = click.option("--yes", is_flag=True, help="Do not ask.")
REASON = click.option("-r", "--reason", help="Why; kept in the audit.")
REASON_NEEDED = click.option("-r", "--reason", required=True, help="Why; kept in the audit.")
LIMIT = click.option(
    "--limit", type=click.IntRange(min=0), default=0, help="Show at most so many; 0 shows all. [default: 0]"
)


def same_fingerprint(ek_fingerprint: str, fingerprint: str) -> None:
    """Check that what was read at a machine is the beginning of the EK fingerprint (96 hex) that is meant.

    Raises:
        RequestInvalid: It is too short to tell machines apart, or no fingerprint.
        OtherTPM: It is that of another TPM.
    """
    if not is_this_tpm(ek_fingerprint, fingerprint):
        raise OtherTPM(
            # Not with what: the next word typed would be that one, wherever it was read.
            f"this is another TPM: its EK fingerprint does not begin with {clean(fingerprint)}"
        )


def reason_of(text: str) -> str:
    """Return *text* as the API accepts it.

    Raises:
        RequestInvalid: Empty, longer than 1024 characters, or with control characters.
    """
    from attestation.api import ReasonRequest

    return checked(lambda: ReasonRequest(reason=text)).reason


def described(machine: MachineDetail) -> str:
    """Return *machine* as a question names it: what it is called, and where it stands."""
    from attestation.client.words import hardware_words

    role = f", {machine.role}" if machine.role else ""
    hardware = f", {hardware_words(machine.hardware)}" if machine.hardware is not None else ""
    return f"{name_of(machine)} [{machine.status}, {machine.trust}, {machine.assurance}{role}{hardware}]"


def print_done(session: Session, what: str, machine: MachineDetail) -> None:
    """Print that *what* was done, and where *machine* stands now."""
    rows = [
        ("status", cell(machine.status)),
        ("role", cell(machine.role)),
        ("assurance", assurance_cell(machine)),
    ]
    if session.json:
        session.emit_json(machine)
    elif session.output == "csv":
        session.emit_fields([("machine id", cell(machine.machine_id)), ("done", cell(what)), *rows])
    else:
        session.emit(f"{name_of(machine)}: {what}")
        session.emit_fields(rows, indent="  ")


def print_concluded(
    session: Session, what: str, machine: MachineDetail, answer: MachineDetail | PendingApproval
) -> None:
    """Print how a gated act ended: done, or waiting for others."""
    from attestation.api import PendingApproval

    if isinstance(answer, PendingApproval):
        session.emit_pending(answer, name_of(machine))
    else:
        print_done(session, what, answer)


def machine_act(
    operation: ClientMethod[..., MachineDetail] | ClientMethod[..., MachineDetail | PendingApproval],
    done: str,
    *,
    question: str | None = None,
    seen: Callable[[MachineDetail], Mapping[str, Any]] = lambda _: {},
) -> Callable[[Callable[[], None]], click.Command]:
    """Make a command of an act on one machine; its options follow from what *operation* takes and answers.

    Args:
        operation: It takes a machine and perhaps a reason; others may have to agree.
        done: What is printed of the machine.
        question: What is asked before, `{}` being the machine; None asks nothing.
        seen: What else the operation takes: what is shown of the machine, so that nothing else is acted on.
    """
    takes = operation.signature.parameters.get("reason")
    explained = takes is not None and takes.default is takes.empty

    def act(session: Session, machine: str, reason: str | None = None, *, yes: bool = False) -> None:
        with session.client() as client:
            detail = session.find(client, machine)
            if question is not None:
                session.confirm(question.format(described(detail)), yes=yes)
            why = {"reason": reason_of(reason or "")} if reason or explained else {}
            answer = operation(client, detail.machine_id, **why, **seen(detail))
        print_concluded(session, done, detail, answer)

    def make(words: Callable[[], None]) -> click.Command:
        options = [
            ID,
            *([REASON_NEEDED if explained else REASON] if takes is not None else ()),
            *([YES] if question is not None else ()),
            *([new_proposal_option] if operation.is_gated else ()),
            output_option,
        ]
        command: Callable[..., Any] = update_wrapper(pass_session(act), words)
        for option in reversed(options):
            command = option(command)
        return click.command()(command)

    return make
