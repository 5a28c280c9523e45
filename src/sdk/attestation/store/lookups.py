"""Statements that somebody else thought of: they only read, end in time, and stand in nobody's way.

A look-up has connections of its own, so whatever it costs, no attestation waits for it. Two run at a time in a process;
a third is refused at once, because one that waited would be late anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol

from attestation.errors import QueriesBusy, QueryTimeout, StoreUnavailable

AT_ONCE: Final = 2
"""Look-ups that run at the same time in one process."""

VALUE_BYTES: Final = 512 << 10
"""Longest text that one may make or return. SQLite searches a text in a text without asking whether it is late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUp:
    """What to look up.

    Args:
        sql: One SELECT in the language of the database (`Store.dialect`), with the names of parameters in place of
            values: `:name` on SQLite, `%(name)s` on PostgreSQL, where a percent sign is written twice.
        parameters: The values.
        columns: How many columns it has.
        reads: Table and column of all that it may read. SQLite is held to it.
        functions: Names of the database's own functions that it may call; SQLite is held to it.
        rows: Most rows to return.
        size_bytes: Most bytes of all of them together.
        seconds: After this it is ended.
        explain: Return how the database would run it, and do not run it.
    """

    sql: str
    parameters: Mapping[str, object]
    columns: int
    reads: frozenset[tuple[str, str]]
    functions: frozenset[str]
    rows: int
    size_bytes: int
    seconds: float
    explain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was found.

    Args:
        rows: In order.
        is_cut: There are more, or they would be longer together.
    """

    rows: Sequence[tuple[Any, ...]]
    is_cut: bool


class Looker(Protocol):
    """A connection that only reads; used by one thread at a time, opened when it is first needed."""

    def look_up(self, wanted: LookUp) -> Found:
        """Run one statement.

        Raises:
            QueryTimeout: It was not done in time, and was ended.
            QueryFailed: The database does not compute this.
            StoreUnavailable: The database does not answer.
        """
        ...

    def close(self) -> None:
        """Close the connection, if there is one."""
        ...


def too_slow(wanted: LookUp) -> QueryTimeout:
    """Return what is told of a look-up that was not done in time."""
    return QueryTimeout(
        f"the query was not done within {wanted.seconds:g} s and was ended: let it look at less"
    )


class LookUps:
    """Runs look-ups, as many at once as there are *lookers*; none waits for another."""

    def __init__(self, lookers: Sequence[Looker]) -> None:
        self._all = tuple(lookers)
        self._free = list(lookers)
        self._threads = ThreadPoolExecutor(len(self._all), thread_name_prefix="store-look-up")
        self._closed = False

    async def ask(self, wanted: LookUp) -> Found:
        """See `Store.look_up`."""
        if self._closed:
            raise StoreUnavailable("the store is closed")
        if not self._free:
            raise QueriesBusy(f"{len(self._all)} queries are running already: ask again in a few seconds")
        looker = self._free.pop()
        asked = self._threads.submit(looker.look_up, wanted)
        # Not after the answer: who asked may be gone, before it is begun too, and it is busy until then.
        asked.add_done_callback(lambda _: self._free.append(looker))
        return await asyncio.wrap_future(asked)

    def close(self) -> None:
        """Refuse new ones, wait for what runs, close the connections."""
        self._closed = True
        self._threads.shutdown()
        for looker in self._all:
            looker.close()
