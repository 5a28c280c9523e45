"""The store as everybody sees it, whatever the database: plain functions go in, values come out.

A *unit of work* is a function `work(tx) -> value`. It cannot await, so no transaction is ever held across I/O.
It may be run twice, so it has no effects but those on `tx`. What it raises undoes what it did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from attestation.clock import Clock
from attestation.store.lookups import Found, LookUp
from attestation.store.tx import Tx

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """How a store behaves.

    Args:
        busy_timeout_seconds: How long a writer waits for one of another process; then its callers get `StoreBusy`.
        commit_attempts: How often a group that fails is tried before its callers get `StoreUnavailable`.
        group_size: Most units in one commit; bounds what one failure repeats and how long others wait.
        gather_seconds: How long a group waits for more, if the one before was not of one unit only.
        queue_size: Most units that wait; beyond it a write is refused at once with `StoreUnavailable`.
        results_kept: Attestation results kept per machine.
        on_authority: Called, on the writer's thread, after a commit with an entry that tells of an act, not of a
            machine's own, on a row of authority. It must neither block nor raise.
        moved_too: Write also to a database that went on elsewhere: only who takes it back may.
        functions: What look-ups may call on SQLite beside its own functions: by name, how many arguments (-1: any)
            and what computes it. Deterministic, without effects, and quick.
    """

    busy_timeout_seconds: float = 5.0
    commit_attempts: int = 3
    group_size: int = 64
    gather_seconds: float = 0.002
    queue_size: int = 10_000
    results_kept: int = 20
    on_authority: Callable[[], object] | None = None
    moved_too: bool = False
    functions: Mapping[str, tuple[int, Callable[..., Any]]] = field(default_factory=dict)


class Store(Protocol):
    """A database of ours. Every method raises `StoreUnavailable` where the database does not serve us.

    Attributes:
        clock: Whose time counts for all who share the database: its server's, or on SQLite this computer's.
        dialect: In which language of SQL it is looked up.
    """

    clock: Clock
    dialect: Literal["sqlite", "postgresql"]

    async def write(self, work: Callable[[Tx], T]) -> T:
        """Run *work* in a transaction and return its value once it is durable.

        Cancelling the caller does not take the unit back: what was accepted is done.
        """
        ...

    async def read(self, work: Callable[[Tx], T]) -> T:
        """Run *work*, which must not change anything, on one snapshot and return its value.

        The snapshot holds everything that was committed before the call. For reads by key: they are answered
        one after the other.
        """
        ...

    async def scan(self, work: Callable[[Tx], T]) -> T:
        """As `read`, for lists, searches and walks: however long it takes, it delays no `read`."""
        ...

    async def look_up(self, wanted: LookUp) -> Found:
        """Run a statement that an operator thought of: apart from all else, in time, and without any effect.

        Raises:
            QueryTimeout: It was not done in time, and was ended.
            QueryFailed: The database does not compute this.
            QueriesBusy: As many as may run at once do.
        """
        ...

    def write_sync(self, work: Callable[[Tx], T]) -> T:
        """As `write`, for a thread without event loop; never from inside a unit."""
        ...

    def read_sync(self, work: Callable[[Tx], T]) -> T:
        """As `read`, for a thread without event loop; never from inside a unit."""
        ...

    async def aclose(self) -> None:
        """Finish what was accepted, refuse what comes after, close the database."""
        ...

    def close(self) -> None:
        """As `aclose`, for a thread without event loop."""
        ...
