"""Audit entries as rows: of a list, and of an export for spreadsheets."""

from __future__ import annotations

import json
from typing import Final, Protocol

from attestation.audit.authority import words_of
from attestation_cli.render import Cell, Column, cell, column_name, csv_line, exact

COLUMNS: Final = (
    Column("ID"),
    Column("TIME"),
    Column("ACTION"),
    Column("OPERATOR", shrink_to=8),
    Column("MACHINE", drop=1),
    Column("CHANGE", shrink_to=10, drop=2),
    Column("DETAIL", shrink_to=24),
    Column("FROM", shrink_to=9, drop=4),
    Column("SUBJECT", wide=True),
    Column("HASH", wide=True),
)


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


def row(entry: Entry) -> list[Cell]:
    """Return the cells of *entry* under `COLUMNS`."""
    changed = entry.new_state not in (None, entry.prev_state)
    return [
        cell(entry.id),
        cell(f"{entry.timestamp[:19].replace('T', ' ')}Z", entry.timestamp),
        cell(entry.action),
        cell(entry.operator_cn),
        cell(entry.machine_id[:8] if entry.machine_id else None, entry.machine_id or ""),
        cell(f"{entry.prev_state or 'new'} → {entry.new_state}" if changed else None),
        cell(words_of(entry.detail), entry.detail),
        cell(entry.source_ip),
        cell(entry.operator_sub),
        cell(entry.entry_hash),
    ]


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
        return csv_line(map(exact, row(entry)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""
