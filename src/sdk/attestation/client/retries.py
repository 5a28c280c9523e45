"""How often, and how patiently, a request is repeated."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


def _uniform(low: float, high: float) -> float:
    import random

    return random.uniform(low, high)  # noqa: S311 -- spreads retries; nothing secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often, and how patiently, a request is repeated.

    Args:
        attempts: Requests in all, at least 1.
        base_seconds: First pause; it doubles, and is drawn between half and the whole of itself.
        max_wait_seconds: Longest pause; a `Retry-After` beyond it ends the attempts.
        sleep: How to pause.
        uniform: Draws a number between two bounds.
    """

    attempts: int = 3
    base_seconds: float = 0.25
    max_wait_seconds: float = 10.0
    sleep: Callable[[float], object] = time.sleep
    uniform: Callable[[float, float], float] = _uniform

    def pause(self, attempt: int, retry_after_seconds: int | None) -> float | None:
        """Return the seconds to wait after the failed *attempt* (from 1), or None to give up."""
        if attempt >= self.attempts:
            return None
        if retry_after_seconds is not None:
            return float(retry_after_seconds) if retry_after_seconds <= self.max_wait_seconds else None
        whole = min(self.base_seconds * 2 ** (attempt - 1), self.max_wait_seconds)
        return self.uniform(whole / 2, whole)


ONCE = Retries(attempts=1)
