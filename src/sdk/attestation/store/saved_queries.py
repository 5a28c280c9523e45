"""What operators keep under a name, queries and views: each has their own, and sees what others share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, delete, func, or_, select, true, update

from attestation.clock import to_micros
from attestation.store.codec import binds, codec
from attestation.store.sql import Executor, Prepared, Row
from attestation.store.tables import SavedQueryRow, table_of

_T = table_of(SavedQueryRow)
_C = _T.c


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedQuery:
    """A query or a view under a name.

    Args:
        owner: Stable subject of whose it is.
        owner_cn: Their name when they saved it last.
        name: Unique among theirs, whatever the kind.
        query: What is asked; of a view, what its address says.
        description: What for, in their words.
        shared: Everybody who may ask sees it.
        created_at: When it was saved first.
        updated_at: When it was saved last.
        kind: `query` or `view`; it stays what it was.
    """

    owner: str
    owner_cn: str
    name: str
    query: str
    description: str | None
    shared: bool
    created_at: datetime
    updated_at: datetime
    kind: str = "query"


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
_GET = Prepared(select(_C.id, *_COLUMNS).where(*_MINE))
_SHARED = (_C.id == bindparam("of_id"), _C.shared == true())
_GET_SHARED = Prepared(select(_C.id, *_COLUMNS).where(*_SHARED))
_GIVE = Prepared(
    update(_T)
    .where(*_SHARED)
    .values(owner=bindparam("to"), owner_cn=bindparam("to_cn"), updated_at=bindparam("at"))
)
_REMOVE = Prepared(delete(_T).where(*_MINE))
_COUNT = Prepared(select(func.count()).select_from(_T).where(_C.owner == bindparam("of_owner")))
_VISIBLE = Prepared(
    select(_C.id, *_COLUMNS)
    .where(_C.kind == bindparam("of_kind"), or_(_C.owner == bindparam("of_owner"), _C.shared == true()))
    .order_by(_C.name, _C.owner)
    .limit(bindparam("rows"))
)


def _decode(row: Row) -> tuple[int, SavedQuery]:
    return row[0], _ROW.decode(row[1:])


class SavedQueries:
    """What is saved, inside one unit of work. The number of each stands before it."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def get(self, owner: str, name: str) -> tuple[int, SavedQuery] | None:
        """Return what *owner* keeps under *name*, or None."""
        row = self._sql.row(_GET, of_owner=owner, of_name=name)
        return None if row is None else _decode(row)

    def shared(self, number: int) -> SavedQuery | None:
        """Return what is shared under *number*, whoever keeps it, or None."""
        row = self._sql.row(_GET_SHARED, of_id=number)
        return None if row is None else _decode(row)[1]

    def give(self, number: int, owner: str, owner_cn: str, at: datetime) -> None:
        """Make *owner*, who keeps nothing under its name, keep what is shared under *number*."""
        self._sql.do(_GIVE, of_id=number, to=owner, to_cn=owner_cn, at=to_micros(at))

    def put(self, saved: SavedQuery) -> None:
        """Keep *saved*, in place of what its owner kept under its name; since when stays what it was."""
        self._sql.do(_PUT, **_ROW.encode(saved))

    def remove(self, owner: str, name: str) -> bool:
        """Forget what *owner* keeps under *name*; False where there is none."""
        return self._sql.run(_REMOVE, of_owner=owner, of_name=name) == 1

    def count(self, owner: str) -> int:
        """Return how many *owner* has."""
        row = self._sql.row(_COUNT, of_owner=owner)
        assert row is not None
        return int(row[0])

    def visible(self, owner: str, most: int, kind: str = "query") -> list[tuple[int, SavedQuery]]:
        """Return those of *owner* and those that others share, by name, at most so many."""
        return [_decode(row) for row in self._sql.rows(_VISIBLE, of_owner=owner, of_kind=kind, rows=most)]
