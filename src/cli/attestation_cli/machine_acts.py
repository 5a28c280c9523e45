"""What the commands about a machine share: the options that name it and say why, and how an act on it ended."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from attestation.errors import RequestInvalid
from attestation_cli.complete import complete_machine
from attestation_cli.machine_rows import assurance_cell
from attestation_cli.render import cell
from attestation_cli.session import OtherTPM, Session, checked, name_of

if TYPE_CHECKING:
    from attestation.api import MachineDetail, PendingApproval

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
    wanted = fingerprint.lower().replace(":", "")
    if not re.fullmatch(r"[0-9a-f]{16,96}", wanted):
        raise RequestInvalid("--fingerprint needs 16 to 96 hex digits")
    if not ek_fingerprint.startswith(wanted):
        raise OtherTPM(
            # Not with what: the next word typed would be that one, wherever it was read.
            f"this is another TPM: its EK fingerprint does not begin with {wanted}"
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
    role = f", {machine.role}" if machine.role else ""
    return f"{name_of(machine)} [{machine.status}, {machine.trust}, {machine.assurance}{role}]"


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
