"""Chores: what one process does for all that share the database, until it gives it up or falls silent."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, delete, or_, select
from sqlalchemy.sql import ClauseElement

from attestation.clock import to_micros
from attestation.store.codec import binds, codec
from attestation.store.sql import Executor, Insert, Prepared
from attestation.store.tables import ChoreRow, table_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Chore:
    """Who does it.

    Args:
        name: What.
        holder: Names a process.
        until: When it is anybody's again, unless the holder takes it again before, UTC.
    """

    name: str
    holder: str
    until: datetime


_T = table_of(ChoreRow)
_C = _T.c
_ROW = codec(Chore, _C)
_ALL = Prepared(select(_T).order_by(_C.name))
_GIVE_UP = Prepared(delete(_T).where(_C.name == bindparam("of_name"), _C.holder == bindparam("by")))


def _take(insert: Insert) -> ClauseElement:
    wanted = insert(_T).values(binds(_C))
    return wanted.on_conflict_do_update(  # type: ignore[no-any-return]  # the dialect's own insert
        index_elements=[_C.name],
        set_={"holder": wanted.excluded.holder, "until": wanted.excluded.until},
        where=or_(
            _C.holder == wanted.excluded.holder,
            _C.until <= bindparam("at"),
            _C.until > bindparam("beyond"),
        ),
    )


_TAKE = Prepared(_take)


class Chores:
    """The chores, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def take(self, wanted: Chore, at: datetime) -> bool:
        """Take or keep a chore; False where it is somebody else's at *at*.

        Nobody takes one for twice as long: who has it until then took it before the clock was set back.
        """
        beyond = to_micros(wanted.until + (wanted.until - at))
        return self._sql.run(_TAKE, at=to_micros(at), beyond=beyond, **_ROW.encode(wanted)) == 1

    def give_up(self, name: str, holder: str) -> None:
        """Let anybody have it from now on, if it is *holder*'s."""
        self._sql.run(_GIVE_UP, of_name=name, by=holder)

    def all(self) -> list[Chore]:
        """Return who has, or had last, which chore."""
        return [_ROW.decode(row) for row in self._sql.rows(_ALL)]
