"""Stored attestation results: the last few of each machine, every check with expected and found."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass

from sqlalchemy import bindparam, delete, insert, select

from attestation.clock import from_micros, to_micros
from attestation.results import (
    AttestationResult,
    Failed,
    Flagged,
    Outcome,
    Passed,
    Reported,
    Undecided,
    Verdict,
)
from attestation.store.pages import Page, before_id, checked_limit, page_of
from attestation.store.sql import Executor, Prepared, Row
from attestation.store.tables import ResultRow, table_of

_T = table_of(ResultRow)
_C = _T.c
_COLUMNS = tuple(c.name for c in _C if c.name != "id")
_KINDS: dict[str, type[Outcome]] = {
    "passed": Passed,
    "failed": Failed,
    "flagged": Flagged,
    "reported": Reported,
    "undecided": Undecided,
}
_WORDS = {kind: word for word, kind in _KINDS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResult:
    """One attestation result with its row id."""

    result_id: int
    machine_id: str
    result: AttestationResult


def _decode(row: Row) -> StoredResult:
    return StoredResult(
        result_id=row[0],
        machine_id=row[1],
        result=AttestationResult(
            at=from_micros(row[2]),
            verdict=Verdict(row[3]),
            policy=row[4],
            boot_state_appraised=bool(row[5]),
            pcr_digest=row[6],
            outcomes=tuple(_KINDS[word](*texts) for word, *texts in json.loads(row[7])),
        ),
    )


_ADD = Prepared(insert(_T).values({name: bindparam(name) for name in _COLUMNS}))
_OF_MACHINE = _C.machine_id == bindparam("machine_id")
_FIRST_TOO_OLD = select(_C.id).where(_OF_MACHINE).order_by(_C.id.desc()).limit(1).offset(bindparam("kept"))
_TRIM = Prepared(delete(_T).where(_OF_MACHINE, _C.id <= _FIRST_TOO_OLD.scalar_subquery()))
_PAGE = Prepared(
    select(_T).where(_OF_MACHINE, _C.id < bindparam("before")).order_by(_C.id.desc()).limit(bindparam("rows"))
)


class Results:
    """The result history, inside one unit of work.

    Args:
        sql: Where to run statements.
        kept: Rows kept per machine; older ones make room.
    """

    __slots__ = ("_kept", "_sql")

    def __init__(self, sql: Executor, kept: int) -> None:
        self._sql = sql
        self._kept = kept

    def add(self, machine_id: str, result: AttestationResult) -> None:
        """Store a result of a machine and drop what leaves its ring."""
        self._sql.run(
            _ADD,
            machine_id=machine_id,
            at=to_micros(result.at),
            verdict=result.verdict.value,
            policy=result.policy,
            boot_state_appraised=result.boot_state_appraised,
            pcr_digest=result.pcr_digest,
            outcomes=json.dumps([(_WORDS[type(o)], *astuple(o)) for o in result.outcomes]),
        )
        self._sql.run(_TRIM, machine_id=machine_id, kept=self._kept)

    def page(self, machine_id: str, cursor: str | None, limit: int) -> Page[StoredResult]:
        """Return results of one machine, newest first.

        Raises:
            RequestInvalid: *cursor* or *limit* cannot be right.
        """
        rows = self._sql.rows(
            _PAGE,
            machine_id=machine_id,
            before=before_id("results", cursor),
            rows=checked_limit(limit) + 1,
        )
        return page_of("results", rows, limit, _decode)
