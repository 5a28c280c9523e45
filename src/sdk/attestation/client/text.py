"""Words of the service as text for people: nothing that a terminal or a reader is deceived by, short ids, ages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from attestation.text import SHORT_ID, clean

__all__ = ["SHORT_ID", "ago", "clean", "short_ids"]


def short_ids(machine_ids: Iterable[str]) -> Mapping[str, str]:
    """Return the shortest prefixes, of one length and at least eight characters, that tell the ids apart."""
    ids = set(machine_ids)
    size = SHORT_ID
    while size < 36 and len({i[:size] for i in ids}) < len(ids):
        size += 1
    return {i: i[:size].rstrip("-") for i in ids}


def ago(at: datetime | None, now: datetime) -> str:
    """Return how far *at* is from *now*, in the largest unit of which there are two: `12 s ago`, `in 3 min`."""
    if at is None:
        return "-"
    seconds = int((now - at).total_seconds())
    return f"{_duration(seconds)} ago" if seconds >= 0 else f"in {_duration(seconds)}"


def apart(ours: datetime, theirs: datetime) -> str:
    """Return how a clock that says *ours* differs from one that says *theirs*: `60 min ahead of`, `2 h behind`."""
    seconds = int((ours - theirs).total_seconds())
    return f"{_duration(seconds)} {'ahead of' if seconds >= 0 else 'behind'}"


def _duration(seconds: int) -> str:
    size = abs(seconds)
    for unit, length in (("y", 31_557_600), ("d", 86_400), ("h", 3600), ("min", 60)):
        count = (size + length // 2) // length
        if count >= 2:
            return f"{count} {unit}"
    return f"{size} s"
