"""Events on their way to subscribers: one row for each event and subscriber, until it is handled.

At least once: a claim that is not confirmed becomes due again. Events of one machine come to one subscriber one at a
time and in order: only the first that waits is ever due, so what waits behind it costs no claim anything. A dead
letter stays visible and holds nothing up; one subscriber never waits for another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import bindparam, case, delete, exists, func, insert, select, update

from attestation.clock import to_micros
from attestation.store.codec import binds
from attestation.store.outbox import EVENT, OutboxEvent, claiming
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import HandoverRow, table_of

_T = table_of(HandoverRow)
_C = _T.c
_EVENT = [_C[name] for name in EVENT.at]

_OURS = _C.subscriber == bindparam("subscriber")
_DEAD = _C.next_attempt_at.is_(None)
BEHIND: Final = 2**62
"""When the next attempt is, in microseconds, while another event of the machine comes first: never."""

_BEFORE = _T.alias("earlier").c
_THEIRS = (
    _BEFORE.subscriber == bindparam("subscriber"),
    _BEFORE.machine_id == bindparam("machine_id"),
    _BEFORE.next_attempt_at.is_not(None),
)
_ADD = Prepared(
    insert(_T).values(
        {
            **binds(_C, "sequence"),
            "next_attempt_at": case((exists().where(*_THEIRS), BEHIND), else_=bindparam("at")),
        }
    )
)
NEXT: Final = Prepared(
    update(_T)
    .where(
        _C.sequence == select(func.min(_BEFORE.sequence)).where(*_THEIRS).scalar_subquery(),
        _C.next_attempt_at == BEHIND,
    )
    .values(next_attempt_at=_C.created_at)
)
"""Makes the first due that waits of a machine: to be run where the one before it is done, given up or purged."""
_IS_DUE, _CLAIM = claiming(
    _T, lambda c: [c.subscriber == bindparam("subscriber"), c.next_attempt_at.is_not(None)]
)
# The number of the attempt: whoever held the claim before has nothing to say of this one.
_THIS = (_C.sequence == bindparam("of_sequence"), _C.attempts == bindparam("of_attempt"), ~_DEAD)
_DONE = Prepared(delete(_T).where(*_THIS))
_FAILED = Prepared(
    update(_T).where(*_THIS).values(next_attempt_at=bindparam("again_at"), error=bindparam("error"))
)
_AGAIN = Prepared(update(_T).where(_OURS, _DEAD).values(attempts=0, next_attempt_at=BEHIND))
_LETTER = (_OURS, _DEAD, _C.id == bindparam("of_event"))
_ONE_AGAIN = Prepared(update(_T).where(*_LETTER).values(attempts=0, next_attempt_at=BEHIND))
_ONE = Prepared(select(*_EVENT, _C.error).where(*_LETTER))
_FIRST = ~exists().where(
    _BEFORE.subscriber == _C.subscriber,
    _BEFORE.machine_id == _C.machine_id,
    _BEFORE.next_attempt_at.is_not(None),
    _BEFORE.sequence < _C.sequence,
)
_FIRSTS = Prepared(
    update(_T).where(_OURS, _C.next_attempt_at == BEHIND, _FIRST).values(next_attempt_at=_C.created_at)
)
_COUNTS = Prepared(select(_C.subscriber, _DEAD, func.count()).group_by(_C.subscriber, _DEAD))
_LETTERS = Prepared(
    select(*_EVENT, _C.error).where(_OURS, _DEAD).order_by(_C.sequence.desc()).limit(bindparam("rows"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """How many handovers to one subscriber wait, and how many were given up."""

    pending: int = 0
    dead: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A handover that was given up. `error`: the kind of the last failure; its words may be secret."""

    event: OutboxEvent
    error: str


class Handovers:
    """What subscribers have not handled, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def add(self, subscriber: str, event: OutboxEvent, at: datetime) -> None:
        """Let *subscriber* have *event*: at once, or after those of its machine that wait."""
        self._sql.do(
            _ADD,
            **EVENT.encode(replace(event, attempts=0)),
            at=to_micros(at),
            subscriber=subscriber,
            error="",
        )

    def is_due(self, subscriber: str, at: datetime) -> bool:
        """Return True where *subscriber* has something to do."""
        return self._sql.row(_IS_DUE, subscriber=subscriber, rows=1, at=to_micros(at)) is not None

    def claim(self, subscriber: str, limit: int, at: datetime, *, hold: timedelta) -> tuple[OutboxEvent, ...]:
        """Take up to *limit* due events of *subscriber*, at most one per machine, for *hold*; then they are due again.

        `sequence` and `attempts` are those of the handover.
        """
        rows = self._sql.rows(
            _CLAIM, subscriber=subscriber, rows=limit, at=to_micros(at), again_at=to_micros(at + hold)
        )
        return tuple(sorted(map(EVENT.decode, rows), key=lambda event: event.sequence))

    def done(self, subscriber: str, event: OutboxEvent) -> bool:
        """Confirm that *subscriber* handled *event*; False where the claim was lost to another."""
        return self._over(subscriber, event, _DONE)

    def failed(self, subscriber: str, event: OutboxEvent, again_at: datetime | None, error: str) -> bool:
        """Make *event* due at *again_at*; None makes it a dead letter. False where the claim was lost to another."""
        again = None if again_at is None else to_micros(again_at)
        return self._over(subscriber, event, _FAILED, again_at=again, error=error)

    def _over(self, subscriber: str, event: OutboxEvent, outcome: Prepared, **values: object) -> bool:
        if not self._sql.run(outcome, of_sequence=event.sequence, of_attempt=event.attempts, **values):
            return False
        self._sql.do(NEXT, subscriber=subscriber, machine_id=event.machine_id)
        return True

    def retry(self, subscriber: str, event_ids: Collection[str] | None = None) -> int:
        """Let *subscriber* have its dead letters again, all or those of *event_ids*; return how many."""
        if event_ids is None:
            again = self._sql.run(_AGAIN, subscriber=subscriber)
        else:
            # In order: two who ask at the same time lock rows alike.
            ids = sorted(set(event_ids))
            again = sum(self._sql.run(_ONE_AGAIN, subscriber=subscriber, of_event=each) for each in ids)
        self._sql.do(_FIRSTS, subscriber=subscriber)
        return again

    def waiting(self) -> Mapping[str, Waiting]:
        """Return what waits, by subscriber."""
        found: dict[str, dict[str, int]] = {}
        for subscriber, dead, count in self._sql.rows(_COUNTS):
            found.setdefault(subscriber, {})["dead" if dead else "pending"] = count
        return {subscriber: Waiting(**counts) for subscriber, counts in found.items()}

    def dead_letters(self, subscriber: str, limit: int) -> tuple[DeadLetter, ...]:
        """Return the newest dead letters of *subscriber*."""
        rows = self._sql.rows(_LETTERS, subscriber=subscriber, rows=limit)
        return tuple(DeadLetter(event=EVENT.decode(row), error=row[-1]) for row in rows)

    def dead_letter(self, subscriber: str, event_id: str) -> DeadLetter | None:
        """Return the dead letter of *subscriber* that is about the event *event_id*."""
        row = self._sql.row(_ONE, subscriber=subscriber, of_event=event_id)
        return None if row is None else DeadLetter(event=EVENT.decode(row), error=row[-1])
