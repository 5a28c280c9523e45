"""Look-ups on PostgreSQL: a transaction that cannot write, which the server itself ends in time."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Final

import psycopg
from psycopg import errors

from attestation.errors import AttestationError, QueryFailed
from attestation.store.lookups import VALUE_BYTES, Found, LookUp, too_slow
from attestation.store.pipeline import Connection, Pipeline
from attestation.store.queues import first_line, unavailable

_SNAPSHOT: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_BOUNDS: Final = """
    SELECT set_config('statement_timeout', $1, true), set_config('lock_timeout', $1, true),
        set_config('work_mem', '16MB', true), set_config('max_parallel_workers_per_gather', '0', true),
        set_config('jit', 'off', true), set_config('search_path', current_schema(), true)
"""
"""They hold for the transaction only: a pooler lends a session to many."""

_GRACE_SECONDS: Final = 2.0
"""The server ends the statement; one that does not answer so long after that is lost."""

_FAILED: Final = ("22", "54", "0A", "42", "53200")
"""SQLSTATEs of what the statement did wrong, and not the server: data, program limits, not supported, memory."""


class PostgresLooker:
    """A connection to a server; see `Looker`.

    Args:
        connect: Opens one.
    """

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._pipeline: Pipeline | None = None

    def look_up(self, wanted: LookUp) -> Found:
        """See `Looker.look_up`."""
        silent = wanted.seconds + _GRACE_SECONDS
        if self._pipeline is None or self._pipeline.closed:
            self._pipeline = Pipeline(self._connect(), silent_seconds=silent)
        pipeline = self._pipeline
        pipeline.begin()
        try:
            pipeline.send(_SNAPSHOT)
            pipeline.send(_BOUNDS, (f"{wanted.seconds * 1000:.0f}",))
            pipeline.sync()
            sql, parameters = _numbered(wanted)
            sent = pipeline.send(f"EXPLAIN {sql}" if wanted.explain else _bounded(sql, wanted), parameters)
            pipeline.sync()
            rows = pipeline.rows_of(sent)
            return Found(rows=rows, is_cut=False) if wanted.explain else _found(rows, wanted)
        except psycopg.Error as e:
            raise self._told(e, wanted) from e
        finally:
            if not pipeline.closed:
                with contextlib.suppress(psycopg.Error):  # it wrote nothing: what is lost is opened anew
                    pipeline.run("ROLLBACK")

    def close(self) -> None:
        """See `Looker.close`."""
        if self._pipeline is not None:
            self._pipeline.close()

    def _told(self, error: psycopg.Error, wanted: LookUp) -> AttestationError:
        state = error.sqlstate or ""
        if (
            isinstance(error, errors.QueryCanceled | errors.LockNotAvailable)
            or str(error) == "no answer in time"
        ):
            return too_slow(wanted)
        if state.startswith(_FAILED):
            return QueryFailed(f"the database does not compute this: {first_line(error)}")
        return unavailable(error)


_NAMED: Final = re.compile(r"%\((\w+)\)s|%%")
_TYPED: Final[dict[type[object], str]] = {bool: "::boolean", float: "::double precision"}
"""Of values that go over the wire as bits: where nothing around one says its type, the server takes it for text."""


def _numbered(wanted: LookUp) -> tuple[str, list[object]]:
    """Return the statement as the server reads it, with `$1` for the first parameter, and the values in that order."""
    order: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        name = found[1]
        if name is None:
            return "%"
        return f"${order.setdefault(name, len(order) + 1)}{_TYPED.get(type(wanted.parameters[name]), '')}"

    sql = _NAMED.sub(number, wanted.sql)
    return sql, [wanted.parameters[name] for name in order]


def _bounded(sql: str, wanted: LookUp) -> str:
    """Return the statement that sends no more than *wanted* allows.

    Each row says how long it and those before it are. The first that is too long comes empty: it says that there is
    more.
    """
    names = [f"c{number}" for number in range(wanted.columns)]
    listed = ", ".join(names)
    size = " + ".join(f"coalesce(octet_length({name}::text), 0)::bigint" for name in names)
    fits = f"total <= {wanted.size_bytes:d} AND size <= {VALUE_BYTES:d}"
    shown = ", ".join(f"CASE WHEN {fits} THEN {name} END" for name in names)
    return (
        f"SELECT {shown}, total, size FROM ("  # noqa: S608 -- names are ours, the rest is compiled; values are bound
        f"SELECT {listed}, size, sum(size) OVER (ROWS UNBOUNDED PRECEDING)::bigint AS total FROM ("
        f"SELECT {listed}, {size} AS size FROM ({sql}) AS found ({listed}) LIMIT {wanted.rows + 1:d}"
        f") AS sized) AS summed WHERE total - size <= {wanted.size_bytes:d}"
    )


def _found(rows: list[tuple[object, ...]], wanted: LookUp) -> Found:
    kept: list[tuple[object, ...]] = []
    for *row, total, size in rows:
        assert isinstance(total, int)
        assert isinstance(size, int)
        if total > wanted.size_bytes or len(kept) == wanted.rows:
            return Found(rows=kept, is_cut=True)
        if size > VALUE_BYTES:
            raise QueryFailed(
                f"the database does not compute this: a row is longer than {VALUE_BYTES:,} bytes"
            )
        kept.append(tuple(row))
    return Found(rows=kept, is_cut=False)
