"""Collateral of confidential hardware: kept for all workers and replicas, asked for by one of them at a time.

Nothing here is believed: whoever loads a piece verifies it (`attestation.endorsements.collateral`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.sql import ClauseElement

from attestation.clock import from_micros, to_micros
from attestation.store.codec import binds, codec
from attestation.store.sql import Executor, Insert, Prepared
from attestation.store.tables import CollateralRow, table_of

MAX_PAGE: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCollateral:
    """One piece, or that it was asked for.

    Args:
        name: What it is, a path in an export.
        data: As it is kept; None where it was asked for and did not come yet.
        source: Where it is from: a host, `import`; of what did not come, who was asked.
        stored_at: When it was stored.
        begins_at, expires_at: When it holds.
        ask_at: From when on its vendor may be asked again.
        failure: Why asking failed last, in words; None where it did not.
        failures: How often in a row.
    """

    name: str
    data: bytes | None
    source: str
    stored_at: datetime | None
    begins_at: datetime | None
    expires_at: datetime | None
    ask_at: datetime
    failure: str | None
    failures: int


_T = table_of(CollateralRow)
_C = _T.c
_ROW = codec(StoredCollateral, _C)
_OF = Prepared(select(_T).where(_C.name == bindparam("of_name")))
_PAGE = Prepared(select(_T).where(_C.name > bindparam("after")).order_by(_C.name).limit(bindparam("rows")))
_DUE = Prepared(
    select(_C.name)
    .where(_C.ask_at <= bindparam("at"), _C.data.is_not(None))
    .order_by(_C.ask_at)
    .limit(bindparam("rows"))
)
_FORGET = Prepared(delete(_T).where(_C.data.is_(None), _C.ask_at < bindparam("before")))
_EXPIRIES = Prepared(select(_C.name, _C.expires_at).where(_C.expires_at.is_not(None)))
_FAILED = Prepared(
    update(_T)
    .where(_C.name == bindparam("of_name"))
    .values(
        ask_at=bindparam("ask_at"),
        failure=bindparam("failure"),
        failures=_C.failures + 1,
    )
)


_HURRY = Prepared(update(_T).where(_C.name == bindparam("of_name")).values(ask_at=bindparam("ask_at")))


def _claim(insert: Insert) -> ClauseElement:
    wanted = insert(_T).values(binds(_C))
    return wanted.on_conflict_do_update(  # type: ignore[no-any-return]  # the dialect's own insert
        index_elements=[_C.name],
        set_={"ask_at": wanted.excluded.ask_at},
        where=_C.ask_at <= bindparam("at"),
    )


def _put(insert: Insert) -> ClauseElement:
    wanted = insert(_T).values(binds(_C))
    changed = {c.name: wanted.excluded[c.name] for c in _C if c.name != "name"}
    return wanted.on_conflict_do_update(  # type: ignore[no-any-return]  # the dialect's own insert
        index_elements=[_C.name], set_=changed
    )


_CLAIM, _PUT = Prepared(_claim), Prepared(_put)


class CollateralItems:
    """The pieces, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def get(self, name: str) -> StoredCollateral | None:
        """Return what is known of *name*."""
        row = self._sql.row(_OF, of_name=name)
        return None if row is None else _ROW.decode(row)

    def page(self, after: str = "", rows: int = MAX_PAGE) -> Sequence[StoredCollateral]:
        """Return the pieces behind *after*, by name."""
        return [_ROW.decode(row) for row in self._sql.rows(_PAGE, after=after, rows=rows)]

    def expiring(self) -> Mapping[str, datetime]:
        """Return when the first piece of each kind expires: `vcek`, `crl`, `tcb-info`, `qe-identity`."""
        found: dict[str, datetime] = {}
        for name, expires in self._sql.rows(_EXPIRIES):
            folder, _, last = name.rpartition("/")
            kind = (
                last.removesuffix(".json") if folder.startswith(("tdx", "sgx")) else folder.partition("/")[0]
            )
            at = from_micros(expires)
            found[kind] = min(at, found.get(kind, at))
        return found

    def due(self, at: datetime, rows: int) -> Sequence[str]:
        """Return names that should be asked for at *at*, the longest waiting first."""
        return [row[0] for row in self._sql.rows(_DUE, at=to_micros(at), rows=rows)]

    def claim(self, name: str, source: str, at: datetime, until: datetime) -> bool:
        """Take it on to ask for *name* until *until*; False where somebody else does, or it is too early."""
        asked = StoredCollateral(
            name=name,
            data=None,
            source=source,
            stored_at=None,
            begins_at=None,
            expires_at=None,
            ask_at=until,
            failure=None,
            failures=0,
        )
        return self._sql.run(_CLAIM, at=to_micros(at), **_ROW.encode(asked)) == 1

    def failed(self, name: str, why: str, ask_at: datetime) -> None:
        """Write down that asking for *name* failed, and when somebody may ask again; what is kept stays."""
        self._sql.run(_FAILED, of_name=name, failure=why, ask_at=to_micros(ask_at))

    def hurry(self, at: datetime) -> Sequence[str]:
        """Let vendors be asked at *at* for all that is kept, and return its names; refusals of theirs are respected."""
        kept = [each.name for each in self._all() if each.data is not None and each.failure is None]
        for name in kept:
            self._sql.run(_HURRY, of_name=name, ask_at=to_micros(at))
        return kept

    def _all(self) -> Iterator[StoredCollateral]:
        after = ""
        while found := self.page(after):
            yield from found
            after = found[-1].name

    def later(self, name: str, ask_at: datetime) -> None:
        """Let nobody ask for *name* before *ask_at*; what is kept stays, and nothing failed."""
        self._sql.run(_HURRY, of_name=name, ask_at=to_micros(ask_at))

    def forget(self, before: datetime) -> int:
        """Forget what was asked for, never came, and might have been asked for again since *before*."""
        return self._sql.run(_FORGET, before=to_micros(before))

    def put(self, item: StoredCollateral) -> None:
        """Store *item* in the place of what was there."""
        self._sql.run(_PUT, **_ROW.encode(item))
