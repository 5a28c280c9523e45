"""Audit entries as rows: of a list, and of an export for spreadsheets."""

from __future__ import annotations

import json
from typing import Final, Protocol

from attestation.audit.authority import words_of
from attestation.client.csv_line import csv_line
from attestation_cli.render import Column, Told, cell, cells, column_name, exact


class Entry(Protocol):
    """What a row tells of an entry; `AuditEntryDetail` is one."""

    id: int
    timestamp: str
    action: str
    operator_cn: str
    operator_sub: str | None
    machine_id: str | None
    prev_state: str | None
    new_state: str | None
    detail: str | None
    source_ip: str | None
    entry_hash: str


COLUMNS: Final[Told[Entry]] = {
    Column("ID"): lambda e: e.id,
    Column("TIME"): lambda e: cell(f"{e.timestamp[:19].replace('T', ' ')}Z", e.timestamp),
    Column("ACTION"): lambda e: e.action,
    Column("OPERATOR", shrink_to=8): lambda e: e.operator_cn,
    Column("MACHINE", drop=1): lambda e: cell(e.machine_id[:8] if e.machine_id else None, e.machine_id or ""),
    Column("CHANGE", shrink_to=10, drop=2): lambda e: _change(e),
    Column("DETAIL", shrink_to=24): lambda e: cell(words_of(e.detail), e.detail),
    Column("FROM", shrink_to=9, drop=4): lambda e: e.source_ip,
    Column("SUBJECT", wide=True): lambda e: e.operator_sub,
    Column("HASH", wide=True): lambda e: e.entry_hash,
}


def _change(entry: Entry) -> str | None:
    if entry.new_state in (None, entry.prev_state):
        return None
    return f"{entry.prev_state or 'new'} → {entry.new_state}"


class CSV:
    """Turns an export, piece by piece, into CSV: the columns, exact values and protections of `audit list -o csv`.

    A line that is no entry gives no row: whether the export is good, its verifier says.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._begun = False

    def feed(self, piece: bytes) -> bytes:
        """Return the rows that *piece* completes; before the first one the heading."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        text = "" if self._begun else csv_line(column_name(column.title) for column in COLUMNS)
        self._begun = True
        return (text + "".join(map(_csv_row, lines))).encode()


def _csv_row(line: bytes) -> str:
    from types import SimpleNamespace

    try:
        members = json.loads(line)
        entry = SimpleNamespace(id=members["id"], entry_hash=members["entry_hash"], **members["entry"])
        return csv_line(map(exact, cells(COLUMNS, entry)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""
