"""The allow-list: EKs that operators admit before they were ever seen."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from sqlalchemy import bindparam, func, select, update

from attestation.clock import to_micros
from attestation.errors import AllowListEntryUnknown
from attestation.machines import DEFAULT_CLUSTER, Role
from attestation.store.codec import binds, codec
from attestation.store.pages import Page, checked_limit, decode_cursor, page_of
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import AllowListTableRow, table_of
from attestation.store.within import named, size_of, within

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


@lru_cache(maxsize=16)
def _page(clusters: int | None) -> Prepared:
    """Return the statement for a page of entries: of any cluster, or of so many that are given."""
    rows = select(_T).where(_C.ek_fingerprint > bindparam("after"), _LISTED).order_by(_C.ek_fingerprint)
    if clusters is not None:
        rows = rows.where(within(func.coalesce(_C.cluster_id, DEFAULT_CLUSTER), clusters))
    return Prepared(rows.limit(bindparam("rows")))


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

    def page(
        self, cursor: str | None, limit: int, within: Collection[str] | None = None
    ) -> Page[AllowListRow]:
        """Return entries in the order of their fingerprints; *within*: of these clusters alone.

        Raises:
            RequestInvalid: *cursor* or *limit* cannot be right.
        """
        kind = "allow-list"
        after = "" if cursor is None else decode_cursor(kind, cursor)
        statement, given = _page(None if within is None else size_of(within)), named(within or ())
        values = {"after": after, "rows": checked_limit(limit) + 1}
        rows = self._sql.rows(statement, **values, **(given if within is not None else {}))
        return page_of(kind, rows, limit, _ROW.decode)
