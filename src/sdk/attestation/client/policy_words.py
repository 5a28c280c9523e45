"""Policies in words: where one applies, what a rule expects, what only one of two has.

Pure: what the service said goes in, words come out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attestation.reference.diff import Change

SHOWN = 3


def place_words(scope: str, subject: str) -> str:
    """Return where something applies: `fleet`, `role worker-app`."""
    return "fleet" if scope == "fleet" else f"{scope} {subject}"


def member(document: Mapping[str, object], path: str) -> object:
    """Return the member at *path*, e.g. `pcrs.7`, or None where there is none."""
    found: object = document
    for name in path.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(name)
    return found


def rule_words(value: object, most: int | None = SHOWN) -> str:
    """Return what a rule expects, in words; at most *most* values of a list."""
    if isinstance(value, Mapping):
        if "ignore" in value:
            return f"ignored: {value['ignore']}"
        if "empty" in value:
            return "no measurement"
        if "any_of" in value:
            return rule_words(value["any_of"], most)
        if "digests" in value:
            return f"only events {rule_words(value['digests'], most)}"
        return ", ".join(f"{name} {rule_words(inner, most)}" for name, inner in value.items())
    if isinstance(value, list):
        shown = value if most is None else value[:most]
        more = "" if len(shown) == len(value) else f" or {len(value) - len(shown)} more"
        return " or ".join(str(each) for each in shown) + more
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def signed_values(change: Change) -> list[tuple[str, str]]:
    """Return what only one of two policies has: `-` the first, `+` the second."""
    removed, added = change.removed, change.added
    if not removed and not added:
        removed, added = _listed(change.before), _listed(change.after)
    return [*(("-", value) for value in removed), *(("+", value) for value in added)]


def _listed(written: object) -> tuple[str, ...]:
    if written is None:
        return ()
    if isinstance(written, Mapping):
        written = written.get("any_of") or written.get("digests") or rule_words(written, None)
    return tuple(map(str, written)) if isinstance(written, list) else (rule_words(written, None),)
