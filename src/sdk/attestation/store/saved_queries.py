"""Queries that operators keep under a name: each has their own, and sees those that others share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, delete, func, or_, select, true

from attestation.store.codec import binds, codec
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import SavedQueryRow, table_of

_T = table_of(SavedQueryRow)
_C = _T.c


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedQuery:
    """A query under a name.

    Args:
        owner: Stable subject of whose it is.
        owner_cn: Their name when they saved it last.
        name: Unique among theirs.
        query: What is asked.
        description: What for, in their words.
        shared: Everybody who may ask sees it.
        created_at: When it was saved first.
        updated_at: When it was saved last.
    """

    owner: str
    owner_cn: str
    name: str
    query: str
    description: str | None
    shared: bool
    created_at: datetime
    updated_at: datetime


_COLUMNS = [each for each in _C if each.name != "id"]
_ROW = codec(SavedQuery, _COLUMNS)
_MINE = (_C.owner == bindparam("of_owner"), _C.name == bindparam("of_name"))
_CHANGE = ("owner_cn", "query", "description", "shared", "updated_at")
_PUT = Prepared(
    lambda insert: (
        insert(_T)
        .values(binds(_COLUMNS))
        .on_conflict_do_update(
            index_elements=["owner", "name"], set_={name: bindparam(name) for name in _CHANGE}
        )
    )
)
_GET = Prepared(select(*_COLUMNS).where(*_MINE))
_REMOVE = Prepared(delete(_T).where(*_MINE))
_COUNT = Prepared(select(func.count()).select_from(_T).where(_C.owner == bindparam("of_owner")))
_VISIBLE = Prepared(
    select(*_COLUMNS)
    .where(or_(_C.owner == bindparam("of_owner"), _C.shared == true()))
    .order_by(_C.name, _C.owner)
    .limit(bindparam("rows"))
)


class SavedQueries:
    """The saved queries, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def get(self, owner: str, name: str) -> SavedQuery | None:
        """Return this query of *owner*, or None."""
        return _ROW.one(self._sql.row(_GET, of_owner=owner, of_name=name))

    def put(self, saved: SavedQuery) -> None:
        """Keep *saved*, in place of what its owner kept under its name; since when stays what it was."""
        self._sql.do(_PUT, **_ROW.encode(saved))

    def remove(self, owner: str, name: str) -> bool:
        """Forget this query of *owner*; False where there is none."""
        return self._sql.run(_REMOVE, of_owner=owner, of_name=name) == 1

    def count(self, owner: str) -> int:
        """Return how many *owner* has."""
        row = self._sql.row(_COUNT, of_owner=owner)
        assert row is not None
        return int(row[0])

    def visible(self, owner: str, most: int) -> list[SavedQuery]:
        """Return those of *owner* and those that others share, by name, at most so many."""
        return [_ROW.decode(row) for row in self._sql.rows(_VISIBLE, of_owner=owner, rows=most)]
