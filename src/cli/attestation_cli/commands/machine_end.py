"""`attestation machine lock`, `unlock`, `revoke`, `wipe` and `delete`: an admission suspended or ended."""

from __future__ import annotations

import click

from attestation.api.operations import OperatorAPI
from attestation.client.text import clean
from attestation.machines.names import typed_name
from attestation_cli.machine_acts import (
    ID,
    REASON,
    YES,
    described,
    machine_act,
    print_done,
    reason_of,
)
from attestation_cli.options import printing
from attestation_cli.session import Session, name_of


@machine_act(OperatorAPI.lock, "locked")
def lock() -> None:
    """Suspend an attested machine: it gets nothing until it is unlocked.

    \b
    Examples:
      attestation machine lock worker-2 -r "lid was open"
    """


@machine_act(OperatorAPI.unlock, "unlocked")
def unlock() -> None:
    """Let a locked machine attest again; its next attestation decides what it is worth.

    \b
    Examples:
      attestation machine unlock worker-2 -r "lid closed, seal checked"
    """


@click.command()
@ID
@click.option("--wipe", is_flag=True, help="Also order it to erase its disks.")
@REASON
@YES
@printing
def revoke(session: Session, machine: str, reason: str | None, *, wipe: bool, yes: bool) -> None:
    """End a machine's admission for good.

    With --wipe it is also ordered to erase itself, and you must type its name.

    \b
    Examples:
      attestation machine revoke worker-2 -r "sold"
      attestation machine revoke worker-2 --wipe -r "stolen"
    """
    _revoke(session, machine, reason, wipe=wipe, yes=yes)


@click.command()
@ID
@REASON
@YES
@printing
def wipe(session: Session, machine: str, reason: str | None, *, yes: bool) -> None:
    """Revoke a machine and order it to erase its disks: the same as `revoke --wipe`.

    \b
    Examples:
      attestation machine wipe worker-2 -r "stolen"
    """
    _revoke(session, machine, reason, wipe=True, yes=yes)


def _revoke(session: Session, machine: str, reason: str | None, *, wipe: bool, yes: bool) -> None:
    with session.client() as client:
        detail = session.find(client, machine)
        typed: str | None = None
        if wipe:
            phrase = typed_name(detail.hostname, detail.machine_id)
            typed = session.confirm(
                f"Revoke {described(detail)} for good and ERASE its disks?", yes=yes, phrase=clean(phrase)
            )
        else:
            session.confirm(f"Revoke {described(detail)} for good?", yes=yes)
        revoked = client.revoke(
            detail.machine_id,
            wipe=wipe,
            reason=reason_of(reason) if reason else None,
            confirm_name=typed,
        )
    print_done(session, "revoked, wipe ordered" if wipe else "revoked", revoked)


@click.command()
@ID
@YES
@printing
def delete(session: Session, machine: str, *, yes: bool) -> None:
    """Delete the record of a rejected or wiped machine; the audit stays.

    \b
    Examples:
      attestation machine delete 7f3a
    """
    with session.client() as client:
        detail = session.find(client, machine)
        session.confirm(f"Delete the record of {described(detail)}?", yes=yes)
        client.delete_machine(detail.machine_id)
    session.emit_done(f"{name_of(detail)}: deleted", {"machine_id": detail.machine_id, "deleted": True})
