"""The outbox: events written in the unit of the change, handed out after it, at least once.

Any replica claims due rows; a claim that is not confirmed becomes due again. Events of one machine are handed
out one at a time and in order. What becomes of them then is of `handovers`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Table, bindparam, exists, func, insert, select, update
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from attestation.clock import from_micros, to_micros
from attestation.machines import Event
from attestation.store.codec import binds, codec
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import OutboxRow, table_of

_T = table_of(OutboxRow)
_C = _T.c
Columns = ReadOnlyColumnCollection[str, ColumnElement[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxEvent:
    """One event. `id` is a UUID and the same at every attempt, so that handlers can be idempotent."""

    sequence: int
    id: str
    event: Event
    machine_id: str | None
    payload: Mapping[str, Any]
    created_at: datetime
    attempts: int


EVENT = codec(OutboxEvent, (_C[field.name] for field in fields(OutboxEvent)))


def claiming(
    table: Table, waits: Callable[[Columns], Iterable[ColumnElement[bool]]]
) -> tuple[Prepared, Prepared]:
    """Return what finds due events in *table*, and what claims them: of one machine the first that waits, and no other.

    Args:
        table: The outbox, or a table of events with its columns.
        waits: What holds of a row that somebody has still to handle.
    """
    c, earlier = table.c, table.alias("earlier").c
    before = exists().where(
        *waits(earlier), earlier.machine_id == c.machine_id, earlier.sequence < c.sequence
    )
    due = (
        select(c.sequence)
        .where(*waits(c), c.next_attempt_at <= bindparam("at"), ~before)
        .order_by(c.next_attempt_at, c.sequence)
        .limit(bindparam("rows"))
    )
    claim = (
        update(table)
        .where(c.sequence.in_(due))
        .values(attempts=c.attempts + 1, next_attempt_at=bindparam("again_at"))
        .returning(*(c[name] for name in EVENT.at))
    )
    return Prepared(due), Prepared(claim)


_ADD = Prepared(insert(_T).values(binds(_C, "sequence")))
_, _CLAIM = claiming(_T, lambda c: [c.done_at.is_(None)])
_DONE = Prepared(
    update(_T)
    .where(_C.id == bindparam("of_event"), _C.done_at.is_(None))
    .values(done_at=bindparam("at"), next_attempt_at=None)
)
_LAG = Prepared(select(func.count(), func.min(_C.created_at)).where(_C.done_at.is_(None)))


class Outbox:
    """The outbox, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def add(self, event: Event, machine_id: str | None, payload: Mapping[str, Any], at: datetime) -> str:
        """Store an event, due at once, and return its id; *payload* must be JSON."""
        added = OutboxEvent(
            sequence=0,  # the database numbers it
            id=str(uuid.uuid4()),
            event=event,
            machine_id=machine_id,
            payload=payload,
            created_at=at,
            attempts=0,
        )
        self._sql.do(_ADD, **EVENT.encode(added), next_attempt_at=to_micros(at), done_at=None)
        return added.id

    def claim(
        self, limit: int, at: datetime, *, hold: timedelta = timedelta(seconds=60)
    ) -> tuple[OutboxEvent, ...]:
        """Take up to *limit* due events, at most one per machine, for *hold*; then they are due again."""
        rows = self._sql.rows(_CLAIM, rows=limit, at=to_micros(at), again_at=to_micros(at + hold))
        return tuple(sorted(map(EVENT.decode, rows), key=lambda event: event.sequence))

    def done(self, event_ids: Sequence[str], at: datetime) -> frozenset[str]:
        """Confirm events that were handled; return those that nobody had confirmed."""
        return frozenset(
            event_id for event_id in event_ids if self._sql.run(_DONE, of_event=event_id, at=to_micros(at))
        )

    def lag(self) -> tuple[int, datetime | None]:
        """Return how many events wait, and since when the oldest does."""
        count, oldest = self._sql.rows(_LAG)[0]
        return count, None if oldest is None else from_micros(oldest)
