"""The public keys by which processes of one service know each other."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sqlalchemy import bindparam, delete, select

from attestation.clock import to_micros
from attestation.store.codec import binds
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import KnownKeyRow, table_of

_T = table_of(KnownKeyRow)
_C = _T.c
_OF = Prepared(select(_C.fingerprint).where(_C.purpose == bindparam("purpose")).order_by(_C.known_since))
_ADD = Prepared(lambda insert: insert(_T).values(binds(_C)).on_conflict_do_nothing())
_END = Prepared(
    delete(_T).where(_C.purpose == bindparam("of_purpose"), _C.fingerprint == bindparam("of_fingerprint"))
)
_FORGET = Prepared(delete(_T))


class KnownKeys:
    """The known keys, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def of(self, purpose: str) -> tuple[str, ...]:
        """Return the fingerprints of the keys for *purpose*, the oldest first."""
        return tuple(row[0] for row in self._sql.rows(_OF, purpose=purpose))

    def put(self, purpose: str, fingerprints: Iterable[str], at: datetime) -> None:
        """Know these keys, and no others, for *purpose*; since *at* where they are not known yet."""
        kept = frozenset(fingerprints)
        for each in frozenset(self.of(purpose)) - kept:
            self._sql.run(_END, of_purpose=purpose, of_fingerprint=each)
        for each in sorted(kept):
            self._sql.run(_ADD, purpose=purpose, fingerprint=each, known_since=to_micros(at))

    def forget(self) -> int:
        """Know none: whoever comes first says which they are. Return how many were known."""
        return self._sql.run(_FORGET)
