"""What operators should look at, counted in the database: over machines that wait, results, certificates and TPMs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import ColumnElement, and_, bindparam, case, func, select

from attestation.clock import from_micros, to_micros
from attestation.machines import Status, Trust
from attestation.results import Verdict
from attestation.store.machine_lists import trust_at
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import IssuanceRow, MachineRow, table_of

HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)
WEEK: Final = timedelta(days=7)
AHEAD: Final = timedelta(days=90)
"""Certificates that end later are not looked at."""
LAST_PART: Final = 5
"""A certificate is about to end where less than one part in so many of its life is left: it is renewed long before."""
MOST_VENDORS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Machines that wait for approval, by how long they do, and since when the first does."""

    hour: int
    day: int
    week: int
    longer: int
    since: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Troubles:
    """Machines that somebody should look at. Rejected and revoked ones count as stale alone, as in lists by trust.

    Args:
        alarms: With an alarm.
        failed: Whose newest result failed of late.
        undelivered: Without the configuration that they are to have.
        stale: That have not attested in time.
    """

    alarms: int
    failed: int
    undelivered: int
    stale: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Oldest:
    """The attested machine whose newest result is oldest."""

    machine_id: str
    hostname: str | None
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiring:
    """Certificates of machines that are about to end, and that none followed; when the first one ends."""

    count: int
    first: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Makers:
    """Machines by what their EK certificates say of the TPM's maker, the most frequent first."""

    named: Mapping[str, int]
    more: int
    without: int


_M = table_of(MachineRow).c
_C = table_of(IssuanceRow)


def _count(*conditions: ColumnElement[bool]) -> ColumnElement[int]:
    return func.coalesce(func.sum(case((and_(*conditions), 1), else_=0)), 0)


_SINCE = _M.registered_at
_WAITING = Prepared(
    select(
        _count(bindparam("hour") <= _SINCE),
        _count(bindparam("hour") > _SINCE, bindparam("day") <= _SINCE),
        _count(bindparam("day") > _SINCE, bindparam("week") <= _SINCE),
        _count(bindparam("week") > _SINCE),
        func.min(_SINCE),
    ).where(_M.status == Status.PENDING_APPROVAL.value)
)
_HERE = and_(_M.status != Status.REJECTED.value, _M.status != Status.REVOKED.value)
_TROUBLES = Prepared(
    select(
        _count(_HERE, _M.alarm.is_not(None)),
        _count(_HERE, _M.last_verdict == Verdict.FAILED.value, _M.last_result_at >= bindparam("since")),
        _count(_HERE, _M.config_owed_since.is_not(None)),
        _count(trust_at(bindparam("at")) == Trust.STALE.value),
    )
)
_OLDEST = Prepared(
    select(_M.machine_id, _M.hostname, _M.last_result_at)
    .where(_M.status == Status.ATTESTED.value, _M.last_result_at.is_not(None))
    .order_by(_M.last_result_at)
    .limit(1)
)
_NEWER = _C.alias("newer")
_EXPIRING = Prepared(
    select(func.count(), func.min(_C.c.not_after)).where(
        _C.c.not_after > bindparam("at"),
        _C.c.not_after <= bindparam("ahead"),
        _C.c.state == "issued",
        _C.c.machine_id.is_not(None),
        (_C.c.not_after - bindparam("at")) * LAST_PART < _C.c.not_after - _C.c.not_before,
        ~select(_NEWER.c.id)
        .where(
            _NEWER.c.machine_id == _C.c.machine_id,
            _NEWER.c.id > _C.c.id,
            _NEWER.c.profile == _C.c.profile,
            _NEWER.c.state == "issued",
        )
        .exists(),
    )
)
_MAKERS = Prepared(
    select(_M.ek_certificate_manufacturer, func.count())
    .where(_HERE)
    .group_by(_M.ek_certificate_manufacturer)
    .order_by(func.count().desc(), _M.ek_certificate_manufacturer)
)


class Attention:
    """Counts over the whole fleet, inside one unit of work.

    Args:
        sql: Where to run statements.
    """

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def waiting(self, at: datetime) -> Waiting:
        """Return how many machines wait for approval, by how long they did at *at*."""
        row = self._sql.row(
            _WAITING, hour=to_micros(at - HOUR), day=to_micros(at - DAY), week=to_micros(at - WEEK)
        )
        assert row is not None
        since = None if row[4] is None else from_micros(row[4])
        return Waiting(hour=int(row[0]), day=int(row[1]), week=int(row[2]), longer=int(row[3]), since=since)

    def troubles(self, at: datetime, since: datetime) -> Troubles:
        """Return how many machines somebody should look at, at *at*; of failed results those since *since*."""
        row = self._sql.row(_TROUBLES, at=to_micros(at), since=to_micros(since))
        assert row is not None
        return Troubles(alarms=int(row[0]), failed=int(row[1]), undelivered=int(row[2]), stale=int(row[3]))

    def oldest_result(self) -> Oldest | None:
        """Return the attested machine whose newest result is oldest."""
        row = self._sql.row(_OLDEST)
        return None if row is None else Oldest(machine_id=row[0], hostname=row[1], at=from_micros(row[2]))

    def expiring(self, at: datetime) -> Expiring:
        """Return what is about to end at *at* and has no successor."""
        row = self._sql.row(_EXPIRING, at=to_micros(at), ahead=to_micros(at + AHEAD))
        assert row is not None
        return Expiring(count=int(row[0]), first=None if row[1] is None else from_micros(row[1]))

    def makers(self) -> Makers:
        """Return machines by maker of their TPM, `MOST_VENDORS` of them by name; neither rejected nor revoked ones."""
        rows = [(name, int(count)) for name, count in self._sql.rows(_MAKERS)]
        known = [(str(name), count) for name, count in rows if name is not None]
        return Makers(
            named=dict(known[:MOST_VENDORS]),
            more=sum(count for _, count in known[MOST_VENDORS:]),
            without=sum(count for name, count in rows if name is None),
        )
