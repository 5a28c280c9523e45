"""The watch of an agent: objects that one field picks out. It needs `get`, `list` and `watch`, and writes nothing.

list ── tell all, and which are gone ── watch from there ── the API server ends it: watch on
 ▲                                          └── 410, or `RELIST_SECONDS` later: list anew
 └── away: after a pause, longer each time

kopf is not used: it would ask for the right to patch what it watches. Where the API server selects by no such field
(before Kubernetes 1.31) it is asked for all objects. Either way they are selected here: what it sends is not taken
for what was asked.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, Final

from attestation.errors import AttestationError
from attestation_operator.cluster import KubernetesCluster
from attestation_operator.errors import SelectorRefused, WatchExpired
from attestation_operator.objects import Key, Kind, Raw, Told
from attestation_operator.work import pause_seconds

RELIST_SECONDS: Final = 600.0
"""How often all are listed anew: what a watch missed is found so."""

Said = Callable[[str | None], None]


class NodeWatch:
    """Objects of a kind, one field of which has one value.

    Args:
        cluster: The API server.
        kind: Of the objects.
        field: Names from the root of an object, with dots: `spec.targetNodeName`.
        value: What it is in those that are told.
        tell: Called for each object that is there or has changed; None where it is gone, or picked out no more. An
            object may be told again without a change.
        say: Called with None after each list, and with a reason where the API server is away or refuses.
        log: structlog's.
        relist_seconds: After so long all are listed anew.
        spread: Returns 0 to 1 for the jitter of pauses.
    """

    def __init__(
        self,
        cluster: KubernetesCluster,
        kind: Kind,
        *,
        field: str,
        value: str,
        tell: Told,
        say: Said,
        log: Any,
        relist_seconds: float = RELIST_SECONDS,
        spread: Callable[[], float] = random.random,
    ) -> None:
        self._cluster = cluster
        self._kind = kind
        self._field = field
        self._value = value
        self._tell = tell
        self._say = say
        self._log = log
        self._relist_seconds = relist_seconds
        self._spread = spread
        self._known: set[Key] = set()
        self._failures = 0

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            try:
                await self._once()
            except WatchExpired as e:
                self._log.info("watch.expired", kind=self._kind.kind, reason=str(e))
                await asyncio.sleep(self._spread())
            except AttestationError as e:
                self._failures += 1
                self._say(str(e))
                self._log.warning("watch.failed", kind=self._kind.kind, code=e.code, reason=str(e))
                await asyncio.sleep(pause_seconds(self._failures, self._spread()))

    async def _once(self) -> None:
        """List, and watch until it is time to list anew."""
        fields: Mapping[str, str] | None = {self._field: self._value}
        try:
            found, version = await self._cluster.listed(self._kind, fields=fields)
        except SelectorRefused:
            fields = None
            found, version = await self._cluster.listed(self._kind)
        before, self._known = self._known, set()
        for raw in found:
            self._seen(raw)
        for key in before - self._known:
            self._tell(key, None)
        self._failures = 0
        self._say(None)
        try:
            async with asyncio.timeout(self._relist_seconds):
                while True:
                    version = await self._watch(version, fields)
                    await asyncio.sleep(self._spread())
        except TimeoutError:
            return

    async def _watch(self, version: str, fields: Mapping[str, str] | None) -> str:
        """Tell the changes after *version* until the API server ends the watch; return the last version."""
        async with aclosing(self._cluster.watch(self._kind, version, fields=fields)) as changes:
            async for type_, raw in changes:
                version = raw["metadata"]["resourceVersion"]
                if type_ == "DELETED":
                    self._gone(Key.of(self._kind, raw))
                elif type_ != "BOOKMARK":
                    self._seen(raw)
        return version

    def _seen(self, raw: Raw) -> None:
        key = Key.of(self._kind, raw)
        found: Any = raw
        for name in self._field.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        if found == self._value:
            self._known.add(key)
            self._tell(key, raw)
        else:
            self._gone(key)

    def _gone(self, key: Key) -> None:
        if key in self._known:
            self._known.discard(key)
            self._tell(key, None)
