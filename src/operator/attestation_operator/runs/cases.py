"""What a decision about a run rests on, what it comes to, and the parts of which decisions are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Literal

from attestation.api.runs import RunBundle, RunDetail, RunOpen, RunOpened, RunSeal
from attestation.errors import AttestationError
from attestation_operator.actions import Action, Create, EmitEvent, MergeStatus
from attestation_operator.conditions import with_conditions
from attestation_operator.objects import SECURITY_EVENT, Key, Raw, Target
from attestation_operator.runs.events import ACTIVE, EventRecorder
from attestation_operator.runs.node_action import NodeAction
from attestation_operator.runs.objects import Run, later

GRACE: Final = timedelta(seconds=1)
"""After the deadline: evidence of the last moment is judged by then, and the service says that the attempt ended."""
STEP_SECONDS: Final = 1.0
"""After a step of ours the watch shows the run anew; where it does not, it is looked at then."""
POLL_SECONDS: Final = (1.0, 5.0)
"""Shortest and longest distance between two looks at the service while the agent has the turn."""
LOST_SECONDS: Final = (1.0, 5.0)
"""Likewise while the service is away."""
COMPLETE_SECONDS: Final = (1.0, 600.0)
"""Likewise while what comes of an ended run waits for the service."""


class Ask(StrEnum):
    """What the service is asked."""

    OPEN = "open"
    LOOK = "look"
    SEAL = "seal"


Answer = RunOpened | RunDetail | RunBundle | AttestationError


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the administrator chose.

    Args:
        recorder: Who tells events.
        result_ttl: How long Results are kept.
        node_action: What a run does to its Node.
        acts_for: Namespaces whose runs do: who writes policies in another one has no word about a Node.
        seal_timeout: How long after its end what comes of a run is waited for.
    """

    recorder: EventRecorder
    result_ttl: timedelta
    node_action: NodeAction = NodeAction.NONE
    acts_for: frozenset[str] = frozenset()
    seal_timeout: timedelta = timedelta(hours=72)


class Unread(Exception):
    """A decision rests on an object that was not read yet."""

    def __init__(self, key: Key) -> None:
        super().__init__(str(key))
        self.key = key


class Objects(dict[Key, Raw | None]):
    """What was read of the cluster: None where nothing is there. What was not read ends the decision: `Unread`."""

    def __missing__(self, key: Key) -> Raw | None:
        raise Unread(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that a decision about a run rests on.

    Args:
        run: The run.
        objects: What was read of the cluster in this look.
        at: Now.
        options: What the administrator chose.
        answers: What the service said in this look, by what it was asked.
    """

    run: Run
    objects: Objects
    at: datetime
    options: RunOptions
    answers: Mapping[Ask, Answer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is to be done about a run now.

    Args:
        read: This object is to be read first, and all is judged again.
        actions: In this order.
        ask: The service is to be asked this first, and all is judged again with what it says.
        question: What goes with it.
        again: When the actions are done, objects are read anew and judged at once.
        after: In how many seconds to look again in any case; None for no earlier than it changes.
        warning: For the log.
    """

    read: Key | None = None
    actions: tuple[Action, ...] = ()
    ask: Ask | None = None
    question: RunOpen | RunSeal | None = None
    again: bool = False
    after: float | None = None
    warning: str | None = None


def ending_key(run: Run, options: RunOptions) -> Key:
    """Return where the event is that tells the end of *run*."""
    return options.recorder.key(run, run.attempt, options.recorder.ending(run).type)


_FACT: Final = ("class", "type", "severity", "correlationID", "signals")
"""What makes a fact this one. Who told it when, and what the Node was like then, may differ."""


def _is_about(there: Mapping[str, Any], event: Mapping[str, Any]) -> bool:
    """Return whether an event that is there is about the same object in the same cluster."""
    one, other = there["spec"].get("subject") or {}, event["spec"]["subject"]
    clusters = [(each["spec"].get("clusterIdentity") or {}).get("clusterID") for each in (there, event)]
    return clusters[0] == clusters[1] and all(one.get(name) == other.get(name) for name in ("kind", "name"))


def tell(case: Case, event: Mapping[str, Any]) -> Decision:
    """Return what is missing until *event* is told; `again` where it must be created first.

    One that is there is the same fact told before, if it says the same of the same; else a warning.
    """
    there = case.objects[Key.of(SECURITY_EVENT, event)]
    if there is None:
        return Decision(actions=(Create(kind=SECURITY_EVENT, raw=event),), again=True)
    if any(there["spec"].get(member) != event["spec"][member] for member in _FACT) or not _is_about(
        there, event
    ):
        return Decision(warning=f"SecurityEvent {event['metadata']['name']} tells another fact")
    if (there.get("status") or {}).get("phase"):
        return Decision()
    return Decision(actions=(MergeStatus(target=Target.of(SECURITY_EVENT, there), status={"phase": ACTIVE}),))


def write(case: Case, *conditions: Mapping[str, Any], **status: Any) -> Decision:
    """Return one change of the run's status, against what was judged."""
    run = case.run
    if conditions:
        status["conditions"] = with_conditions(
            run.conditions, conditions, generation=run.generation, at=case.at
        )
    status = {key: str(value) if isinstance(value, StrEnum) else value for key, value in status.items()}
    return Decision(actions=(MergeStatus(target=run.target, status=status),), after=STEP_SECONDS)


def event(case: Case, reason: str, note: str, *, warning: bool) -> EmitEvent:
    """Return an Event about the run, for people: best effort, beside the SecurityEvent that counts."""
    type_: Literal["Normal", "Warning"] = "Warning" if warning else "Normal"
    return EmitEvent(target=case.run.target, action="Attest", reason=reason, note=note, type=type_)


def pause_for(case: Case, bounds: tuple[float, float]) -> float:
    """Return when to look again at a run that goes on: the longer it takes, the later; never beyond its end."""
    run, at = case.run, case.at
    longest = later(at, run.deadline if at < run.deadline else run.deadline + GRACE)
    return max(min(_between(later(run.started_at, at) / 4, bounds), longest), 0.05)


def ended_pause(case: Case) -> float:
    """Return when to look again at a run that has ended: the longer ago, the later."""
    return _between(later(case.run.ended_at, case.at) / 2, COMPLETE_SECONDS)


def _between(seconds: float, bounds: tuple[float, float]) -> float:
    return min(max(seconds, bounds[0]), bounds[1])
