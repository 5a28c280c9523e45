"""The outbox: events written in the unit of the change, handed out after it, at least once.

Any replica claims due rows; a claim that is not confirmed becomes due again. Events of one machine are handed
out one at a time and in order; a dead letter stays visible and holds nothing up.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import bindparam, exists, func, insert, select, update

from attestation.clock import from_micros, to_micros
from attestation.machines import Event, event_named
from attestation.store.pages import Page, before_id, checked_limit, page_of
from attestation.store.sql import Executor, Prepared, Row
from attestation.store.tables import OutboxRow, table_of

_T = table_of(OutboxRow)
_C = _T.c
_E = _T.alias("earlier")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxEvent:
    """One event. `id` is a UUID and the same at every attempt, so that handlers can be idempotent."""

    id: str
    sequence: int
    event: Event
    machine_id: str | None
    payload: Mapping[str, Any]
    created_at: datetime
    attempts: int


def decode(row: Row) -> OutboxEvent:
    """Return the event in *row*: the columns of the outbox, in their order, up to `attempts`."""
    return OutboxEvent(
        sequence=row[0],
        id=row[1],
        event=event_named(row[2]),
        machine_id=row[3],
        payload=json.loads(row[4]),
        created_at=from_micros(row[5]),
        attempts=row[6],
    )


def encode(
    event_id: str,
    event: Event,
    machine_id: str | None,
    payload: Mapping[str, Any],
    created_at: datetime,
    at: datetime,
) -> dict[str, object]:
    """Return the columns of an event that is due at *at*, for the outbox or on its way."""
    return {
        "id": event_id,
        "event": event.value,
        "machine_id": machine_id,
        "payload": json.dumps(payload, separators=(",", ":")),
        "created_at": to_micros(created_at),
        "attempts": 0,
        "next_attempt_at": to_micros(at),
    }


_ADD = Prepared(insert(_T).values({c.name: bindparam(c.name) for c in _C if c.name != "sequence"}))
_EARLIER = exists().where(
    _E.c.machine_id == _C.machine_id,
    _E.c.done_at.is_(None),
    _E.c.next_attempt_at.is_not(None),
    _E.c.sequence < _C.sequence,
)
_DUE = (
    select(_C.sequence)
    .where(_C.done_at.is_(None), _C.next_attempt_at <= bindparam("at"), ~_EARLIER)
    .order_by(_C.next_attempt_at, _C.sequence)
    .limit(bindparam("rows"))
    .with_for_update(skip_locked=True)
)
_CLAIM = Prepared(
    update(_T)
    .where(_C.sequence.in_(_DUE))
    .values(attempts=_C.attempts + 1, next_attempt_at=bindparam("again_at"))
    .returning(*_C)
)
_DONE = Prepared(
    update(_T)
    .where(_C.id == bindparam("of_event"), _C.done_at.is_(None))
    .values(done_at=bindparam("at"), next_attempt_at=None)
)
_LATER = Prepared(
    update(_T)
    .where(_C.id == bindparam("of_event"), _C.done_at.is_(None))
    .values(next_attempt_at=bindparam("again_at"))
)
_LAG = Prepared(
    select(func.count(), func.min(_C.created_at)).where(_C.done_at.is_(None), _C.next_attempt_at.is_not(None))
)
_DEAD = Prepared(
    select(_T)
    .where(_C.done_at.is_(None), _C.next_attempt_at.is_(None), _C.sequence < bindparam("before"))
    .order_by(_C.sequence.desc())
    .limit(bindparam("rows"))
)


class Outbox:
    """The outbox, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def add(self, event: Event, machine_id: str | None, payload: Mapping[str, Any], at: datetime) -> str:
        """Store an event, due at once, and return its id; *payload* must be JSON."""
        event_id = str(uuid.uuid4())
        self._sql.run(_ADD, **encode(event_id, event, machine_id, payload, at, at), done_at=None)
        return event_id

    def claim(
        self, limit: int, at: datetime, *, hold: timedelta = timedelta(seconds=60)
    ) -> tuple[OutboxEvent, ...]:
        """Take up to *limit* due events, at most one per machine, for *hold*; then they are due again."""
        rows = self._sql.rows(_CLAIM, rows=limit, at=to_micros(at), again_at=to_micros(at + hold))
        return tuple(sorted(map(decode, rows), key=lambda event: event.sequence))

    def done(self, event_ids: Sequence[str], at: datetime) -> frozenset[str]:
        """Confirm events that were handled; return those that nobody had confirmed."""
        return frozenset(
            event_id for event_id in event_ids if self._sql.run(_DONE, of_event=event_id, at=to_micros(at))
        )

    def lag(self) -> tuple[int, datetime | None]:
        """Return how many events wait, and since when the oldest does."""
        count, oldest = self._sql.rows(_LAG)[0]
        return count, None if oldest is None else from_micros(oldest)

    def retry(self, event_id: str, again_at: datetime | None) -> None:
        """Make an event due at *again_at*; None makes it a dead letter, an instant brings one back."""
        self._sql.run(_LATER, of_event=event_id, again_at=None if again_at is None else to_micros(again_at))

    def dead_letters(self, cursor: str | None, limit: int) -> Page[OutboxEvent]:
        """Return events that were given up, newest first.

        Raises:
            RequestInvalid: *cursor* or *limit* cannot be right.
        """
        rows = self._sql.rows(_DEAD, before=before_id("outbox", cursor), rows=checked_limit(limit) + 1)
        return page_of("outbox", rows, limit, decode)
