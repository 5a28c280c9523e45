"""A thousand agents start at once behind one address (W9): all of them get through, and none of it in step.

The pauses are the agent's, the limit is the service's, the clock is ours: nothing here waits.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from attestation.clock import to_micros
from attestation.store.rate_limits import RateLimit, wait
from attestation_agent.rhythm import Rhythm
from attestation_agent.settings import load

AGENTS: Final = 1_000
BEGAN: Final = datetime(2026, 11, 27, 5, 0, tzinfo=UTC)
LIMIT: Final = RateLimit(requests=500, per_seconds=5)
"""Of one address: a hundred a second, five hundred at once (`ITL_RATE_LIMIT_ADDRESS_PER_SECOND`, `_BURST`)."""
REQUESTS: Final = 2
"""Of one attestation: a challenge, and its answer. After a refusal both are asked for anew."""


def storm(uniform: Callable[[float, float], float]) -> tuple[Counter[int], list[float]]:
    """Return how many requests came in each second of ten minutes, and when each agent had attested that did."""
    rhythm = Rhythm(uniform=uniform)
    splay = load({}, {"ITL_REG_URL": "https://attest.example"}).splay_seconds
    due = [(uniform(0.0, splay), number, 0, 0) for number in range(AGENTS)]
    heapq.heapify(due)
    came: Counter[int] = Counter()
    done: list[float] = []
    tat_us: int | None = None
    while due and due[0][0] < 600:
        seconds, number, answered, failures = heapq.heappop(due)
        at = BEGAN + timedelta(seconds=seconds)
        came[int(seconds)] += 1
        asked = wait(tat_us, at, LIMIT)
        if asked is not None:
            pause = rhythm.after_failure(failures + 1, asked)
            heapq.heappush(due, (seconds + pause, number, 0, failures + 1))
            continue
        tat_us = max(tat_us or 0, to_micros(at)) + LIMIT.interval_us
        if answered + 1 < REQUESTS:
            heapq.heappush(due, (seconds + 0.01, number, answered + 1, failures))
        else:
            done.append(seconds)
    return came, done


def test_a_restart_storm_gets_through() -> None:
    """Each agent attests within a minute, and not many requests were in vain; in step hardly any ever would."""
    came, done = storm(random.Random(9).uniform)
    assert len(done) == AGENTS
    assert max(done) < 60
    assert came.total() < 3 * REQUESTS * AGENTS
    in_step, few = storm(lambda _low, high: high)
    assert len(few) < AGENTS / 5
    assert max(came.values()) < max(in_step.values()) / 2
