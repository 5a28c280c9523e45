"""What waits for approval, with what there is to decide by, side by side (W13)."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from attestation.client.text import clean, short_ids
from attestation.errors import AttestationError, RequestInvalid
from attestation.machines.chips import telling
from attestation_cli.render import Cell, Column, cell, time_cell
from attestation_cli.screen import DIGEST_DIGITS

if TYPE_CHECKING:
    from attestation.api import MachineDetail
    from attestation.client import OperatorClient

MAX_CHARACTERS: Final = 16 << 20
MOST: Final = 200
"""So many machines are shown at once: of each it is asked who vouches for it."""
SERIAL: Final = "serial"
COLOURS: Final = {"yes": "green", "no": "red", "unknown": "yellow"}


@dataclass(frozen=True, slots=True)
class Purchased:
    """The serial numbers that somebody bought, as they are compared."""

    serials: frozenset[str]

    def says(self, serial: str) -> str:
        """Return `yes`, `no`, or `unknown` where the machine says no serial number."""
        known = telling(serial)
        return "unknown" if known is None else "yes" if known in self.serials else "no"


def read_purchased(text: str, heading: str | None) -> Purchased:
    """Read a purchase list: CSV with a heading, separated by commas, semicolons or tabs.

    Args:
        text: The file.
        heading: What heads the serial numbers; without it the one that is called `serial`, or the only one.

    Raises:
        RequestInvalid: Not that; also a list without a serial number, which would say no to everything.
    """
    if len(text) > MAX_CHARACTERS:
        raise RequestInvalid(f"the purchase list is longer than {MAX_CHARACTERS} characters")
    lines = text.removeprefix("\ufeff")
    first = next((line for line in lines.splitlines() if line.strip()), "")
    reader = csv.reader(io.StringIO(lines, newline=""), strict=True, delimiter=max(",;\t", key=first.count))
    try:
        rows = [[value.strip() for value in row] for row in reader if any(value.strip() for value in row)]
    except csv.Error as e:
        raise RequestInvalid(f"purchase list, line {reader.line_num}: {e}") from e
    headings = [each.casefold() for each in rows[0]] if rows else []
    wanted = (heading or SERIAL).casefold()
    at = 0 if heading is None and len(headings) == 1 else headings.index(wanted) if wanted in headings else -1
    if at < 0 or headings.count(wanted) > 1:
        raise RequestInvalid(
            f"purchase list: no one column is called {clean(heading or SERIAL)}; "
            f"there are {clean(', '.join(rows[0] if rows else [])[:160]) or 'none'}"
        )
    found = frozenset(filter(None, (telling(row[at]) for row in rows[1:] if at < len(row))))
    if not found:
        raise RequestInvalid("purchase list: there is no serial number in it")
    return Purchased(found)


def issuer_of(client: OperatorClient, machine: MachineDetail) -> str | None:
    """Return who is said to have signed the EK certificate; None where there is none, or it is not known now."""
    if machine.ek_certificate is None:
        return None
    try:
        found = client.endorsement(machine.machine_id)
    except AttestationError:
        return None  # a machine that went meanwhile, a service from before: the others are shown all the same
    path = [each.subject for each in found.path[1:2]]
    return found.unknown_issuer or (path[0] if path else None)


def evidence(
    client: OperatorClient, machines: Sequence[MachineDetail], purchased: Purchased | None
) -> list[dict[str, Any]]:
    """Return what there is to decide by about each machine, for people and programs."""
    rows = []
    for machine in machines:
        tpm, last = machine.ek_certificate, machine.last_result
        rows.append(
            {
                "machine_id": machine.machine_id,
                "version": machine.version,
                "ek_fingerprint": machine.ek_fingerprint,
                "assurance": str(machine.assurance),
                "ek_issuer": issuer_of(client, machine),
                "ek_maker": f"{tpm.manufacturer} {tpm.model}" if tpm else None,
                "hw_product": machine.hw_product,
                "hw_serial": machine.hw_serial,
                "purchased": purchased.says(machine.hw_serial) if purchased is not None else None,
                "registered_from": machine.registered_from,
                "registered_at": machine.registered_at,
                "last_result": str(last.verdict) if last is not None else None,
                "last_result_failed": last.failed if last is not None else None,
                "desired_role": machine.desired_role,
                "alarm": machine.alarm,
                "relatives": len(machine.relatives),
            }
        )
    return rows


COLUMNS: Final = [
    Column("NO"),
    Column("ID"),
    Column("EK FINGERPRINT", drop=2),
    Column("ASSURANCE"),
    Column("EK ISSUER", shrink_to=12, drop=3),
    Column("MAKER", shrink_to=10, drop=5),
    Column("SERIAL", shrink_to=8),
    Column("PURCHASED"),
    Column("FROM", drop=4),
    Column("SINCE", drop=6),
    Column("LAST RESULT", drop=7),
    Column("WISHED ROLE", drop=8),
    Column("ALARM", shrink_to=10, drop=1),
]


def cells(rows: Sequence[dict[str, Any]], now: datetime) -> list[list[Cell]]:
    """Return the cells under `COLUMNS`."""
    short = short_ids([row["machine_id"] for row in rows])
    return [
        [
            cell(number),
            cell(short[row["machine_id"]], row["machine_id"]),
            cell(row["ek_fingerprint"][:DIGEST_DIGITS], row["ek_fingerprint"]),
            cell(row["assurance"]),
            cell(row["ek_issuer"]),
            cell(row["ek_maker"] or "no certificate"),
            cell(row["hw_serial"]),
            Cell(row["purchased"] or "-", COLOURS.get(row["purchased"] or "")),
            cell(row["registered_from"]),
            time_cell(row["registered_at"], now),
            cell(row["last_result"]),
            cell(row["desired_role"]),
            Cell(clean(row["alarm"]), "red") if row["alarm"] is not None else cell(None),
        ]
        for number, row in enumerate(rows, start=1)
    ]


def chosen(answer: str, count: int) -> list[int]:
    """Return which of *count* machines `1,3-5` or `all` means, from 0, each once, in their order.

    Raises:
        RequestInvalid: Not that, or more than there are.
    """
    if answer.strip().lower() == "all":
        return list(range(count))
    found: set[int] = set()
    for part in filter(None, re.split(r"[\s,]+", answer.strip())):
        match = re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part)
        first = int(match[1]) if match else 0
        last = int(match[2] or first) if match else 0
        if not 1 <= first <= last <= count:
            raise RequestInvalid(f"say numbers of the list, 1 to {count}, like 1,3-5, or all")
        found.update(range(first - 1, last))
    return sorted(found)
