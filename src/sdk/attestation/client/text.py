"""Words of the service as text for people: nothing that a terminal or a reader is deceived by, short ids, ages."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

SHORT_ID: Final = 8
"""Characters of a machine's id that are shown at least."""


def clean(text: str) -> str:
    """Return *text* without anything that a terminal obeys or that deceives a reader.

    Control characters (C0, C1, DEL, line breaks), invisible and direction-changing ones, private-use and
    unassigned code points and lone surrogates become U+FFFD.
    """
    return "".join("\ufffd" if _is_unprintable(c) else c for c in text)


def _is_unprintable(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] == "C" or category in ("Zl", "Zp")


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
    size = abs(seconds)
    text = f"{size} s"
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        count = (size + length // 2) // length
        if count >= 2:
            text = f"{count} {unit}"
            break
    return f"{text} ago" if seconds >= 0 else f"in {text}"
