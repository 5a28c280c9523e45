"""Whether the rows that give authority are those that the log tells of: each has its entry, and each entry its row.

Both sides go into a table of SQLite's own that spills to a temporary file, and one query compares them: memory does
not grow with the fleet. What changes while this goes on is told by entries that were appended meanwhile, which are
read last; about these rows nothing is said.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final

from attestation.api import AuditState, UnprovenRow
from attestation.audit.authority import MARK, changes_of
from attestation.errors import MalformedEvidence
from attestation.store import AuthorityTable, row_of
from attestation_service.storage.database import ADOPTING

MOST_FINDINGS: Final = 100
_MARK: Final = MARK.encode("ascii")

_TABLES: Final = """
CREATE TABLE told (kind TEXT, key TEXT, digest TEXT, entry INT, adopted INT, PRIMARY KEY (kind, key)) WITHOUT ROWID;
CREATE TABLE found (kind TEXT, key TEXT, digest TEXT, PRIMARY KEY (kind, key)) WITHOUT ROWID;
CREATE TABLE broken (kind TEXT, key TEXT, problem TEXT, entry INT);
"""
_UNPROVEN: Final = """
SELECT kind, key, problem, entry FROM broken
UNION ALL
SELECT f.kind, f.key, CASE
    WHEN t.entry IS NULL THEN 'no entry tells of it'
    WHEN t.digest IS NULL THEN 'it is there; entry ' || t.entry || ' took it away'
    ELSE 'it is not what entry ' || t.entry || ' wrote' END, t.entry
FROM found f LEFT JOIN told t ON t.kind = f.kind AND t.key = f.key
WHERE f.digest IS NOT t.digest AND coalesce(t.entry, 0) <= :before
UNION ALL
SELECT t.kind, t.key, 'it is gone; entry ' || t.entry || ' wrote it', t.entry
FROM told t LEFT JOIN found f ON f.kind = t.kind AND f.key = t.key
WHERE f.kind IS NULL AND t.digest IS NOT NULL AND t.entry <= :before
"""


class Ledger:
    """What the log tells of rows, and the rows that there are. Blocks: off the event loop, one thread at a time."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        self._db.executescript(_TABLES)
        self._acted = False

    def close(self) -> None:
        """Forget all of it."""
        self._db.close()

    def tell(self, entries: Iterable[tuple[int, str, str, bytes]]) -> None:
        """Take what *entries* of a walk, in order, say of rows."""
        self._db.execute("BEGIN")
        for entry_id, _, _, data in entries:
            if _MARK in data:
                self._tell(entry_id, json.loads(data))
        self._db.execute("COMMIT")

    def _tell(self, entry_id: int, entry: dict[str, str]) -> None:
        try:
            changes = changes_of(entry["detail"])
        except MalformedEvidence as e:
            self._break("entry", str(entry_id), str(e), entry_id)
            return
        adopts = entry["action"] in ADOPTING
        # 1. Rows are adopted once, before the first act. Otherwise whoever wrote one lets it be adopted.
        if adopts and self._acted:
            for change in changes:
                self._break(
                    change.kind, change.key, f"entry {entry_id} adopted it after acts were told", entry_id
                )
        self._acted = self._acted or not adopts
        for change in changes:
            known = self._db.execute(
                "SELECT digest, entry FROM told WHERE kind = ? AND key = ?", (change.kind, change.key)
            ).fetchone()
            # 2. An act found what the one before left. Otherwise the row was another one for a while.
            if change.before != (known[0] if known else None):
                left = f"what entry {known[1]} left" if known else "told of before"
                self._break(
                    change.kind, change.key, f"when entry {entry_id} changed it, it was not {left}", entry_id
                )
            self._db.execute(
                "INSERT OR REPLACE INTO told VALUES (?, ?, ?, ?, ?)",
                (change.kind, change.key, change.after, entry_id, adopts),
            )

    def _break(self, kind: str, key: str, problem: str, entry_id: int) -> None:
        self._db.execute("INSERT INTO broken VALUES (?, ?, ?, ?)", (kind, key, problem, entry_id))

    def find(self, kind: AuthorityTable, rows: Sequence[Sequence[object]]) -> None:
        """Take rows that there are, as `State.page` reads them."""
        found = ((kind.name, *row_of(kind, row)) for row in rows)
        self._db.execute("BEGIN")
        self._db.executemany(
            "INSERT OR REPLACE INTO found VALUES (?, ?, ?)", (row for row in found if row[2] is not None)
        )
        self._db.execute("COMMIT")

    def compare(self, before: int) -> AuditState:
        """Compare the two.

        Args:
            before: Id of the last entry that was appended before the first row was read: rows of which a later
                entry tells were read too early or too late to say anything.
        """
        findings = self._db.execute(_UNPROVEN, {"before": before})
        unproven = findings.fetchmany(MOST_FINDINGS)
        more = sum(1 for _ in findings)
        (rows,) = self._db.execute("SELECT count(*) FROM found").fetchone()
        (adopted,) = self._db.execute(
            "SELECT count(*) FROM found f JOIN told t ON t.kind = f.kind AND t.key = f.key WHERE t.adopted"
        ).fetchone()
        return AuditState(
            rows=rows,
            adopted=adopted,
            unproven=[
                UnprovenRow(kind=kind, key=key, problem=problem, entry_id=entry)
                for kind, key, problem, entry in unproven
            ],
            more=more,
        )
