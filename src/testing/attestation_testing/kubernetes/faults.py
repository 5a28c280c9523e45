"""What goes wrong on demand: refusals, delays, lost answers, and what happens just before a request is answered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from attestation_testing.kubernetes.status import StatusError

_REASONS = {
    409: "Conflict",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong with the next requests that fit.

    Args:
        verb: As RBAC says it, `watch` among them; None for each.
        resource: Plural; None for each.
        subresource: As `status`, empty for the object itself; None for both.
        name: Of the object; None for each.
        user: Who asks; None for each.
        times: How many requests; None for all until the fault is taken back.
        status: Answer with this HTTP status; None answers as ever.
        retry_after: Seconds, told with *status*.
        delay_seconds: Wait so long before the request is read.
        lose_answer: Do what is asked, then close the connection without a word.
        before: Called, in the thread of the server, before the request is done: it may change objects by
            `KubernetesAPI.cluster`.
    """

    verb: str | None = None
    resource: str | None = None
    subresource: str | None = None
    name: str | None = None
    user: str | None = None
    times: int | None = 1
    status: int | None = None
    retry_after: int | None = None
    delay_seconds: float = 0
    lose_answer: bool = False
    before: Callable[[], object] | None = None

    def error(self) -> StatusError | None:
        """Return the refusal."""
        if self.status is None:
            return None
        reason = _REASONS.get(self.status, "")
        return StatusError(self.status, reason, "a fault that was asked for", retry_after=self.retry_after)


class Faults:
    """Those that were asked for, the first first. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: list[tuple[Fault, int | None]] = []
        self.met = 0
        """How many requests met one."""

    def add(self, fault: Fault) -> Fault:
        """Ask for *fault*; return it, to be taken back."""
        with self._lock:
            self._left.append((fault, fault.times))
        return fault

    def remove(self, fault: Fault) -> None:
        """Take *fault* back; one that is over is over."""
        with self._lock:
            self._left = [each for each in self._left if each[0] is not fault]

    def clear(self) -> None:
        """Take all back."""
        with self._lock:
            self._left.clear()

    def take(self, *, verb: str, resource: str, subresource: str, name: str, user: str) -> Fault | None:
        """Return the first fault that fits, and count it."""
        if not self._left:
            return None
        with self._lock:
            for index, (fault, left) in enumerate(self._left):
                said = (fault.verb, fault.resource, fault.subresource, fault.name, fault.user)
                if all(
                    want in (None, found)
                    for want, found in zip(said, (verb, resource, subresource, name, user), strict=True)
                ):
                    if left is not None:
                        self._left[index] = (fault, left - 1)
                        if left == 1:
                            del self._left[index]
                    self.met += 1
                    return fault
        return None
