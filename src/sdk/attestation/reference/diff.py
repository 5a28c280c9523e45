"""What changes between two policies: member by member, as data and in words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from attestation.reference.document import load, read
from attestation.reference.policy import Policy
from attestation.reference.rules import Stated


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One member that differs.

    Args:
        member: Its path, e.g. `pcrs.7` or `secure_boot.dbx_min`.
        before: As written; None where it was not stated.
        after: As written; None where it is not stated any more.
        added: Of two lists, the values that came.
        removed: Of two lists, the values that went.
        text: One sentence.
    """

    member: str
    before: object
    after: object
    added: tuple[str, ...]
    removed: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDiff:
    """What changes from one policy to another.

    Args:
        before: `name@version`.
        after: `name@version`.
        changes: By member, in order.
    """

    before: str
    after: str
    changes: tuple[Change, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """One sentence per change; one that says so where there is none."""
        return tuple(change.text for change in self.changes) or (
            f"{self.before} and {self.after} demand the same",
        )


def diff(before: Policy, after: Policy) -> PolicyDiff:
    """Return what *after* demands otherwise than *before*; neither is composed.

    The mode is a change of its own, and not one of each rule.
    """
    was, now = read(load(before.document)), read(load(after.document))
    changes = []
    if was.bank != now.bank:
        changes.append(_change("bank", was.bank, now.bank))
    if was.report != now.report:
        modes = ("enforce", "report")
        changes.append(_change("mode", modes[was.report], modes[now.report]))
    paths = sorted(was.members.keys() | now.members.keys(), key=_order)
    for path in paths:
        old, new = _written(was.members.get(path)), _written(now.members.get(path))
        if old != new:
            changes.append(_change(path, old, new))
    return PolicyDiff(before=before.ref, after=after.ref, changes=tuple(changes))


def _order(path: str) -> tuple[int, int, str]:
    """PCRs first, by number; then all others by name."""
    _, dot, index = path.partition("pcrs.")
    return (0, int(index), "") if dot else (1, 0, path)


def _written(stated: Stated | None) -> object:
    return None if stated is None else stated.written


def _change(path: str, before: object, after: object) -> Change:
    what = path.replace("pcrs.", "PCR ").replace("_", " ").replace(".", ": ")
    old, new = _values(before), _values(after)
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    if before is None:
        text = f"{what}: new: {_words(after)}"
    elif after is None:
        text = f"{what}: not demanded any more (was {_words(before)})"
    elif old is not None and new is not None and _kind(before) == _kind(after):
        added = tuple(v for v in new if v not in set(old))
        removed = tuple(v for v in old if v not in set(new))
        parts = [
            f"{sign}{len(values)} ({_some(values)})"
            for sign, values in (("+", added), ("-", removed))
            if values
        ]
        text = f"{what}: " + (", ".join(parts) or "the same values, written otherwise")
    else:
        text = f"{what}: {_words(before)} -> {_words(after)}"
    return Change(member=path, before=before, after=after, added=added, removed=removed, text=text)


def _kind(written: object) -> str:
    """Return which rule a PCR has; empty for what is no rule of a PCR."""
    return min(written) if isinstance(written, dict) else ""


def _values(written: object) -> Sequence[str] | None:
    """Return the list of values that a member is, or holds as its rule."""
    if isinstance(written, dict):
        written = written.get("any_of", written.get("digests"))
    return written if isinstance(written, list) else None


def _words(written: object) -> str:
    if isinstance(written, dict) and "ignore" in written:
        return f"ignored ({written['ignore']})"
    if isinstance(written, dict) and "empty" in written:
        return "no measurement"
    if isinstance(written, dict) and "expression" in written:
        return str(written["expression"])
    values = _values(written)
    if values is None and isinstance(written, dict):
        return json.dumps(written, sort_keys=True)
    if values is None:
        return {True: "yes", False: "no"}[written] if isinstance(written, bool) else str(written)
    kind = "only events " if _kind(written) == "digests" else "one of " if isinstance(written, dict) else ""
    return f"{kind}{len(values)} ({_some(values)})" if len(values) > 1 else f"{kind}{_short(values[0])}"


def _some(values: Sequence[str]) -> str:
    shown = ", ".join(_short(value) for value in values[:3])
    return f"{shown}, …" if len(values) > 3 else shown


def _short(value: str) -> str:
    """Shorten a digest; patterns stay."""
    return f"{value[:12]}…" if len(value) >= 64 and " " not in value else value
