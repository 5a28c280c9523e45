"""Which database this is: a name that was made with it, and that the keys beside it remember."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, select, update

from attestation.clock import to_micros
from attestation.store.codec import codec
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import DatabaseIdentityRow, table_of

_T = table_of(DatabaseIdentityRow)
_C = _T.c


@dataclass(frozen=True, slots=True)
class DatabaseIdentity:
    """Who this database is.

    Args:
        database_id: 32 lower-case hex, random; a copy has the same.
        made_at: When its identity was made: with the database, or by the migration that brought identities.
        bound_at: Since when keys remember it; None until a service started with it.
        moved_to: What it was copied to, and goes on as; None where it goes on itself.
        moved_at: Since when.
    """

    database_id: str
    made_at: datetime
    bound_at: datetime | None
    moved_to: str | None = None
    moved_at: datetime | None = None


_ROW = codec(DatabaseIdentity, _C, besides=("id",))
_GET = Prepared(select(_T))
_BIND = Prepared(update(_T).values(bound_at=bindparam("at"), moved_to=None, moved_at=None))


class Identity:
    """The identity of the database, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def get(self) -> DatabaseIdentity | None:
        """Return it; None where somebody removed it."""
        return _ROW.one(self._sql.row(_GET))

    def bind(self, at: datetime) -> None:
        """Note that keys remember this database since *at*, and that it goes on itself."""
        self._sql.do(_BIND, at=to_micros(at))
