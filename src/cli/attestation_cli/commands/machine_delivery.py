"""`attestation machine redeliver` and `offline-bundle`: how a machine gets its configuration."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from attestation.api.operations import OperatorAPI
from attestation.errors import RequestInvalid
from attestation_cli.machine_acts import ID, machine_act
from attestation_cli.options import FILE_PATH, new_proposal_option, printing
from attestation_cli.session import Session, name_of

if TYPE_CHECKING:
    from attestation.api import MachineDetail, OfflineBundle, PendingApproval


@machine_act(OperatorAPI.redeliver, "delivery ordered")
def redeliver() -> None:
    """Offer a machine its configuration again, at its next good attestation.

    \b
    Examples:
      attestation machine redeliver worker-2
    """


@click.command("offline-bundle")
@ID
@click.option(
    "-f", "--output-file", "file", required=True, type=FILE_PATH, help="Where it is written, for you alone."
)
@new_proposal_option
@printing
def offline_bundle(session: Session, machine: str, file: Path) -> None:
    """Have what a machine needs for an installation without a network put into one file (compatibility).

    Configuration and key in it are sealed to the TPM of the machine, which must be attested and trusted now. It is off
    unless the service was told otherwise (ITL_COMPAT_OFFLINE_BUNDLE), and several people must ask for it; the last one
    gets the file. It issues a certificate and a config token, so those from before it lose their right.

    \b
    Examples:
      attestation machine offline-bundle cp-1 -f cp-1.json
    """
    with session.client() as client:
        detail = session.find(client, machine)
        write_bundle(session, detail, lambda: client.offline_bundle(detail.machine_id), file)


def write_bundle(
    session: Session, detail: MachineDetail, ask: Callable[[], OfflineBundle | PendingApproval], file: Path
) -> None:
    """Have the offline bundle of a machine made by *ask* and write it, or print that others must agree.

    Raises:
        RequestInvalid: The file is there, or cannot be made; nothing was asked.
    """
    from attestation.api import PendingApproval
    from attestation_cli.render import json_text

    # Opened first: what cannot be written would have used up the votes.
    try:
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except OSError as e:
        raise RequestInvalid(f"{file}: {e.strerror}") from e
    written = False
    try:
        answer = ask()
        if not isinstance(answer, PendingApproval):
            os.write(opened, f"{json_text(answer)}\n".encode())
            os.fsync(opened)
            written = True
    finally:
        os.close(opened)
        if not written:
            file.unlink(missing_ok=True)
    if isinstance(answer, PendingApproval):
        session.emit_pending(answer, name_of(detail))
        return
    session.emit_done(
        f"{name_of(detail)}: offline bundle written to {file}, certificate {answer.serial}",
        {"machine_id": answer.machine_id, "serial": answer.serial, "file": str(file)},
    )
