"""Rate limits shared by all workers: the generic cell rate algorithm, one instant per key.

A request is allowed while the key's *theoretical arrival time* is at most the burst ahead of now, and moves it
on by one interval. Refused requests cost one read and no write.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ScalarSelect, bindparam, case, select, update
from sqlalchemy.sql import ClauseElement

from attestation.clock import to_micros
from attestation.store.sql import Executor, Insert, Prepared
from attestation.store.tables import RateLimitRow, table_of

_T = table_of(RateLimitRow)
_C = _T.c
_MICROS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """So many requests in so many seconds, all of them at once if nothing came before.

    Args:
        requests: At least 1.
        per_seconds: Above 0.
    """

    requests: int
    per_seconds: float

    def __post_init__(self) -> None:
        if self.requests < 1 or self.interval_us < 1:
            raise ValueError(f"not a rate: {self.requests} requests in {self.per_seconds} s")

    @property
    def interval_us(self) -> int:
        """Microseconds between two requests at the steady rate."""
        return int(self.per_seconds * _MICROS / self.requests)


_CHECK = Prepared(select(_C.tat_us).where(_C.key == bindparam("key")))


def tat_of(key: str) -> ScalarSelect[int]:
    """Return a subquery for the theoretical arrival time of the key bound as *key*."""
    return select(_C.tat_us).where(_C.key == bindparam(key)).scalar_subquery()


def _take(rows: int) -> Prepared:
    """Return the statement that counts one request under each of *rows* keys.

    What is inserted is `at + interval`, so the interval of a key that is there already is `excluded - at`.
    """

    def statement(insert: Insert) -> ClauseElement:
        values: list[dict[str, Any]] = [
            {"key": bindparam(f"key{i}"), "tat_us": bindparam(f"tat{i}")} for i in range(rows)
        ]
        inserted = insert(_T).values(values)
        arrived = case((_C.tat_us > bindparam("at"), _C.tat_us), else_=bindparam("at"))
        return inserted.on_conflict_do_update(  # type: ignore[no-any-return]  # the dialect's own insert
            index_elements=[_C.key], set_={"tat_us": arrived + inserted.excluded.tat_us - bindparam("at")}
        )

    return Prepared(statement)


_TAKE = {rows: _take(rows) for rows in (1, 2)}


_GIVE_BACK = Prepared(
    update(_T).where(_C.key == bindparam("of_key")).values(tat_us=_C.tat_us - bindparam("back_us"))
)


class RateLimits:
    """The rate limits, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def check(self, key: str, at: datetime, limit: RateLimit) -> int | None:
        """Return None if a request may pass now, else in how many whole seconds one may, at least 1."""
        row = self._sql.row(_CHECK, key=key)
        return wait(None if row is None else row[0], at, limit)

    def take(self, key: str, at: datetime, limit: RateLimit, *, units: int = 1) -> None:
        """Count a request that was allowed, as so many where it costs more than one.

        What raced past `check` at the same time is counted too, so the rate holds over time.
        """
        at_us = to_micros(at)
        self._sql.do(_TAKE[1], at=at_us, key0=key, tat0=at_us + units * limit.interval_us)

    def give_back(self, key: str, limit: RateLimit, *, units: int) -> None:
        """Take back what was counted: it is free again."""
        self._sql.do(_GIVE_BACK, of_key=key, back_us=units * limit.interval_us)

    def take_both(self, one: tuple[str, RateLimit], other: tuple[str, RateLimit], at: datetime) -> None:
        """Count one request under two different keys, as `take` does."""
        at_us = to_micros(at)
        self._sql.do(
            _TAKE[2],
            at=at_us,
            key0=one[0],
            tat0=at_us + one[1].interval_us,
            key1=other[0],
            tat1=at_us + other[1].interval_us,
        )


def wait(tat_us: int | None, at: datetime, limit: RateLimit) -> int | None:
    """Return None if a request may pass at *at*, else in how many whole seconds one may, at least 1.

    Args:
        tat_us: Theoretical arrival time stored under the key; None where nothing was counted.
        at: Now, UTC.
        limit: The rate that the key may have.
    """
    if tat_us is None:
        return None
    ahead = tat_us - (limit.requests - 1) * limit.interval_us - to_micros(at)
    return None if ahead <= 0 else -(-ahead // _MICROS)
