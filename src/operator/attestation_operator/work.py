"""The work queue: names of objects that want to be looked at. Each is there once; no two tasks look at the same one.

Namespaces take turns: whoever may create objects in one, thousands at once, delays what is in the others by one each.

kopf retries no handler of foreign objects (they get no annotations from us, which it would need for that), so nothing
is done in its handlers: they put a name here.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from attestation.errors import AttestationError, Unavailable
from attestation_operator.errors import ClusterForbidden, NotLeading, ObjectChanged
from attestation_operator.metrics import Metrics
from attestation_operator.objects import Key, Raw

FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 60.0
CHANGED_AT_ONCE: Final = 5
"""So often an object that changed under us is looked at again at once; then as if the cluster were away."""

MAX_SEEN_CHARACTERS: Final = 16 << 20
"""Of objects that the queue keeps as they were seen; beyond that it keeps names, and objects are read again."""


def pause_seconds(failures: int, spread: float) -> float:
    """Return how long to wait after so many failures in a row.

    Args:
        failures: From 1.
        spread: 0 to 1, at random: half of the pause is certain, the rest is spread.
    """
    longest = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(failures - 1, 16))
    return longest / 2 + longest / 2 * spread


class WorkQueue:
    """Objects to be handled, by a number of tasks. Belongs to one event loop.

    Args:
        handle: What is done; see `controller.Controller.handle`.
        metrics: What is counted.
        log: structlog's.
        workers: How many objects are handled at the same time.
        spread: Returns 0 to 1 for the jitter of pauses.
    """

    def __init__(
        self,
        handle: Callable[[Key, Raw | None], Awaitable[float | None]],
        *,
        metrics: Metrics,
        log: Any,
        workers: int,
        spread: Callable[[], float] = random.random,
    ) -> None:
        self._handle = handle
        self._metrics = metrics
        self._log = log
        self._workers = workers
        self._spread = spread
        self._waiting: OrderedDict[str | None, OrderedDict[Key, Raw | None]] = OrderedDict()
        """By namespace, that whose turn is next first; none is empty."""
        self._number = 0
        self._seen_characters = 0
        self._busy: set[Key] = set()
        self._again: dict[Key, Raw | None] = {}
        self._failures: dict[Key, int] = {}
        self._later: dict[Key, asyncio.TimerHandle] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return self._number + len(self._later)

    def add(self, key: Key, seen: Raw | None = None) -> None:
        """Have the object *key* looked at soon; *seen* is what is known of it, the newest wins."""
        if (later := self._later.pop(key, None)) is not None:
            later.cancel()
        if key in self._busy:
            self._drop(self._again.get(key))
            self._again[key] = self._kept(seen)
            return
        waiting = self._waiting.setdefault(key.namespace, OrderedDict())
        self._number += key not in waiting
        self._drop(waiting.get(key))
        waiting[key] = self._kept(seen)
        self._metrics.queued.set(len(self))
        self._wake.set()

    async def run(self) -> None:
        """Handle what comes, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(self._workers):
                    tasks.create_task(self._work(), name=f"worker {number}")
        finally:
            for later in self._later.values():
                later.cancel()
            self._later.clear()

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            key, seen = self._next()
            self._drop(seen)
            self._busy.add(key)
            try:
                after = await self._tried(key, seen)
            finally:
                self._busy.discard(key)
            if key in self._again:
                newest = self._again.pop(key)
                self._drop(newest)
                self.add(key, newest)
            elif after is not None:
                self._at(key, after)
            self._metrics.queued.set(len(self))

    def _next(self) -> tuple[Key, Raw | None]:
        namespace, waiting = self._waiting.popitem(last=False)
        found = waiting.popitem(last=False)
        self._number -= 1
        if waiting:
            self._waiting[namespace] = waiting  # behind the others
        return found

    async def _tried(self, key: Key, seen: Raw | None) -> float | None:
        """Handle one object; return after how many seconds to look again, None for not by itself."""
        try:
            with self._metrics.handling.time():
                after = await self._handle(key, seen)
        except ObjectChanged as e:
            failures = self._failed(key)
            self._told("changed", key, e)
            return 0.0 if failures <= CHANGED_AT_ONCE else pause_seconds(failures, self._spread())
        except NotLeading as e:
            self._told("not-leading", key, e)
            return None
        except Unavailable as e:
            self._told("away", key, e)
            return pause_seconds(self._failed(key), self._spread())
        except ClusterForbidden as e:
            # Until the next relist a run would be long past its deadline.
            self._told("refused", key, e)
            return pause_seconds(self._failed(key), self._spread())
        except AttestationError as e:
            # Asking again would end the same way; with all the others its turn comes at the next relist.
            self._failures.pop(key, None)
            self._told("refused", key, e)
            return None
        except Exception:  # noqa: BLE001 -- the border of a worker: a fault about one object ends no other's turn
            self._metrics.handled.labels("failed").inc()
            self._log.exception("handle.failed", kind=key.kind.kind, name=str(key))
            return pause_seconds(self._failed(key), self._spread())
        self._failures.pop(key, None)
        self._metrics.handled.labels("done").inc()
        return after

    def _failed(self, key: Key) -> int:
        self._failures[key] = self._failures.get(key, 0) + 1
        return self._failures[key]

    def _told(self, outcome: str, key: Key, error: AttestationError) -> None:
        self._metrics.handled.labels(outcome).inc()
        log = self._log.info if outcome in ("changed", "not-leading") else self._log.warning
        log(f"handle.{outcome}", kind=key.kind.kind, name=str(key), code=error.code, reason=str(error))

    def _at(self, key: Key, after: float) -> None:
        """Look again in *after* seconds. What the object is then is read then."""
        if after <= 0:
            self.add(key)
        else:
            self._later[key] = asyncio.get_running_loop().call_later(after, self._due, key)

    def _due(self, key: Key) -> None:
        self._later.pop(key, None)
        self.add(key)

    def _kept(self, seen: Raw | None) -> Raw | None:
        if seen is None or self._seen_characters + _characters(seen) > MAX_SEEN_CHARACTERS:
            return None
        self._seen_characters += _characters(seen)
        return seen

    def _drop(self, seen: Raw | None) -> None:
        if seen is not None:
            self._seen_characters -= _characters(seen)


def _characters(seen: Raw) -> int:
    """Return what counts of an object: its texts, and some for what it is made of.

    A stranger may choose all of them: owners and annotations of a request may be as long as its spec.
    """
    return 4096 + _texts(seen)


def _texts(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(name) + _texts(each) for name, each in value.items())
    return sum(map(_texts, value)) if isinstance(value, list) else 0
