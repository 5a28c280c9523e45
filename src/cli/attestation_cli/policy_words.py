"""Policies in words: where one applies, what a rule expects, and a proposal as YAML that explains itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from attestation.client.text import clean
from attestation_cli.render import yaml_text

if TYPE_CHECKING:
    from attestation.api import LearnedPolicy
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


def commented(learned: LearnedPolicy) -> str:
    """Return a proposal as YAML: what it was learned from as comments, each value with the machines that have it."""
    many = "one machine" if learned.machines == 1 else f"{learned.machines} machines"
    lines = [f"# Proposed from what {many} proved last. Read it before you store it."]
    lines += [f"# {clean(note)}" for note in learned.notes]
    lines += [f"# left out: {clean(each.machine)}: {clean(each.reason)}" for each in learned.outliers]
    who = {group.value: group.machines for group in learned.groups}
    for line in yaml_text(learned.document).splitlines():
        item = line.lstrip()
        machines = who.get(item.removeprefix("- ").strip("'\"")) if item.startswith("- ") else None
        if machines is not None:
            lines.append(f"{line[: len(line) - len(item)]}# {_machines(machines)}")
        lines.append(line)
    return "\n".join(lines) + "\n"


def _machines(names: list[str]) -> str:
    shown = ", ".join(clean(name) for name in names[:SHOWN])
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{len(names)}: {shown}{more}"
