"""Lists of machines: which, in what order, one page after the other.

Newest first a page costs the same wherever it begins. In another order each page looks at all machines that fit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import BindParameter, ColumnElement, and_, bindparam, case, func, or_, select

from attestation.clock import to_micros
from attestation.errors import RequestInvalid
from attestation.machines import DEFAULT_CLUSTER, Role, Status, Trust
from attestation.results import Verdict
from attestation.store.labels import wears
from attestation.store.pages import (
    Page,
    before_id,
    checked_limit,
    decode_cursor,
    encode_cursor,
    escaped,
    page_of,
)
from attestation.store.sql import Executor, Prepared, Row
from attestation.store.tables import MachineRow, table_of
from attestation.store.within import named, size_of, within

_T = table_of(MachineRow)
_C = _T.c


def trust_at(at: ColumnElement[int]) -> ColumnElement[str]:
    """Return what the last result of a row of `machines` is worth at *at*: the rule of `Machine.trust`."""
    return case(
        (_C.last_verdict.is_(None) | (_C.last_verdict == Verdict.INDETERMINATE.value), Trust.UNKNOWN.value),
        (_C.last_verdict == Verdict.FAILED.value, Trust.FAILED.value),
        (_C.trust_expires_at.is_(None) | (_C.trust_expires_at <= at), Trust.STALE.value),
        else_=Trust.VERIFIED.value,
    )


TRUST: Final = trust_at(bindparam("at")).label("trust")
"""A test compares it with `Machine.trust`."""
_WORDS: Final = frozenset({"hostname", "status", "role", "cluster_id"})
_INSTANTS: Final = frozenset({"registered_at", "attested_at", "last_result_at", "trust_expires_at"})
ORDERS: Final = frozenset(f"{way}{name}" for name in _WORDS | _INSTANTS for way in ("", "-"))
"""What machines can be sorted by; with `-` before it downwards. Who has no such value comes last both ways."""
_EACH: Final[Mapping[str, ColumnElement[bool]]] = {
    "status": _C.status == bindparam("status"),
    "role": _C.role == bindparam("role"),
    "cluster_id": _C.cluster_id == bindparam("cluster_id"),
    "trust": TRUST.element == bindparam("trust"),
    "q": or_(
        _C.search.like(bindparam("part"), escape="\\"),
        _C.machine_id.like(bindparam("start"), escape="\\"),
        _C.ek_fingerprint.like(bindparam("start"), escape="\\"),
    ),
}
_WITHIN: Final = "within "
"""Begins the filter by clusters; for how many it is compiled follows."""
_IDS: Final = "ids "
"""Begins the filter by ids; their number follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFilter:
    """Which machines a list shows; None means any.

    Args:
        status: Exactly this status.
        role: Exactly this role.
        cluster_id: Exactly this cluster.
        trust: Whose last result is worth so much at that instant.
        q: Part of hostname, serial, MAC or UUID, or the beginning of machine id or EK fingerprint; without
            regard to case, no character is special.
        labels: Each of these labels; with any value where it is None.
        ids: One of these machines.
        within: In one of these clusters, or wishing for one where nobody admitted it.
    """

    status: Status | None = None
    role: Role | None = None
    cluster_id: str | None = None
    trust: tuple[Trust, datetime] | None = None
    q: str | None = None
    labels: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    ids: Sequence[str] = ()
    within: Collection[str] | None = None


def page(
    sql: Executor, wanted: MachineFilter, cursor: str | None, limit: int, order: str | None
) -> Page[Row]:
    """Return the rows of machines: newest first, or in the order of `ORDERS` that is asked for.

    Raises:
        RequestInvalid: *cursor*, *limit* or *order* cannot be right.
    """
    values, filters = _asked(wanted)
    values["rows"] = checked_limit(limit) + 1
    valued = tuple(label is not None for label in wanted.labels.values())
    if order is None:
        values["before"] = before_id("machines", cursor)
        return page_of("machines", sql.rows(_newest(filters, valued), **values), limit, _as_it_is)
    if order not in ORDERS:
        raise RequestInvalid(f"sort: machines are not sorted by {order}")
    kind = f"machines by {order}"
    if cursor is not None:
        values |= _place(kind, order.removeprefix("-"), cursor)
    rows = sql.rows(_sorted(filters, valued, order, begun=cursor is not None), **values)
    found = [row[2:] for row in rows[:limit]]
    next_cursor = None if len(rows) <= limit else encode_cursor(kind, _key(rows[limit - 1]))
    return Page(items=tuple(found), next_cursor=next_cursor)


def _as_it_is(row: Row) -> Row:
    return row


def _asked(wanted: MachineFilter) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return what the statement is given, and the names of its filters."""
    values: dict[str, object] = {}
    filters = []
    for name in ("status", "role", "cluster_id"):
        value = getattr(wanted, name)
        if value is not None:
            filters.append(name)
            values[name] = str(value)
    if wanted.trust is not None:
        filters.append("trust")
        values |= {"trust": str(wanted.trust[0]), "at": to_micros(wanted.trust[1])}
    if wanted.q:
        filters.append("q")
        if "\n" in wanted.q:
            raise RequestInvalid("q: a line break is in no name")
        text = escaped(wanted.q.lower())
        values |= {"part": f"%{text}%", "start": f"{text}%"}
    if wanted.ids:
        # Statements are compiled for powers of two; the last id fills up.
        size = 1 << (len(wanted.ids) - 1).bit_length()
        filters.append(f"{_IDS}{size}")
        padded = [*wanted.ids, *[wanted.ids[-1]] * (size - len(wanted.ids))]
        values |= {f"id_{number}": machine_id for number, machine_id in enumerate(padded)}
    if wanted.within is not None:
        filters.append(f"{_WITHIN}{size_of(wanted.within)}")
        values |= named(wanted.within)
    for number, (key, label) in enumerate(wanted.labels.items()):
        values |= {f"label_{number}": key, f"value_{number}": label}
    return values, tuple(filters)


def _chosen(filters: Sequence[str], valued: Sequence[bool]) -> list[ColumnElement[bool]]:
    worn = [wears(_C.machine_id, number, valued=has) for number, has in enumerate(valued)]
    return [*map(_condition, filters), *worn]


def _condition(name: str) -> ColumnElement[bool]:
    if name.startswith(_WITHIN):
        wished = func.coalesce(_C.desired_cluster_id, DEFAULT_CLUSTER)
        return within(case((_C.role.is_(None), wished), else_=_C.cluster_id), int(name.removeprefix(_WITHIN)))
    if not name.startswith(_IDS):
        return _EACH[name]
    given: list[BindParameter[str]] = [bindparam(f"id_{number}") for number in range(int(name[len(_IDS) :]))]
    return _C.machine_id.in_(given)


@lru_cache(maxsize=64)
def _newest(filters: tuple[str, ...], valued: tuple[bool, ...]) -> Prepared:
    """Return the statement for a page: under these filters, and labels of which it is known which have a value."""
    chosen = and_(_C.id < bindparam("before"), *_chosen(filters, valued))
    rows = select(_T).where(chosen).order_by(_C.id.desc()).limit(bindparam("rows"))
    if filters == ("q",) and not valued:
        # Searching reads the narrow index over what is searched; only the rows found are read whole.
        found = select(_C.id).where(chosen).order_by(_C.id.desc()).limit(bindparam("rows"))
        rows = select(_T).where(_C.id.in_(found)).order_by(_C.id.desc())
    return Prepared(rows)


@lru_cache(maxsize=64)
def _sorted(filters: tuple[str, ...], valued: tuple[bool, ...], order: str, *, begun: bool) -> Prepared:
    """Return the statement for a page in *order*: whether there is a value, the value, then each machine as before."""
    column = _C[order.removeprefix("-")]
    missing = case((column.is_(None), 1), else_=0)
    down = order.startswith("-")
    conditions = _chosen(filters, valued)
    if begun:
        value: BindParameter[Any] = bindparam("after_value")
        place: BindParameter[int] = bindparam("after_id")
        further = or_(column < value if down else column > value, and_(column == value, _C.id < place))
        conditions.append(
            or_(
                missing > bindparam("after_missing"),
                and_(missing == bindparam("after_missing"), or_(further, and_(missing == 1, _C.id < place))),
            )
        )
    ordered = (missing, column.desc() if down else column.asc(), _C.id.desc())
    # Sorted are narrow rows; only those of the page are read whole.
    found = select(_C.id).where(*conditions).order_by(*ordered).limit(bindparam("rows"))
    return Prepared(select(missing, column.label("sorted_by"), _T).where(_C.id.in_(found)).order_by(*ordered))


def _key(row: Row) -> str:
    """Return where a page ended: id, and the value, or nothing after the colon where there is none."""
    missing, value, place = row[0], row[1], row[2]
    return f"{place}" if missing else f"{place}:{value}"


def _place(kind: str, column: str, cursor: str) -> dict[str, Any]:
    """Return where a page begins.

    Raises:
        RequestInvalid: Not a cursor of this list.
    """
    place, colon, value = decode_cursor(kind, cursor).partition(":")
    texts = [place, *([value] if colon and column in _INSTANTS else [])]
    if not all(each.isascii() and each.isdigit() and len(each) < 19 for each in texts):
        raise RequestInvalid("cursor: not one that this list gave out")
    after: object = value if column in _WORDS else int(value or 0)
    return {"after_id": int(place), "after_missing": 0 if colon else 1, "after_value": after}
