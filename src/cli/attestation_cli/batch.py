"""Several machines approved at once: side by side before anybody decides, one answer each, nothing hidden."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from attestation.client import OutcomeUnknown
from attestation.client.text import clean, short_ids
from attestation.errors import AttestationError, IdempotencyKeyReused, RequestInvalid
from attestation.machines import Status
from attestation_cli.render import Cell, Column, cell
from attestation_cli.screen import DIGEST_DIGITS, Refused
from attestation_cli.session import Session

if TYPE_CHECKING:
    from attestation.api import ApproveRequest, MachineDetail
    from attestation.client import OperatorClient

COLUMNS: Final = ("machine", "hostname", "ip", "fingerprint")
MOST: Final = 1000
MAX_CHARACTERS: Final = 1_048_576


@dataclass(frozen=True, slots=True)
class Chosen:
    """One machine that is to be approved: what it is called now, and what it gets; empty where nothing is said."""

    machine: str
    hostname: str | None = None
    assigned_ip: str | None = None
    fingerprint: str | None = None
    version: int | None = None
    """That was looked at, where somebody chose from a list."""


def read_chosen(text: str) -> list[Chosen]:
    """Read CSV with a heading: `machine`, and as you like `hostname`, `ip`, `fingerprint`.

    Raises:
        RequestInvalid: Not that; the message names the line.
    """
    if len(text) > MAX_CHARACTERS:
        raise RequestInvalid(f"longer than {MAX_CHARACTERS} characters")
    reader = csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
    found = []
    try:
        heading = reader.fieldnames or []
        if "machine" not in heading or not set(heading) <= set(COLUMNS) or len(set(heading)) != len(heading):
            raise RequestInvalid(
                f"the first line must name the columns: machine, and any of {', '.join(COLUMNS[1:])}"
            )
        for row in reader:
            if None in row or None in row.values() or not row["machine"]:
                raise RequestInvalid(f"line {reader.line_num}: not one value for each column, or no machine")
            hostname, address, fingerprint = (row.get(name) or None for name in COLUMNS[1:])
            found.append(Chosen(row["machine"], hostname, address, fingerprint))
    except csv.Error as e:
        raise RequestInvalid(f"line {reader.line_num}: {e}") from e
    return found


def approve_all(
    session: Session,
    client: OperatorClient,
    chosen: Sequence[Chosen],
    check: Callable[[str, str], None],
    request_of: Callable[[Chosen, int], ApproveRequest],
    role: str,
    *,
    yes: bool,
) -> bool:
    """Show the machines side by side, ask once, and approve each; return True if all went well.

    Args:
        session: Where it is printed.
        client: Finds the machines.
        chosen: Which, and what each gets.
        check: Refuses an EK fingerprint that is not the one read at the machine.
        request_of: Says what one is asked for, at the version that was seen; refuses what the API would not accept.
        role: What they become.
        yes: Do not ask.

    Raises:
        RequestInvalid: None, too many, one named twice, or one that is another TPM: nothing was done to any.
        OutcomeUnknown: The answer about one was lost; it is told, and those behind it were not asked for.
    """
    if not 0 < len(chosen) <= MOST:
        raise RequestInvalid(f"name 1 to {MOST} machines")
    # 1. All of them are looked up and compared before anything is done to one.
    found = [(each, session.find(client, each.machine)) for each in chosen]
    ids = [machine.machine_id for _, machine in found]
    if len(set(ids)) != len(ids):
        twice = next(each for each in ids if ids.count(each) > 1)
        raise RequestInvalid(f"machine {twice} is named twice")
    for each, machine in found:
        if each.fingerprint is not None:
            check(machine.ek_fingerprint, each.fingerprint)
        if each.version not in (None, machine.version):
            raise RequestInvalid(f"machine {machine.machine_id} changed while you chose: look again")
    requests = [request_of(each, machine.version) for each, machine in found]
    short = short_ids(ids)
    # 2. Side by side, as a person compares them.
    if session.json or session.output == "csv":
        if not yes:
            raise Refused(
                f"-o {session.output} shows nothing that you could decide about: leave it out, or add --yes"
            )
    else:
        session.emit_table(SIDE_BY_SIDE, [_row(each, machine, short) for each, machine in found], "")
    session.confirm(
        f"Approve these {len(found)} machines as {role}: {', '.join(short[each] for each in ids)}?", yes=yes
    )
    # 3. Each by itself: what one is refused for is no reason to leave the others.
    results, lost = _results(client, [machine for _, machine in found], requests, again=session.asks_again)
    if session.json:
        session.emit_json(iter(results))
    else:
        session.emit_rows(
            results,
            {
                Column("ID"): lambda r: cell(short[str(r["machine_id"])], r["machine_id"]),
                Column("RESULT"): lambda r: Cell(str(r["result"]), RESULT_COLOURS[str(r["result"])]),
                Column("WHY, OR WHAT NEXT"): lambda r: r["detail"],
            },
            "",
        )
    if lost is not None:
        raise lost
    return all(r["result"] != "failed" for r in results)


SIDE_BY_SIDE: Final = [
    Column("ID"),
    Column("EK FINGERPRINT"),
    Column("ASSURANCE"),
    Column("TPM", drop=2),
    Column("HARDWARE", shrink_to=12, drop=1),
    Column("FROM", drop=3),
    Column("HOSTNAME", shrink_to=8),
    Column("ADDRESS", drop=4),
]
RESULT_COLOURS: Final = {
    "approved": "green",
    "done before": "green",
    "proposed": "yellow",
    "failed": "red",
    "unknown": "red",
    "not asked": "yellow",
}


def _row(each: Chosen, machine: MachineDetail, short: Mapping[str, str]) -> list[Cell]:
    tpm = machine.ek_certificate
    compared = " compared" if each.fingerprint is not None else ""
    return [
        cell(short[machine.machine_id], machine.machine_id),
        cell(f"{machine.ek_fingerprint[:DIGEST_DIGITS]}{compared}", machine.ek_fingerprint),
        cell(machine.assurance),
        cell(f"{tpm.manufacturer} {tpm.model}" if tpm else "no certificate"),
        cell(f"{machine.hw_product} {machine.hw_serial}"),
        cell(machine.registered_from),
        cell(each.hostname),
        cell(each.assigned_ip),
    ]


def _results(
    client: OperatorClient,
    machines: Sequence[MachineDetail],
    requests: Sequence[ApproveRequest],
    *,
    again: bool,
) -> tuple[list[dict[str, str]], OutcomeUnknown | None]:
    """Ask for one after the other, until an answer is lost: each further one would be waited for as long."""
    results, lost = [], None
    for machine, request in zip(machines, requests, strict=True):
        if lost is not None:
            results.append({"machine_id": machine.machine_id, "result": "not asked", "detail": ""})
            continue
        try:
            results.append(_result(client, machine, request, again=again))
        except OutcomeUnknown as e:
            lost = e
            results.append({"machine_id": machine.machine_id, "result": "unknown", "detail": clean(str(e))})
    return results, lost


def _result(
    client: OperatorClient, machine: MachineDetail, request: ApproveRequest, *, again: bool
) -> dict[str, str]:
    from attestation.api import PendingApproval

    try:
        answer = client.approve(machine.machine_id, request)
    except OutcomeUnknown:
        raise
    except AttestationError as e:
        admitted = machine.status is not Status.PENDING_APPROVAL
        if again and admitted and isinstance(e, IdempotencyKeyReused):
            # Under the key of this machine's turn: it was done, and the machine has a newer version since. One that
            # waits still was not: in the other run it was another machine's turn.
            return {"machine_id": machine.machine_id, "result": "done before", "detail": clean(str(e))}
        said, result = clean(str(e)), "failed"
    else:
        if isinstance(answer, PendingApproval):
            call = f"attestation approval approve {answer.proposal_digest[:DIGEST_DIGITS]}"
            said, result = f"{answer.approvals_received} of {answer.approvals_required}: {call}", "proposed"
        else:
            said, result = f"{answer.role}, {answer.assurance}", "approved"
    return {"machine_id": machine.machine_id, "result": result, "detail": said}
