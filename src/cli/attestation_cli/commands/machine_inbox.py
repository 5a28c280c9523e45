"""`attestation machine inbox`: what waits for approval, with the evidence side by side."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, TextIO

import click

from attestation.client.text import clean
from attestation.clock import rfc3339
from attestation.errors import RequestInvalid
from attestation.machines import Status
from attestation_cli import inbox, screen
from attestation_cli.options import printing
from attestation_cli.screen import Refused
from attestation_cli.session import Session

if TYPE_CHECKING:
    from attestation.api import MachineDetail
    from attestation.client import OperatorClient
    from attestation_cli.batch import Chosen

PURCHASED = click.option(
    "--purchased",
    type=click.File("r", encoding="utf-8-sig"),
    metavar="FILE",
    help="CSV of serial numbers that were bought: each machine is told to be on it, or not.",
)
PURCHASED_COLUMN = click.option(
    "--purchased-column",
    metavar="HEADING",
    help="What heads the serial numbers in it; serial if left out.",
)


@click.command("inbox")
@click.option("--cluster-id", help="Only of this cluster.")
@click.option("-q", "--search", help="Only where id, hostname or hardware contain this.")
@PURCHASED
@PURCHASED_COLUMN
@printing
def inbox_(
    session: Session,
    cluster_id: str | None,
    search: str | None,
    purchased: TextIO | None,
    purchased_column: str | None,
) -> None:
    """Show the machines that wait for approval, with what there is to decide by.

    Who vouches for the TPM and who signed its certificate, what the machine says to be, whether you bought it, where
    it came from, what its last quote was worth, and alarms. What a machine says of itself proves nothing.

    \b
    Examples:
      attestation machine inbox
      attestation machine inbox --purchased orders.csv \\
          --purchased-column "Serial Number"
    """
    bought = purchased_of(purchased, purchased_column)
    with session.client() as client:
        rows = inbox.evidence(client, waiting(client, cluster_id, search), bought)
    if session.json:
        told = ({**row, "registered_at": rfc3339(row["registered_at"])} for row in rows)
        session.emit_json(told)
        return
    show(session, rows)


def waiting(client: OperatorClient, cluster_id: str | None, search: str | None) -> list[MachineDetail]:
    """Return the machines that wait, the newest first, as many as are shown at once."""
    found = client.machines(status=Status.PENDING_APPROVAL, cluster_id=cluster_id, q=search)
    return list(islice(found, inbox.MOST))


def show(session: Session, rows: list[dict[str, Any]]) -> None:
    """Print them for people."""
    session.emit_table(inbox.COLUMNS, inbox.cells(rows, datetime.now(UTC)), "Nobody waits for approval.")
    if len(rows) == inbox.MOST:
        session.note(f"These are the newest {inbox.MOST}: decide about some, or say -q or --cluster-id.")


def choose(session: Session, client: OperatorClient, purchased: inbox.Purchased | None) -> list[Chosen]:
    """Show the machines that wait, ask which of them, and return those, at the version that was shown.

    Raises:
        Refused: Nobody can be asked.
        RequestInvalid: What was answered is no choice.
        click.exceptions.Exit: None was chosen, or none waits.
    """
    from attestation_cli.batch import Chosen

    if not screen.is_terminal() or session.json or session.output == "csv":
        raise Refused("--pending asks which machines: name them where nobody can be asked")
    rows = inbox.evidence(client, waiting(client, None, None), purchased)
    show(session, rows)
    if not rows:
        raise click.exceptions.Exit(0)
    answer = click.prompt(
        "Which of them? Numbers like 1,3-5, or all", default="", show_default=False, err=True
    )
    numbers = inbox.chosen(answer, len(rows))
    if not numbers:
        session.note("Nothing was changed.")
        raise click.exceptions.Exit(1)
    return [Chosen(rows[at]["machine_id"], version=rows[at]["version"]) for at in numbers]


def purchased_of(file: TextIO | None, heading: str | None) -> inbox.Purchased | None:
    """Return the purchase list of a file, or None where none is given.

    Raises:
        RequestInvalid: It cannot be read, or has no serial numbers under that heading.
    """
    if file is None:
        if heading is not None:
            raise RequestInvalid("--purchased-column is about the file of --purchased")
        return None
    try:
        text = file.read(inbox.MAX_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as e:
        raise RequestInvalid(f"{clean(file.name)}: {getattr(e, 'strerror', None) or 'not UTF-8 text'}") from e
    return inbox.read_purchased(text, heading)
