"""Public keys that never get a certificate again. What stands here stays: a key does not become secret again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, select

from attestation.clock import from_micros, to_micros
from attestation.store.pages import Page, checked_limit, decode_cursor, page_of
from attestation.store.sql import Executor, Prepared, Row
from attestation.store.tables import RefusedKeyRow, table_of

_T = table_of(RefusedKeyRow)
_C = _T.c


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedKey:
    """A key that is not certified.

    Args:
        spki_sha256: SHA-256 of its SubjectPublicKeyInfo, DER; 64 lower-case hex.
        why: In words.
        added_at: Since when.
        added_by: Name of the operator, or `service` for what a revocation said.
    """

    spki_sha256: str
    why: str
    added_at: datetime
    added_by: str


def _decode(row: Row) -> RefusedKey:
    return RefusedKey(spki_sha256=row[0], why=row[1], added_at=from_micros(row[2]), added_by=row[3])


_PUT = Prepared(
    lambda insert: insert(_T).values({c.name: bindparam(c.name) for c in _C}).on_conflict_do_nothing()
)
_GET = Prepared(select(_T).where(_C.spki_sha256 == bindparam("spki_sha256")))
_PAGE = Prepared(
    select(_T).where(_C.spki_sha256 > bindparam("after")).order_by(_C.spki_sha256).limit(bindparam("rows"))
)


class RefusedKeys:
    """The keys that are refused, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def put(self, key: RefusedKey) -> bool:
        """Refuse a key for good; False where it was refused before, and then stays as it was written down."""
        done = self._sql.run(
            _PUT,
            spki_sha256=key.spki_sha256,
            why=key.why,
            added_at=to_micros(key.added_at),
            added_by=key.added_by,
        )
        return done == 1

    def get(self, spki_sha256: str) -> RefusedKey | None:
        """Return why this key is refused, or None."""
        row = self._sql.row(_GET, spki_sha256=spki_sha256)
        return None if row is None else _decode(row)

    def page(self, cursor: str | None, limit: int) -> Page[RefusedKey]:
        """Return refused keys in the order of their digests.

        Raises:
            RequestInvalid: *cursor* or *limit* cannot be right.
        """
        kind = "refused-keys"
        after = "" if cursor is None else decode_cursor(kind, cursor)
        rows = self._sql.rows(_PAGE, after=after, rows=checked_limit(limit) + 1)
        return page_of(kind, rows, limit, _decode)
