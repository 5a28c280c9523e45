"""What was counted, by all workers of all replicas: in the database, so that each shows the same.

Events are counted in the unit that confirms them, the audit log by reading on where it was read to. What neither tells
(each attestation, each delivery) a worker counts in memory and adds every few seconds; one that is killed loses those.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, get_args

from sqlalchemy import BigInteger, Text, bindparam, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from attestation.extension import (
    OWN_EVENTS,
    Action,
    Event,
    Executor,
    ExtensionEvent,
    Prepared,
    RunBackend,
    RunVerdict,
    Status,
    Tx,
    from_micros,
    to_micros,
)
from attestation_extensions.metrics.actions import ACTIONS, EXTENSION

EVENTS: Final[Sequence[Event]] = OWN_EVENTS
OTHER: Final = "other"
"""What stands for a word that is on no list."""

_ANY_EVENT: Final = frozenset[str]((*EVENTS, EXTENSION))
_STATES: Final = frozenset[str](Status)

OBSERVED: Final[Mapping[str, Mapping[str, frozenset[str]]]] = {
    "hook_failures": {"event": _ANY_EVENT},
    "machine_attestations": {
        "action": frozenset({*get_args(Action), "refused"}),
        "status": frozenset(Status),
    },
    "runs_judged": {
        "backend": frozenset(get_args(RunBackend)),
        "verdict": frozenset(get_args(RunVerdict)),
    },
    "webhook_deliveries": {
        "event_type": _ANY_EVENT,
        "status": frozenset({"delivered", "failed", "dead", "disabled"}),
    },
}
"""What is counted as it is done: the labels, and the words of each."""

QUOTE_AGE: Final = "quote_age_seconds"
BUCKETS: Final = (1, 5, 15, 30, 60, 120, 300, 600, 1800, 3600)
"""Upper bounds of the histogram, seconds; above them there is one more."""

AUDIT: Final = "audit"
READ_TO: Final = "audit_read_to"
ENTRIES: Final = 10_000
"""So many entries of the audit log are counted in one unit: it holds up every other write."""

STALE_UNTIL: Final = "provider_keys_stale_until"
STALE: Final = timedelta(seconds=60)
"""For so long counts that a worker said that its keys are stale."""

Pending = Counter[tuple[str, str]]
"""What was counted and is not in the database yet, by name and words."""


class Base(DeclarativeBase):
    """Base of the tables."""

    type_annotation_map: ClassVar[dict[Any, Any]] = {int: BigInteger(), str: Text()}


class EventRow(Base):
    """How many events of a kind there were since the extension was enabled."""

    __tablename__ = "extension_metrics_events"

    event: Mapped[str] = mapped_column(primary_key=True)
    total: Mapped[int]


class CountRow(Base):
    """How much there was of something: its labels' words, with a space between them."""

    __tablename__ = "extension_metrics_counts"

    name: Mapped[str] = mapped_column(primary_key=True)
    words: Mapped[str] = mapped_column(primary_key=True)
    total: Mapped[int]


_E: Final = EventRow.metadata.tables[EventRow.__tablename__]
_C: Final = CountRow.metadata.tables[CountRow.__tablename__]
_COUNT: Final = Prepared(
    lambda upsert: (
        upsert(_E)
        .values(event=bindparam("event"), total=1)
        .on_conflict_do_update(index_elements=["event"], set_={"total": _E.c.total + 1})
    )
)
_EVENTS: Final = Prepared(select(_E.c.event, _E.c.total))
_ROW: Final[Mapping[str, Any]] = {name: bindparam(name) for name in ("name", "words", "total")}
_ADD: Final = Prepared(
    lambda upsert: (
        upsert(_C)
        .values(_ROW)
        .on_conflict_do_update(
            index_elements=["name", "words"], set_={"total": _C.c.total + bindparam("total")}
        )
    )
)
_SET: Final = Prepared(
    lambda upsert: (
        upsert(_C)
        .values(_ROW)
        .on_conflict_do_update(index_elements=["name", "words"], set_={"total": bindparam("total")})
    )
)
_GET: Final = Prepared(select(_C.c.total).where(_C.c.name == bindparam("of_name")))
_TOTALS: Final = Prepared(select(_C.c.name, _C.c.words, _C.c.total))


class Counts:
    """The counts, inside one unit of work."""

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def event(self, event: Event) -> None:
        """Count one event."""
        self._sql.run(_COUNT, event=event.value)

    def events(self) -> Mapping[str, int]:
        """Return how many of each kind there were; kinds that there were none of are left out."""
        return {row[0]: row[1] for row in self._sql.rows(_EVENTS)}

    def add(self, pending: Pending) -> None:
        """Add what a worker counted."""
        for (name, words), total in sorted(pending.items()):
            self._sql.run(_ADD, name=name, words=words, total=total)

    def is_behind(self, tx: Tx) -> bool:
        """Return True where the audit log has entries that were not counted."""
        return self._one(READ_TO) < tx.audit.tree.size()

    def read_on(self, tx: Tx) -> bool:
        """Count the next entries of the audit log; True where there are more."""
        # Units write one at a time, also on a server: no two workers count the same entries.
        last, found = tx.audit.tally(self._one(READ_TO), ENTRIES)
        for (action, state), total in found.items():
            known = action if action in ACTIONS else EXTENSION
            words = f"{known} {state if state in _STATES else OTHER}"
            self._sql.run(_ADD, name=AUDIT, words=words, total=total)
        self._sql.run(_SET, name=READ_TO, words="", total=last)
        return last < tx.audit.tree.size()

    def say_stale(self, at: datetime) -> None:
        """Note that a worker has stale keys of the identity provider at *at*."""
        self._sql.run(_SET, name=STALE_UNTIL, words="", total=to_micros(at + STALE))

    def is_stale(self, at: datetime) -> bool:
        """Return True where a worker said so a short time before *at*."""
        return from_micros(self._one(STALE_UNTIL)) > at

    def totals(self) -> Mapping[str, Mapping[str, int]]:
        """Return everything, by name and words."""
        found: dict[str, dict[str, int]] = {}
        for name, words, total in self._sql.rows(_TOTALS):
            found.setdefault(name, {})[words] = total
        return found

    def _one(self, name: str) -> int:
        row = self._sql.row(_GET, of_name=name)
        return 0 if row is None else int(row[0])


def note(pending: Pending, what: str, how: Mapping[str, str], value: float) -> None:
    """Count *what* in *pending*; what is on no list is `other`, and a name that is unknown is not counted."""
    if what == QUOTE_AGE:
        place = bisect_left(BUCKETS, value)
        pending[QUOTE_AGE, str(BUCKETS[place]) if place < len(BUCKETS) else "+Inf"] += 1
        pending[f"{QUOTE_AGE}_sum", ""] += max(0, round(value * 1000))
        return
    if (labels := OBSERVED.get(what)) is None:
        return
    pending[what, " ".join(_word(how.get(label, ""), known) for label, known in labels.items())] += 1


def _word(word: str, known: frozenset[str]) -> str:
    """Return *word* where it is *known*; events of extensions are one, for there is no list of them."""
    if word in known:
        return word
    if known is not _ANY_EVENT:
        return OTHER
    try:
        ExtensionEvent(word)
    except ValueError:
        return OTHER
    return EXTENSION
