"""When to come again. Always with chance in it: a thousand agents must never move in step (W9)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

SHORTEST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 3600.0
"""However long the service sends us away: an agent that never returns can no longer be told anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """Pauses between attempts.

    Args:
        uniform: Draws a number between two bounds.
        first_seconds: Pause after the first failure, before chance.
        most_seconds: Longest pause after failures, before chance.
    """

    uniform: Callable[[float, float], float] = random.uniform
    first_seconds: float = 2.0
    most_seconds: float = 300.0

    def after_answer(self, again_seconds: int) -> float:
        """Return the pause after an answer that asked to come again in *again_seconds*."""
        asked = min(max(float(again_seconds), SHORTEST_SECONDS), LONGEST_SECONDS)
        # Not later than asked: the lease runs from the service's clock.
        return self.uniform(0.8, 1.0) * asked

    def after_failure(self, failures: int, retry_after_seconds: int | None) -> float:
        """Return the pause after *failures* in a row (at least 1); `Retry-After` is a lower bound."""
        whole = min(self.first_seconds * 2.0 ** min(failures - 1, 30), self.most_seconds)
        pause = self.uniform(whole / 2, whole)
        if retry_after_seconds is None:
            return pause
        asked = min(float(retry_after_seconds), LONGEST_SECONDS)
        # Everybody was told the same second; spread over the next quarter.
        return max(pause, asked * self.uniform(1.0, 1.25))
