"""Which replica acts: the one that holds a Lease (coordination.k8s.io/v1), as client-go's leader election does it.

A holder stops by itself when it could not renew for `RENEW_SECONDS`, before the others may take the lease over after
`LEASE_SECONDS`. Clocks of computers are not compared: each measures, on its own steady clock, for how long a record
has not changed. What two replicas could still do at once is harmless: each request names the resourceVersion.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from attestation.clock import Clock, rfc3339
from attestation.errors import AttestationError
from attestation_operator.cluster import KubernetesCluster
from attestation_operator.objects import LEASE, Key, Raw, Target

LEASE_SECONDS: Final = 15
RENEW_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 2.0


class Lease:
    """One lease, as one replica sees it.

    Args:
        cluster: Where it is.
        namespace: Of the Lease.
        name: Of the Lease.
        identity: Of this replica; no other has it.
        clock: For the times that others read.
        log: structlog's.
        tell: Called after each attempt: whether the API server took part.
        steady: Seconds that never jump.
    """

    def __init__(
        self,
        cluster: KubernetesCluster,
        *,
        namespace: str,
        name: str,
        identity: str,
        clock: Clock,
        log: Any,
        tell: Callable[[bool], None],
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._key = Key(kind=LEASE, name=name, namespace=namespace)
        self._identity = identity
        self._clock = clock
        self._log = log
        self._tell = tell
        self._steady = steady
        self._held_until = float("-inf")
        self._seen: str | None = None
        self._seen_at = float("-inf")

    @property
    def held(self) -> bool:
        """True while no other replica may act."""
        return self._steady() < self._held_until

    async def attempt(self) -> bool:
        """Take or renew it; True where it is held now. An API server that is away leaves it as it was."""
        begun = self._steady()
        try:
            taken = await self._attempt(begun)
        except AttestationError as e:
            self._log.warning("lease.not_renewed", code=e.code, reason=str(e), held=self.held)
            self._tell(False)
            return self.held
        self._tell(True)
        # Counted from before the request: the others count from when they see it.
        self._held_until = begun + RENEW_SECONDS if taken else float("-inf")
        return taken

    async def _attempt(self, begun: float) -> bool:
        found = await self._cluster.read(self._key)
        if found is None:
            await self._cluster.create(LEASE, self._record(None))
            return True
        spec = found.get("spec") or {}
        seen = found["metadata"]["resourceVersion"]
        if seen != self._seen:
            self._seen, self._seen_at = seen, begun
        holder = spec.get("holderIdentity")
        seconds = spec.get("leaseDurationSeconds") or LEASE_SECONDS
        if holder and holder != self._identity and begun < self._seen_at + seconds:
            return False
        # 409: somebody wrote in between; the next attempt sees who.
        return await self._cluster.replace(Target.of(LEASE, found), self._record(found))

    async def release(self) -> None:
        """Give it up, so that another replica need not wait; what fails is told and no more."""
        held, self._held_until = self.held, float("-inf")
        if not held:
            return
        try:
            found = await self._cluster.read(self._key)
            if found is None or (found.get("spec") or {}).get("holderIdentity") != self._identity:
                return
            spec = {**found["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
            await self._cluster.replace(Target.of(LEASE, found), {**found, "spec": spec})
        except AttestationError as e:
            self._log.warning("lease.not_released", code=e.code, reason=str(e))

    async def lost(self) -> None:
        """Renew it again and again; return when it is not held any more."""
        while self.held:
            left = self._held_until - self._steady()
            try:
                async with asyncio.timeout(max(left, 0.0)):
                    await asyncio.sleep(RETRY_SECONDS)
                    if not await self.attempt():
                        return
            except TimeoutError:
                return

    def _record(self, found: Raw | None) -> Raw:
        now = rfc3339(self._clock.now())
        spec = dict((found or {}).get("spec") or {})
        if spec.get("holderIdentity") != self._identity:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + (1 if found else 0)
        spec |= {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": now,
        }
        metadata = (found or {}).get("metadata") or {
            "name": self._key.name,
            "namespace": self._key.namespace,
        }
        return {"metadata": metadata, "spec": spec}
