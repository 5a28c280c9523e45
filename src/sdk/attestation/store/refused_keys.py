"""Public keys that never get a certificate again. What stands here stays: a key does not become secret again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, select

from attestation.store.codec import binds, codec
from attestation.store.pages import Page, checked_limit, decode_cursor, page_of
from attestation.store.sql import Executor, Prepared
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


_ROW = codec(RefusedKey, _C)
_PUT = Prepared(lambda insert: insert(_T).values(binds(_C)).on_conflict_do_nothing())
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
        return self._sql.run(_PUT, **_ROW.encode(key)) == 1

    def get(self, spki_sha256: str) -> RefusedKey | None:
        """Return why this key is refused, or None."""
        return _ROW.one(self._sql.row(_GET, spki_sha256=spki_sha256))

    def page(self, cursor: str | None, limit: int) -> Page[RefusedKey]:
        """Return refused keys in the order of their digests.

        Raises:
            RequestInvalid: *cursor* or *limit* cannot be right.
        """
        kind = "refused-keys"
        after = "" if cursor is None else decode_cursor(kind, cursor)
        rows = self._sql.rows(_PAGE, after=after, rows=checked_limit(limit) + 1)
        return page_of(kind, rows, limit, _ROW.decode)
