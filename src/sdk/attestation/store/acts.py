"""What became of acts of operators, for whoever asks again with the same key (docs/adr/0070).

A row is written in the unit of the act: where there is one the act was done, and where there is none it was not.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import bindparam, delete, func, insert, select, update

from attestation.store.codec import binds, codec
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import ActRow, table_of

ACTS_OF_ONE: Final = 10_000
"""So many acts are remembered of one operator; an older one gives way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """An act that was done.

    Args:
        key: SHA-256 of who did it and of the key that they gave it.
        operator: SHA-256 of who did it.
        request: SHA-256 of what they asked for.
        entry_id: Its entry in the audit log.
        status: HTTP status of the answer; None where the answer is not kept.
        answer: Its body, JSON; None where it has none, or is not kept.
        done_at: When, UTC.
    """

    key: bytes
    operator: bytes
    request: bytes
    entry_id: int
    status: int | None
    answer: str | None
    done_at: datetime


_T = table_of(ActRow)
_C = _T.c
_ROW = codec(Act, _C, besides=("number",))
_GET = Prepared(select(_T).where(_C.key == bindparam("key")))
_LAST = Prepared(select(func.max(_C.number)).where(_C.operator == bindparam("operator")))
_ADD = Prepared(insert(_T).values(binds(_C)))
_TELL = Prepared(
    update(_T).where(_C.key == bindparam("of_key")).values(binds(_C, "key", "operator", "number", "request"))
)
_FORGET = Prepared(delete(_T).where(_C.operator == bindparam("operator"), _C.number <= bindparam("number")))


class Acts:
    """The acts that are remembered, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def get(self, key: bytes) -> Act | None:
        """Return what was done under *key*, or None."""
        return _ROW.one(self._sql.row(_GET, key=key))

    def put(self, act: Act) -> None:
        """Remember an act, or what a further unit of it did; beyond `ACTS_OF_ONE` the oldest is forgotten."""
        told = _ROW.encode(act)
        if self._sql.run(_TELL, of_key=act.key, **told):
            return
        row = self._sql.row(_LAST, operator=act.operator)
        number = (row[0] if row is not None and row[0] is not None else 0) + 1
        self._sql.do(_ADD, number=number, **told)
        self._sql.do(_FORGET, operator=act.operator, number=number - ACTS_OF_ONE)
