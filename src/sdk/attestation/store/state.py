"""The rows that give authority, as a verifier compares them with the log, and as an upgrade tells of them once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from sqlalchemy import bindparam, tuple_

from attestation.store.authority import AUTHORITY, AuthorityTable
from attestation.store.sql import Executor, Prepared, Row

ADOPTED_AT_ONCE = 100


@lru_cache(maxsize=64)
def _page(kind: AuthorityTable, *, first: bool) -> Prepared:
    keys = [kind.table.c[name] for name in kind.key]
    rows = kind.select().order_by(*keys).limit(bindparam("rows"))
    if first:
        return Prepared(rows)
    return Prepared(rows.where(tuple_(*keys) > tuple_(*(bindparam(f"after_{name}") for name in kind.key))))


class State:
    """All rows of authority, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def page(self, kind: AuthorityTable, after: Sequence[object] | None, limit: int) -> list[Row]:
        """Return the *limit* rows behind the one whose key is *after*, as `AuthorityTable.select` reads them."""
        if after is None:
            return self._sql.rows(_page(kind, first=True), rows=limit)
        values = {f"after_{name}": value for name, value in zip(kind.key, after, strict=True)}
        return self._sql.rows(_page(kind, first=False), rows=limit, **values)

    def adopt(self) -> Iterator[int]:
        """Let the next entries tell of every row as if it were new: append one whenever this yields."""
        for kind in AUTHORITY.values():
            after: Sequence[object] | None = None
            while rows := self.page(kind, after, ADOPTED_AT_ONCE):
                self._sql.take_for_new(kind, rows)
                yield len(rows)
                after = rows[-1][: len(kind.key)]
