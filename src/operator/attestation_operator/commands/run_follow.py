"""Following a run to its end: it is read again and again, and what changed is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Final

from attestation.errors import Unavailable
from attestation_operator.commands import run_words as words
from attestation_operator.commands.place import Asked, ClusterAway, ObjectUnknown
from attestation_operator.durations import parse_duration
from attestation_operator.objects import RUN, Key, Raw

LOOK_SECONDS: Final = 0.5
DEFAULT_TIMEOUT: Final = timedelta(minutes=2)
TAKEN_UP_SECONDS: Final = 30.0
"""Beyond its timeout a run has so long to be taken up and to end."""
SEALED_SECONDS: Final = 60.0
"""So long its events and its seal are waited for after its end."""
AWAY_SECONDS: Final = 60.0
"""So long the API server may be away while a run is followed."""


class RunNotEnded(Unavailable):
    """The run did not end in its time: no controller takes it up."""

    code = "run-not-ended"
    headline = "the run does not end"
    advice = "see that `attestation-operator runs` runs in the cluster, and reaches the service"


async def read(asked: Asked, name: str) -> Raw:
    """Return the run *name*.

    Raises:
        ObjectUnknown: There is none.
    """
    found = await asked.cluster.read(Key(kind=RUN, name=name, namespace=asked.namespace))
    if found is None:
        raise ObjectUnknown(f"there is no run {name} in the namespace {asked.namespace}")
    return found


def is_settled(run: Raw) -> bool:
    """Return whether nothing more becomes of *run*: it ended, its events are written, its seal is decided."""
    from attestation_operator.runs.objects import read_run

    return words.has_ended(run) and read_run(run).is_complete


async def follow(asked: Asked, name: str, *, to_the_seal: bool) -> AsyncGenerator[Raw, None]:
    """Yield the run *name* as it is, and again whenever it changed; end when it has.

    Args:
        asked: Where.
        name: Which.
        to_the_seal: Go on after its end until its events are written and its bundle is sealed, a minute at most.

    Raises:
        ObjectUnknown: There is none, or it was deleted.
        RunNotEnded: It does not end in its time.
        ClusterUnavailable: The API server is away for longer.
    """
    from attestation_operator.errors import ClusterUnavailable

    run = await read(asked, name)
    yield run
    until = time.monotonic() + _span(run).total_seconds() + TAKEN_UP_SECONDS
    ended_at = away_since = None
    while True:
        now = time.monotonic()
        if words.has_ended(run):
            ended_at = ended_at or now
            if not to_the_seal or is_settled(run) or now >= ended_at + SEALED_SECONDS:
                return
        elif now >= until:
            raise RunNotEnded(
                f"the run {name} is {words.phase(run)} after its time: no controller takes it up"
            )
        await asyncio.sleep(LOOK_SECONDS)
        try:
            seen = await read(asked, name)
        except ClusterUnavailable as e:
            away_since = away_since or now
            if now >= away_since + AWAY_SECONDS:
                raise ClusterAway(str(e)) from e
            continue
        away_since = None
        if seen["metadata"]["resourceVersion"] != run["metadata"]["resourceVersion"]:
            run = seen
            yield run


def _span(run: Raw) -> timedelta:
    try:
        return parse_duration((run.get("spec") or {}).get("timeout") or "2m")
    except ValueError:
        return DEFAULT_TIMEOUT
