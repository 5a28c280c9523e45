"""The audit log in the database: chain and tree grow inside the unit of the change that they tell of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, bindparam, func, insert, or_, select

from attestation.audit import GENESIS_HASH, AuditEntry, AuditEvent, canonical_members, linked
from attestation.audit.authority import MARK, Change, with_changes
from attestation.audit.merkle import leaf_hash
from attestation.clock import Clock, parse_rfc3339, rfc3339
from attestation.store.audit_tree import AuditTree
from attestation.store.codec import binds, codec
from attestation.store.pages import Page, before_id, checked_limit, encode_cursor, escaped, page_of
from attestation.store.sql import Executor, Prepared, Row
from attestation.store.tables import AuditRow, table_of

CHANGED = "authority_changed"
"""An entry about rows of authority whose unit told nothing else, or too much for one entry."""

_NOBODY = AuditEvent(operator_cn="service", action=CHANGED)
"""What changes without anybody's act, e.g. where old rows are purged."""

MACHINE = "machine"
"""Whose own acts are many, and give no authority that an operator did not give before."""

_T = table_of(AuditRow)
_C = _T.c


WINDOW = 20_000
"""Entries that one page looks at for a text, which no index finds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which entries a list shows; None means any.

    Args:
        machine_id: Exactly this machine.
        operator_cn: Exactly this name.
        action: Exactly this action.
        since: Not before this instant.
        until: Before this instant.
        text: In action, name, machine, detail or address, without regard to case; no character is special.
    """

    machine_id: str | None = None
    operator_cn: str | None = None
    action: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPage(Page[tuple[int, AuditEntry]]):
    """Some entries with their ids, newest first.

    Args:
        searched_to: Down to this id entries were looked at for a text; None where all that fit otherwise were.
    """

    searched_to: int | None = None


EVERYTHING = AuditFilter()


_ROW = codec(AuditEntry, _C, besides=("id",))


def _decode(row: Row) -> tuple[int, AuditEntry]:
    return row[0], _ROW.decode(row)


_LAST = Prepared(select(_C.id, _C.entry_hash, _C.timestamp).order_by(_C.id.desc()).limit(1))
_APPEND = Prepared(insert(_T).values(binds(_C)))
_HASHED = tuple(c.name for c in _C)[1:-1]
_AFTER = Prepared(select(_T).where(_C.id > bindparam("after")).order_by(_C.id).limit(bindparam("rows")))
_TALLY = Prepared(
    select(_C.action, _C.new_state, func.count(), func.max(_C.id))
    .where(_C.id > bindparam("after"), _C.id <= bindparam("until"))
    .group_by(_C.action, _C.new_state)
)

_TELLS = select(_C.id).where(_C.detail.contains(MARK)).limit(1)
_TELLS_AT_ALL = Prepared(_TELLS)
_TELLS_AFTER = Prepared(_TELLS.where(_C.id > bindparam("after"), _C.operator_cn != MACHINE))


_EXACT = ("machine_id", "operator_cn", "action")
_TEXTS = (_C.action, _C.operator_cn, _C.machine_id, _C.detail, _C.source_ip)
_HOLDS = or_(*(column.ilike(bindparam("part"), escape="\\") for column in _TEXTS))
_FROM = Prepared(select(_C.id, _C.timestamp).where(_C.id >= bindparam("id")).order_by(_C.id).limit(1))


def _within(filters: tuple[str, ...]) -> list[ColumnElement[bool]]:
    return [
        _C.id < bindparam("before"),
        _C.id >= bindparam("lowest"),
        *(_C[name] == bindparam(name) for name in filters),
    ]


@lru_cache(maxsize=16)
def _page(filters: tuple[str, ...], *, text: bool) -> Prepared:
    chosen = [*_within(filters), *([_HOLDS] if text else [])]
    rows = select(_T).where(*chosen).order_by(_C.id.desc()).limit(bindparam("rows"))
    return Prepared(rows, sqlite_index=_index(filters))


@lru_cache(maxsize=8)
def _window(filters: tuple[str, ...]) -> Prepared:
    """Return the statement for the lowest id of so many entries that fit, and how many they are."""
    # Of the index that the filter is for; without one the number of an entry says it.
    found = select(_C.id).where(*_within(filters)).order_by(_C.id.desc()).limit(bindparam("rows")).subquery()
    return Prepared(select(func.min(found.c.id), func.count()), sqlite_index=_index(filters))


def _index(filters: tuple[str, ...]) -> tuple[str, str] | None:
    """Return what SQLite is to begin with: it may choose an action that nearly every entry has."""
    return ("audit_log", "ix_audit_log_machine_id_id") if "machine_id" in filters else None


class Audit:
    """The audit log, inside one unit of work.

    Attributes:
        appended: Number and event of each entry of this unit, in order.
        hurries: The unit told of an act, not of a machine's own, on a row of authority.
    """

    __slots__ = ("_about", "_sql", "appended", "hurries", "tree")

    def __init__(self, sql: Executor) -> None:
        self._sql = sql
        self._about = _NOBODY
        self.appended: list[tuple[int, AuditEvent]] = []
        self.hurries = False
        self.tree = AuditTree(sql)

    def append(self, event: AuditEvent, at: datetime) -> AuditEntry:
        """Append *event* behind the last entry. The unit holds the write lock, so nobody else can.

        Its id is that of the last entry plus one, never one that the database chose: an id that a rolled back
        unit used up would leave a gap, and the entry's place in the tree is its id less one.

        It tells of the rows of authority that the unit changed before it (`attestation.audit.authority`).

        Its time is that of the last entry where *at* is before it: a clock may be set back, the log goes on.
        """
        self._about = event
        changes = self._sql.changes()
        self._note(changes)
        detail, rest = with_changes(event.detail, changes)
        entry = self._add(event if detail == event.detail else replace(event, detail=detail), at)
        self._tell(rest, at)
        return entry

    def begin(self) -> None:
        """Begin a unit: nobody has acted in it yet."""
        self._about, self.hurries = _NOBODY, False
        self.appended.clear()

    def settle(self, clock: Clock) -> None:
        """End a unit: what no entry told of the rows of authority that it changed gets an entry of its own."""
        if changes := self._sql.changes():
            self._note(changes)
            self._tell(changes, clock.now())

    def _note(self, changes: Sequence[Change]) -> None:
        self.hurries = self.hurries or (bool(changes) and self._about.operator_cn != MACHINE)

    def _tell(self, changes: Sequence[Change], at: datetime) -> None:
        """Tell of *changes*, by who acted last in this unit."""
        while changes:
            detail, changes = with_changes(None, changes)
            told = replace(self._about, action=CHANGED, prev_state=None, new_state=None, detail=detail)
            self._add(told, at)

    def _add(self, event: AuditEvent, at: datetime) -> AuditEntry:
        last = self._sql.row(_LAST)
        last_id, prev_hash, before = (0, GENESIS_HASH, "") if last is None else last
        if rfc3339(at) < before:
            at = parse_rfc3339(before)
        self.appended.append((last_id + 1, event))
        entry, data = linked(event, at=at, prev_hash=prev_hash)
        self._sql.do(_APPEND, id=last_id + 1, **_ROW.encode(entry))
        self.tree.grow(last_id, leaf_hash(data))
        return entry

    def page(self, cursor: str | None, limit: int, wanted: AuditFilter = EVERYTHING) -> AuditPage:
        """Return entries with their row ids, newest first.

        For a text a page looks at `WINDOW` entries at most: it may be empty and have a next one.

        Raises:
            RequestInvalid: *cursor* or *limit* cannot be right.
        """
        filters = tuple(name for name in _EXACT if getattr(wanted, name) is not None)
        values: dict[str, object] = {name: getattr(wanted, name) for name in filters}
        lowest = 1 if wanted.since is None else self._first_at(wanted.since)
        before = before_id("audit", cursor)
        if wanted.until is not None:
            before = min(before, self._first_at(wanted.until))
        values |= {"before": before, "lowest": lowest}
        end = None
        if wanted.text is not None:
            end = self._window_end(filters, values)
            values |= {"lowest": end or lowest, "part": f"%{escaped(wanted.text)}%"}
        rows = self._sql.rows(
            _page(filters, text=wanted.text is not None), **values, rows=checked_limit(limit) + 1
        )
        found = page_of("audit", rows, limit, _decode)
        if wanted.text is None:
            return AuditPage(items=found.items, next_cursor=found.next_cursor)
        if found.next_cursor is not None:
            return AuditPage(items=found.items, next_cursor=found.next_cursor, searched_to=found.items[-1][0])
        return AuditPage(
            items=found.items,
            next_cursor=None if end is None else encode_cursor("audit", str(end)),
            searched_to=end,
        )

    def _first_at(self, instant: datetime) -> int:
        """Return the id of the first entry that is not before *instant*; one more than the last where none is.

        Ids and times rise together, so halving finds it: twenty rows of a million, and no index to keep.
        """
        text, last = rfc3339(instant), self._sql.row(_LAST)
        low, high = 1, 1 if last is None else last[0] + 1
        while low < high:
            row = self._sql.row(_FROM, id=(low + high) // 2)
            if row is None or row[1] >= text:
                high = (low + high) // 2
            else:
                low = row[0] + 1
        return low

    def _window_end(self, filters: tuple[str, ...], values: Mapping[str, Any]) -> int | None:
        """Return the id at which a search stops for now; None where it looks at all that is left."""
        if filters:
            row = self._sql.row(_window(filters), **values, rows=WINDOW + 1)
            assert row is not None
            return None if row[1] <= WINDOW else int(row[0]) + 1
        last = self._sql.row(_LAST)
        end = min(values["before"], 1 if last is None else last[0] + 1) - WINDOW
        return None if end <= values["lowest"] else int(end)

    def entries(self, after_id: int, limit: int) -> list[tuple[int, AuditEntry]]:
        """Return the *limit* entries after row *after_id* in ascending order, for a verifier that walks."""
        return [_decode(row) for row in self._sql.rows(_AFTER, after=after_id, rows=limit)]

    def tally(self, after: int, limit: int) -> tuple[int, dict[tuple[str, str | None], int]]:
        """Count the *limit* entries after *after*: return the last of them, and how many by action and new state."""
        rows = self._sql.rows(_TALLY, after=after, until=after + limit)
        return max((row[3] for row in rows), default=after), {(row[0], row[1]): row[2] for row in rows}

    def authority_after(self, entry_id: int) -> bool:
        """Return True if an entry after *entry_id* tells of an act, not of a machine's own, on a row of authority."""
        return self._sql.row(_TELLS_AFTER, after=entry_id) is not None

    def tells_of_authority(self) -> bool:
        """Return True if any entry tells of rows of authority; reads the whole log where none does."""
        return self._sql.row(_TELLS_AT_ALL) is not None

    def walk(self, after_id: int, limit: int) -> list[tuple[int, str, str, bytes]]:
        """Return id, prev_hash, entry_hash and canonical bytes of the *limit* entries after row *after_id*.

        Ascending, as `entries`; for whoever hashes many and reads none.
        """
        return [
            (row[0], row[11], row[12], canonical_members(**dict(zip(_HASHED, row[1:12], strict=True))))
            for row in self._sql.rows(_AFTER, after=after_id, rows=limit)
        ]
