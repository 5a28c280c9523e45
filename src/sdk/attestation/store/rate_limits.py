"""Rate limits shared by all workers: the generic cell rate algorithm, one instant per key.

A request is allowed while the key's *theoretical arrival time* is at most the burst ahead of now, and moves it
on by one interval. Refused requests cost one read and no write.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, case, select

from attestation.clock import to_micros
from attestation.store.sql import Executor, Prepared
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
_TAKE = Prepared(
    lambda insert: (
        insert(_T)
        .values(key=bindparam("key"), tat_us=bindparam("at") + bindparam("interval"))
        .on_conflict_do_update(
            index_elements=[_C.key],
            set_={
                "tat_us": case((_C.tat_us > bindparam("at"), _C.tat_us), else_=bindparam("at"))
                + bindparam("interval")
            },
        )
    )
)


class RateLimits:
    """The rate limits, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def check(self, key: str, at: datetime, limit: RateLimit) -> int | None:
        """Return None if a request may pass now, else in how many whole seconds one may, at least 1."""
        row = self._sql.row(_CHECK, key=key)
        if row is None:
            return None
        ahead = row[0] - (limit.requests - 1) * limit.interval_us - to_micros(at)
        return None if ahead <= 0 else -(-ahead // _MICROS)

    def take(self, key: str, at: datetime, limit: RateLimit) -> None:
        """Count one request that was allowed.

        What raced past `check` at the same time is counted too, so the rate holds over time.
        """
        self._sql.run(_TAKE, key=key, at=to_micros(at), interval=limit.interval_us)
