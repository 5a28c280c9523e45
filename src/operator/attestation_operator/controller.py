"""What a controller is: kinds that it watches, one thing that it does about an object, things done in between.

Level-triggered: `handle` is told a name, not an event. It may be called again at any time for any reason, after a
restart for everything there is; so it looks, calls its pure `reconcile(objects, at) -> actions`, and applies those.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from attestation.clock import Clock
from attestation_operator.executor import Executor
from attestation_operator.health import Health
from attestation_operator.metrics import Metrics
from attestation_operator.objects import Key, Kind, Raw
from attestation_operator.service import Service
from attestation_operator.settings import LeaderSettings


class Cluster(Protocol):
    """What a controller reads of its cluster. Everything may raise `ClusterUnavailable` or `ClusterRefused`."""

    async def read(self, key: Key) -> Raw | None:
        """Return an object as it is now, None where there is none."""
        ...

    async def list(
        self,
        kind: Kind,
        *,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> list[Raw]:
        """Return all objects of a kind, in all namespaces or one; or those of them that the selectors choose."""
        ...

    async def review(self, spec: Raw) -> bool:
        """Ask a SubjectAccessReview (authorization.k8s.io/v1) with this `spec`; True where it would be allowed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What a controller is given. `log` is structlog's."""

    cluster: Cluster
    executor: Executor
    service: Service
    clock: Clock
    health: Health
    metrics: Metrics
    settings: LeaderSettings
    log: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What is done at the start and every `seconds` after it, soon again where it failed (with back-off).

    Args:
        name: For logs; of a round everywhere also for /readyz, which waits for its first good end.
        seconds: Between two of them.
        run: What is done.
        everywhere: On each replica, whoever leads: for facts that /readyz tells. It may not act then.
    """

    name: str
    seconds: float
    run: Callable[[], Awaitable[None]]
    everywhere: bool = False


class Controller(Protocol):
    """One duty of the program."""

    @property
    def name(self) -> str:
        """As on the command line."""
        ...

    @property
    def watches(self) -> Sequence[Kind]:
        """Kinds whose objects are handled: at each event, and all of them every ten minutes."""
        ...

    @property
    def rounds(self) -> Sequence[Round]:
        """What is done in between."""
        ...

    async def handle(self, key: Key, seen: Raw | None) -> float | None:
        """Look at an object and do what is to be done about it.

        One object is handled by one task at a time; several objects at the same time.

        Args:
            key: Whose turn it is.
            seen: What the watch showed, None where it must be read: at another attempt, or after it was deleted.

        Returns:
            After how many seconds to look again by itself; None for no earlier than the next event or round.

        Raises:
            ObjectChanged: It is read and handled again at once.
            Unavailable: Service or cluster is away: again, later and later (with jitter, at most 60 s apart).
            AttestationError: Logged with its code; again after ten minutes, with all the others.
        """
        ...
