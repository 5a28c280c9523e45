"""Which runs a schedule wants now, and which of its old ones may go. Pure: objects and an instant in, actions out.

A *time* is what `schedule` or `every` says. A run of a node is *due* at a time and, with jitter, so many seconds after
it as node and schedule say for ever. `status.lastScheduleTime` is the instant up to which all that was due is dealt
with: a run was created, or another one had been, or a later time took its place.

1. Of what is due after that instant, each node and backend gets the newest: what was missed is made up once.
2. A run's name says schedule (by its UID), node, backend and time: two leaders create one run. Clocks that differ by a
   minute shift a run by a minute and double none: what counts is the instant in the status.
3. A node with a run that has not ended gets no other; what is due waits, and the instant with it. For runs of schedules
   as long as they take, for those of others `PATIENCE`: else whoever may create Runs keeps a node from being asked.
4. A run is old where it has ended, the instant has passed it, and newer ones of its node, backend and end are as many
   as the history keeps. It goes when all was written that comes of it, or when the time for that is over.
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from attestation.clock import rfc3339
from attestation_operator.actions import Action, Create, Delete, EmitEvent, SetStatus
from attestation_operator.objects import RUN, SCHEDULE, Raw, Target, clipped
from attestation_operator.runs.schedule_objects import (
    AHEAD,
    MANAGED,
    SCHEDULE_LABEL,
    SCHEDULED_AT,
    Candidate,
    OpenRun,
    Schedule,
    ScheduledRun,
    run_name,
)
from attestation_operator.runs.schedule_times import lately

MANAGER: Final = "attestation-operator-schedules"
READY: Final = "Ready"
"""The condition of a schedule."""
PATIENCE: Final = timedelta(minutes=10)
"""How long what is due waits for runs that no schedule created: twice what one may take."""
TOLD_NODES: Final = 5
"""How many are named in the status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is to be done about a schedule.

    Args:
        create: Runs, in the order in which they were due.
        prune: Runs that may go.
        dealt_with: The instant up to which all is dealt with once `create` is done; None for none yet.
        wake_at: When something is due again by itself; None for no such time.
        chosen: How many nodes the schedule is about.
        waits_for: Nodes that are asked by others; once they were, the schedule is looked at again.
    """

    create: tuple[Create, ...] = ()
    prune: tuple[Delete, ...] = ()
    dealt_with: datetime | None = None
    wake_at: datetime | None = None
    chosen: int = 0
    waits_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class _Due:
    """One run that is wanted. They are dealt with in the order of these members."""

    at: datetime
    node: str
    rank: int
    backend: str = field(compare=False)
    time: datetime = field(compare=False)


def reconcile(
    schedule: Schedule,
    nodes: Iterable[Candidate],
    runs: Collection[ScheduledRun],
    at: datetime,
    *,
    others: Iterable[OpenRun] = (),
    unsealed_kept: timedelta = timedelta(days=3),
) -> Decision:
    """Return what is to be done about *schedule* at *at*.

    Args:
        schedule: As it is now.
        nodes: All Nodes of the cluster.
        runs: Those that this schedule created and that still exist.
        at: Now.
        others: Runs of others that have not ended.
        unsealed_kept: How long an old run waits for what comes of it.
    """
    chosen = [node for node in nodes if schedule.chooses(node)]
    if schedule.suspended:
        return Decision(dealt_with=schedule.dealt_with, chosen=len(chosen))
    since = _since(schedule, at)
    due, wake_at = _due(schedule, chosen, since, at)

    names = {run.name for run in runs}
    busy = {run.node for run in runs if not run.ended}
    others = tuple(others)
    of_schedules, of_others = _asked_by(others)
    # Creating one of these fails, and that is told at once.
    taken = {run.key.name for run in others if run.key.namespace == schedule.target.namespace}
    create: list[Create] = []
    waits_for: list[str] = []
    done, waits = [schedule.dealt_with and since], []
    for each in due:
        name = _name(schedule, each)
        is_new, patient_until = name not in names, each.at + PATIENCE
        waits_for_others = each.node in of_schedules or (each.node in of_others and at < patient_until)
        if is_new and name not in taken and (each.node in busy or waits_for_others):
            waits.append(each.at)
            if each.node not in busy:
                waits_for.append(each.node)
                wake_at = min(wake_at or patient_until, patient_until) if at < patient_until else wake_at
            continue
        done.append(each.at)
        if is_new:
            busy.add(each.node)
            create.append(Create(kind=RUN, raw=_run(schedule, name, each)))
    # What is due at the same instant as something that waits is dealt with together with it.
    dealt_with = max((each for each in done if each and (not waits or each < waits[0])), default=None)
    return Decision(
        create=tuple(create),
        prune=tuple(_old(schedule, runs, dealt_with, at, unsealed_kept)),
        dealt_with=dealt_with,
        wake_at=wake_at,
        chosen=len(chosen),
        waits_for=tuple(dict.fromkeys(waits_for)),
    )


def _asked_by(others: Iterable[OpenRun]) -> tuple[set[str], set[str]]:
    """Return the nodes that other schedules have asked, and those that anybody else has."""
    found: tuple[set[str], set[str]] = (set(), set())
    for run in others:
        found[not run.scheduled].add(run.node)
    return found


def _since(schedule: Schedule, at: datetime) -> datetime:
    """Return after which instant something may be due that is not dealt with."""
    if schedule.dealt_with is None:
        # What is due at the second in which it was made is due after all.
        return schedule.created_at - timedelta(seconds=1)
    return at if schedule.dealt_with > at + AHEAD else schedule.dealt_with


def _due(
    schedule: Schedule, nodes: Sequence[Candidate], since: datetime, at: datetime
) -> tuple[list[_Due], datetime | None]:
    """Return what is due after *since*, of each node and backend the newest, and when something will be."""
    recent = lately(schedule.times, at, schedule.jitter)
    coming = schedule.times.next(at)
    due: list[_Due] = []
    wake_at = coming
    for node in nodes:
        offset = spread(schedule, node.name)
        passed = bisect_right(recent, at - offset)
        if passed < len(recent) and (wake_at is None or recent[passed] + offset < wake_at):
            wake_at = recent[passed] + offset
        if passed and recent[passed - 1] + offset > since:
            due += (
                _Due(recent[passed - 1] + offset, node.name, rank, backend, recent[passed - 1])
                for rank, backend in enumerate(schedule.backends(node))
            )
    return sorted(due), wake_at


def spread(schedule: Schedule, node: str) -> timedelta:
    """Return how long after a time a node's run is due: 0 to `jitter`, whole seconds, always the same."""
    most = schedule.jitter // timedelta(seconds=1)
    digest = hashlib.sha256(f"{schedule.target.uid}|{node}".encode()).digest()
    return timedelta(seconds=int.from_bytes(digest[:8], "big") % (most + 1))


def _name(schedule: Schedule, due: _Due) -> str:
    target = schedule.target
    time = f"{due.time:%Y%m%d%H%M%S}"
    return run_name(target.name, target.uid, node=due.node, backend=due.backend, time=time)


def _run(schedule: Schedule, name: str, due: _Due) -> Raw:
    target = schedule.target
    spec: dict[str, Any] = {
        "backend": due.backend,
        "targetNodeName": due.node,
        "timeout": schedule.timeout,
    }
    if schedule.policy is not None:
        spec["policyRef"] = {"name": schedule.policy}
    # The value of a label has 63 characters at most.
    named = {SCHEDULE_LABEL: target.name} if len(target.name) <= 63 else {}
    return {
        "metadata": {
            "name": name,
            "namespace": target.namespace,
            "labels": {**MANAGED, **named},
            "annotations": {SCHEDULED_AT: rfc3339(due.at)},
            "ownerReferences": [{**target.reference, "controller": True}],
        },
        "spec": spec,
    }


def _old(
    schedule: Schedule,
    runs: Iterable[ScheduledRun],
    dealt_with: datetime | None,
    at: datetime,
    unsealed_kept: timedelta,
) -> Iterable[Delete]:
    """Yield runs that may go, the oldest first."""
    keep = {"Succeeded": schedule.keep_succeeded, "Failed": schedule.keep_failed}
    newer: Counter[tuple[str, str, str]] = Counter()
    found: list[ScheduledRun] = []
    for run in sorted(runs, key=lambda run: (run.scheduled_at, run.name), reverse=True):
        if not run.ended:
            continue
        # Its name must not come free while its time is not dealt with: it would be created again.
        passed = dealt_with is not None and run.scheduled_at <= dealt_with
        kind = (run.node, run.backend, run.phase)
        newer[kind] += 1
        told = run.settled or run.ended_at is None or at >= run.ended_at + unsealed_kept
        if newer[kind] > keep[run.phase] and passed and told:
            found.append(run)
    return (Delete(target=run.target) for run in reversed(found))


def status(
    schedule: Schedule, looked: Decision, at: datetime, *, active: int, refused: str | None = None
) -> tuple[Action, ...]:
    """Return the status to be said of *schedule*, nothing where it is said already; a new fault as an Event too.

    Args:
        schedule: As it was looked at.
        looked: What was done since.
        at: Now.
        active: How many of its runs have not ended by now.
        refused: Why the API server refused a run, or None.
    """
    value, reason, message = _standing(schedule, looked, refused)
    said: dict[str, Any] = {"active": active}
    if looked.dealt_with is not None:
        said["lastScheduleTime"] = rfc3339(looked.dealt_with)
    coming = None if schedule.suspended else schedule.times.next(at)
    if coming is not None:
        said["nextScheduleTime"] = rfc3339(coming)
    return _said(schedule.raw, said, _condition(schedule.raw, value, reason, message, at))


def unreadable(raw: Raw, why: str, at: datetime) -> tuple[Action, ...]:
    """Return the status of a schedule from which nothing follows; what is dealt with stays so."""
    before = raw.get("status") or {}
    said = {name: before[name] for name in ("active", "lastScheduleTime") if name in before}
    return _said(raw, said, _condition(raw, "False", INVALID, why, at))


def _standing(schedule: Schedule, looked: Decision, refused: str | None) -> tuple[str, str, str]:
    if schedule.suspended:
        return "False", "Suspended", "spec.suspend is true: no run is created"
    if refused is not None:
        return "False", REFUSED, refused
    if not looked.chosen:
        return "False", NO_NODE, "spec.nodeSelector chooses no Node"
    if looked.waits_for:
        more = ", …" if len(looked.waits_for) > TOLD_NODES else ""
        named = ", ".join(looked.waits_for[:TOLD_NODES]) + more
        return "True", BUSY, f"asked by other runs that have not ended, and waited for: {named}"
    return "True", "Scheduled", f"Nodes that are chosen: {looked.chosen}"


INVALID: Final = "ScheduleInvalid"
REFUSED: Final = "RunRefused"
NO_NODE: Final = "NoNode"
BUSY: Final = "NodesBusy"
FAULTS: Final = frozenset({INVALID, REFUSED, NO_NODE})
"""Reasons that are told as an Event too."""


def _said(raw: Raw, said: dict[str, Any], ready: Raw) -> tuple[Action, ...]:
    said["conditions"] = [ready]
    before = raw.get("status") or {}
    if {name: before.get(name) for name in _OURS} == {name: said.get(name) for name in _OURS}:
        return ()
    target = Target.of(SCHEDULE, raw)
    written = SetStatus(target=target, manager=MANAGER, status=said)
    reason = ready["reason"]
    if reason not in FAULTS or _ready(raw).get("reason") == reason:
        return (written,)
    return (
        written,
        EmitEvent(target=target, action="Schedule", reason=reason, note=ready["message"], type="Warning"),
    )


_OURS: Final = ("active", "lastScheduleTime", "nextScheduleTime", "conditions")


def _ready(raw: Raw) -> Raw:
    conditions = (raw.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] == READY), {})


def _condition(raw: Raw, value: str, reason: str, message: str, at: datetime) -> Raw:
    before = _ready(raw)
    since = before.get("lastTransitionTime") if before.get("status") == value else None
    return {
        "type": READY,
        "status": value,
        "observedGeneration": raw["metadata"].get("generation") or 0,
        "lastTransitionTime": since or rfc3339(at),
        "reason": reason,
        "message": clipped(message),
    }
