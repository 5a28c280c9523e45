"""What machines proved last: read over the whole fleet, page by page, to learn a policy from it or to try one on it.

Each page is one statement whose joins and subqueries go by keys, so it costs what its rows cost, however large
the fleet is. Outcomes of checks are not read: nobody here needs what was thought of the evidence then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final

from sqlalchemy import ColumnElement, and_, bindparam, func, or_, select

from attestation.clock import from_micros
from attestation.machines import TEES, Role, Status
from attestation.results import Assurance, Verdict
from attestation.store.columns import unsigned
from attestation.store.pages import Page, before_id, checked_limit, encode_cursor
from attestation.store.policies import applicable
from attestation.store.sql import Executor, Prepared, Row
from attestation.store.tables import EKCertificateRow, MachineRow, ResultRow, table_of

_M = table_of(MachineRow)
_MC = _M.c
_R = table_of(ResultRow)
_RC = _R.c
_E = table_of(EKCertificateRow)
_LEFT: Final = (Status.REJECTED.value, Status.REVOKED.value)
_KIND: Final = "captures"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """One machine with the evidence of its newest result that has any.

    Args:
        number: Number of the machine's row; pages go by it.
        machine_id: UUID text.
        hostname: Its name, or None.
        role: Its role, or None.
        cluster_id: Its cluster.
        assurance: How well its identity is vouched for now.
        vendor: Registered name of its TPM's manufacturer, from a verified chain; None where there is none.
        firmware_version: u64 of its last quote; None where it was not claimed.
        firmware_blocked: The advisory that rules its firmware out, or None.
        clock_safe: Whether the TPM called its clock safe then; None before the first verified quote.
        assigned: `name@version sha256` of fleet, cluster, role and machine, None where nothing is assigned.
        at: When the evidence was judged; None where there is none, and then all below is empty.
        verdict: What was thought of it then.
        pcr_bank: Name of the bank.
        pcr_values: Quoted values: index -> digest.
        event_log_sha256: Names the event log that led to them, hex.
        ima_log_sha256: Names the IMA list, hex.
        ek_key_attested: The EK itself vouched for AK and firmware then.
    """

    number: int
    machine_id: str
    hostname: str | None
    role: Role | None
    cluster_id: str
    assurance: Assurance
    vendor: str | None
    firmware_version: int | None
    firmware_blocked: str | None
    clock_safe: bool | None
    assigned: tuple[str | None, str | None, str | None, str | None]
    at: datetime | None
    verdict: Verdict | None
    pcr_bank: str | None
    pcr_values: Mapping[int, bytes]
    event_log_sha256: str | None
    ima_log_sha256: str | None
    ek_key_attested: bool | None

    @property
    def cursor(self) -> str:
        """Where a page begins that goes on behind this machine."""
        return encode_cursor(_KIND, str(self.number))


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureFilter:
    """Which machines; None means any. Rejected and revoked ones are never among them.

    Args:
        role: Exactly this role.
        cluster_id: Exactly this cluster.
        machine_id: Exactly this machine.
        verified_only: Look only at evidence of results that were Verified.
    """

    role: Role | None = None
    cluster_id: str | None = None
    machine_id: str | None = None
    verified_only: bool = False


_COLUMNS: Final = (
    _MC.id,
    _MC.machine_id,
    _MC.hostname,
    _MC.role,
    _MC.cluster_id,
    _MC.assurance,
    _E.c.vendor,
    _MC.firmware_version,
    _MC.firmware_blocked,
    _MC.clock_safe,
    *applicable(_MC.machine_id, _MC.role, _MC.cluster_id),
    _RC.at,
    _RC.verdict,
    _RC.pcr_bank,
    _RC.pcr_values,
    _RC.event_log_sha256,
    _RC.ima_log_sha256,
    _RC.ek_key_attested,
)


def _decode(row: Row) -> Capture:
    return Capture(
        number=row[0],
        machine_id=row[1],
        hostname=row[2],
        role=None if row[3] is None else Role(row[3]),
        cluster_id=row[4],
        assurance=Assurance(row[5]),
        vendor=row[6],
        firmware_version=None if row[7] is None else unsigned(row[7]),
        firmware_blocked=row[8],
        clock_safe=None if row[9] is None else bool(row[9]),
        assigned=(row[10], row[11], row[12], row[13]),
        at=None if row[14] is None else from_micros(row[14]),
        verdict=None if row[15] is None else Verdict(row[15]),
        pcr_bank=row[16],
        pcr_values={int(index): bytes.fromhex(value) for index, value in json.loads(row[17] or "{}").items()},
        event_log_sha256=row[18],
        ima_log_sha256=row[19],
        ek_key_attested=None if row[20] is None else bool(row[20]),
    )


def _chosen(filters: tuple[str, ...]) -> ColumnElement[bool]:
    conditions = {
        "role": _MC.role == bindparam("role"),
        "cluster_id": _MC.cluster_id == bindparam("cluster_id"),
        "machine_id": _MC.machine_id == bindparam("machine_id"),
    }
    return and_(*(_MC.status != status for status in _LEFT), *(conditions[name] for name in filters))


@lru_cache(maxsize=16)
def _page(filters: tuple[str, ...], *, verified_only: bool) -> Prepared:
    other = _R.alias()
    newest = select(other.c.id).where(
        other.c.machine_id == _MC.machine_id,
        # A machine without a TPM quotes nothing.
        or_(other.c.pcr_bank.is_not(None), *(_MC.ek_source == tee for tee in sorted(TEES))),
    )
    if verified_only:
        newest = newest.where(other.c.verdict == Verdict.VERIFIED.value)
    newest_id = newest.order_by(other.c.id.desc()).limit(1).correlate(_M).scalar_subquery()
    joined = _M.outerjoin(_R, _RC.id == newest_id).outerjoin(_E, _E.c.machine_id == _MC.machine_id)
    return Prepared(
        select(*_COLUMNS)
        .select_from(joined)
        .where(_MC.id > bindparam("after"), _chosen(filters))
        .order_by(_MC.id)
        .limit(bindparam("rows"))
    )


@lru_cache(maxsize=8)
def _count(filters: tuple[str, ...]) -> Prepared:
    return Prepared(select(func.count()).select_from(_M).where(_chosen(filters)))


class Captures:
    """What machines proved last, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def page(self, wanted: CaptureFilter, cursor: str | None, limit: int) -> Page[Capture]:
        """Return machines in the order in which they came, those without evidence too.

        Raises:
            RequestInvalid: *cursor* or *limit* cannot be right.
        """
        filters, values = _given(wanted)
        after = 0 if cursor is None else before_id(_KIND, cursor)
        rows = self._sql.rows(
            _page(filters, verified_only=wanted.verified_only),
            after=after,
            rows=checked_limit(limit) + 1,
            **values,
        )
        items = tuple(map(_decode, rows[:limit]))
        return Page(items=items, next_cursor=items[-1].cursor if len(rows) > limit else None)

    def count(self, wanted: CaptureFilter) -> int:
        """Return how many machines there are to read."""
        filters, values = _given(wanted)
        row = self._sql.row(_count(filters), **values)
        assert row is not None  # one count, one row
        return int(row[0])


def _given(wanted: CaptureFilter) -> tuple[tuple[str, ...], dict[str, object]]:
    values: dict[str, object] = {
        name: value
        for name, value in (
            ("role", wanted.role and wanted.role.value),
            ("cluster_id", wanted.cluster_id),
            ("machine_id", wanted.machine_id),
        )
        if value is not None
    }
    return tuple(values), values
