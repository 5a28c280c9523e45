"""The allow-list: EKs that operators admit before they were ever seen."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, select, update

from attestation.clock import to_micros
from attestation.errors import AllowListEntryUnknown
from attestation.machines import Role
from attestation.store.codec import binds, codec
from attestation.store.pages import Page, checked_limit, decode_cursor, page_of
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import AllowListTableRow, table_of

_T = table_of(AllowListTableRow)
_C = _T.c


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowListRow:
    """One EK admitted in advance, and what it becomes; `ek_fingerprint` is 96 lower-case hex.

    `removed_at`: since then it admits nobody.
    """

    ek_fingerprint: str
    role: Role
    hostname: str | None
    assigned_ip: str | None
    cluster_id: str | None
    note: str | None
    created_at: datetime
    created_by: str
    removed_at: datetime | None = None


_ROW = codec(AllowListRow, _C)
_REPLACE = Prepared(
    lambda insert: (
        insert(_T)
        .values(binds(_C))
        .on_conflict_do_update(index_elements=[_C.ek_fingerprint], set_=binds(_C, "ek_fingerprint"))
    )
)
_ONE = _C.ek_fingerprint == bindparam("ek_fingerprint")
_LISTED = _C.removed_at.is_(None)
_GET = Prepared(select(_T).where(_ONE, _LISTED))
_EVER = Prepared(select(_T).where(_ONE))
_REMOVE = Prepared(update(_T).where(_ONE, _LISTED).values(removed_at=bindparam("at")))
_PAGE = Prepared(
    select(_T)
    .where(_C.ek_fingerprint > bindparam("after"), _LISTED)
    .order_by(_C.ek_fingerprint)
    .limit(bindparam("rows"))
)


class AllowList:
    """The allow-list, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def get(self, ek_fingerprint: str) -> AllowListRow | None:
        """Return the entry of this EK, or None."""
        return _ROW.one(self._sql.row(_GET, ek_fingerprint=ek_fingerprint))

    def ever(self, ek_fingerprint: str) -> AllowListRow | None:
        """Return the entry of this EK, listed or removed, or None: what a new one takes the place of."""
        return _ROW.one(self._sql.row(_EVER, ek_fingerprint=ek_fingerprint))

    def put(self, entry: AllowListRow) -> bool:
        """Store an entry; return True if it is new, False if it replaced one that was listed."""
        listed = self.get(entry.ek_fingerprint) is not None
        self._sql.do(_REPLACE, **_ROW.encode(entry) | {"removed_at": None})
        return not listed

    def remove(self, ek_fingerprint: str, at: datetime) -> None:
        """Remove an entry; machines it admitted stay, and what it said is remembered.

        Raises:
            AllowListEntryUnknown: This EK is not on the list.
        """
        if self._sql.run(_REMOVE, ek_fingerprint=ek_fingerprint, at=to_micros(at)) != 1:
            raise AllowListEntryUnknown("this EK is not on the allow-list")

    def page(self, cursor: str | None, limit: int) -> Page[AllowListRow]:
        """Return entries in the order of their fingerprints.

        Raises:
            RequestInvalid: *cursor* or *limit* cannot be right.
        """
        kind = "allow-list"
        after = "" if cursor is None else decode_cursor(kind, cursor)
        rows = self._sql.rows(_PAGE, after=after, rows=checked_limit(limit) + 1)
        return page_of(kind, rows, limit, _ROW.decode)
