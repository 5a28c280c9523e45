"""What is to be done about a run now (CONFIDENTIAL.md §3): pure, from objects, answers of the service, and the time.

    ""       accepted or failed; nothing was asked yet
    Pending  open it at the service ── event AttestationStarted ── Running
    Running  look what became of it ── Result ── Succeeded or Failed
    ended    what the Result is worth, the Node, the verdict's event, the seal: each once, whoever began it

A process may end between any two actions, and two may act at once. So the phase is written against the resourceVersion
that was judged; what is written before a phase is what the same service says to everybody; what is written after it is
made of the run's own status, under names that are the same for the same. The first thing that is missing is done next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from attestation.api.runs import RunAttempt, RunBundle, RunDetail, RunOpen, RunOpened, RunSeal
from attestation.clock import parse_rfc3339, rfc3339
from attestation.errors import AttestationError, PolicyInvalid, Unavailable
from attestation_operator.actions import Action, Create, Delete, MergeStatus
from attestation_operator.objects import BUNDLE, RESULT, SECURITY_EVENT, Key, Raw, Target
from attestation_operator.runs import asked, bundles, events, node_action, results
from attestation_operator.runs.events import ACTIVE, FACTS, Teller
from attestation_operator.runs.node_action import NodeAction
from attestation_operator.runs.objects import (
    NOTHING_TO_SEAL,
    RESULT_GONE,
    SERVICE_UNAVAILABLE,
    Condition,
    Phase,
    Reason,
    Run,
    Standing,
    later,
    said,
    with_conditions,
)

GRACE: Final = timedelta(seconds=1)
"""After the deadline: evidence of the last moment is judged by then, and the service says that the attempt ended."""
LOST_AFTER: Final = timedelta(seconds=5)
"""How long the service is away until that is told: one that restarts is none that is lost."""
STEP_SECONDS: Final = 1.0
"""After a step of ours the watch shows the run anew; where it does not, it is looked at then."""
POLL_SECONDS: Final = (1.0, 5.0)
"""Shortest and longest distance between two looks at the service while the agent has the turn."""
LOST_SECONDS: Final = (1.0, 5.0)
"""Likewise while the service is away."""
COMPLETE_SECONDS: Final = (1.0, 600.0)
"""Likewise while what comes of an ended run waits for the service."""
EVENT_DIFFERS: Final = "EventDiffers"


class Ask(StrEnum):
    """What the service is asked."""

    OPEN = "open"
    LOOK = "look"
    SEAL = "seal"


Answer = RunOpened | RunDetail | RunBundle | AttestationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What the administrator chose.

    Args:
        teller: Who tells events.
        result_ttl: How long Results are kept.
        node_action: What a run does to its Node.
    """

    teller: Teller
    result_ttl: timedelta
    node_action: NodeAction = NodeAction.NONE


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
        chosen: What the administrator chose.
        answers: What the service said in this look, by what it was asked.
    """

    run: Run
    objects: Objects
    at: datetime
    chosen: Chosen
    answers: Mapping[Ask, Answer] = field(default_factory=dict)

    def with_answer(self, ask: Ask, answer: Answer) -> Case:
        """Return the same with one more answer."""
        return replace(self, answers={**self.answers, ask: answer})


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
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


def reconcile(case: Case) -> Looked:
    """Return what is to be done about a run now."""
    if case.run.is_complete:
        return Looked()
    try:
        match case.run.phase:
            case Phase.NEW:
                return _accept(case)
            case Phase.PENDING:
                return _open(case)
            case Phase.RUNNING:
                return _look(case)
        return _complete(case)
    except Unread as e:
        return Looked(read=e.key)


# ---------------------------------------------------------------- "" → Pending | Failed


def _accept(case: Case) -> Looked:
    run, at = case.run, case.at
    try:
        wants = asked.read(run, case.objects)
    except asked.NotAsked as e:
        refused = said(Condition.ACCEPTED, e.reason, str(e), true=False)
        failed = said(Condition.FAILED, e.reason, str(e))
        return _step(case, refused, failed, phase=Phase.FAILED, completionTime=rfc3339(at))
    accepted = said(Condition.ACCEPTED, wants.standing, f"policy: {run.source}")
    return _step(
        case,
        accepted,
        phase=Phase.PENDING,
        startTime=rfc3339(at),
        deadline=rfc3339(at + wants.timeout),
        attempt=1,
    )


# ---------------------------------------------------------------- Pending → Running | Failed


def _open(case: Case) -> Looked:
    run, at = case.run, case.at
    # 1. Its time is over. It may be open at the service all the same: a replica may have ended before it could say so.
    if at >= run.deadline:
        return _look(case)
    # 2. Opened, or opened already: the same run gets the open attempt again.
    opened = case.answers.get(Ask.OPEN)
    if opened is None:
        return _asking_to_open(case)
    if isinstance(opened, AttestationError) and opened.code == "run-differs":
        # Policy or Node have changed since another replica opened it: what it opened counts.
        opened = case.answers.get(Ask.LOOK)
        if opened is None:
            return Looked(ask=Ask.LOOK)
    if isinstance(opened, AttestationError):
        if isinstance(opened, PolicyInvalid) or opened.code == PolicyInvalid.code:
            return _fail(case, Reason.POLICY_INVALID, str(opened))
        return _lost(case, opened)
    attempt, policy_id = _opened(opened)
    # 3. The fact is told once for a run, whichever attempt this is by now; then the phase says that it was told.
    fact = FACTS[events.STARTED]
    signals = events.signals_of(run, 1)
    event = case.chosen.teller.event(
        run, fact, attempt=1, detected_at=run.started_at, signals=signals, node=case.objects[run.node]
    )
    told = _told(case, event)
    back = _back(case)
    if told.again or back.again:
        return replace(told, actions=(*told.actions, *back.actions), again=True)
    waiting = said(Condition.JUDGED, "Waiting", true=False)
    running = _step(case, waiting, phase=Phase.RUNNING, attempt=attempt, policyID=policy_id)
    return replace(
        running,
        actions=(*told.actions, *back.actions, *running.actions),
        warning=told.warning or back.warning,
    )


def _asking_to_open(case: Case) -> Looked:
    try:
        wants = asked.read(case.run, case.objects)
        return Looked(
            ask=Ask.OPEN,
            question=asked.question(case.run, wants, case.objects, case.chosen.teller.cluster_id),
        )
    except asked.NotAsked as e:
        return _fail(case, e.reason, str(e))


def _opened(answer: Answer) -> tuple[int, str]:
    if isinstance(answer, RunDetail):
        return answer.attempts[-1].attempt, answer.policy_id
    assert isinstance(answer, RunOpened)
    return answer.attempt, answer.policy_id


# ---------------------------------------------------------------- Running → Succeeded | Failed


def _look(case: Case) -> Looked:
    """Look what the service says of the run, and end it where it is judged or its time is over."""
    run, at = case.run, case.at
    detail = case.answers.get(Ask.LOOK)
    if detail is None:
        return Looked(ask=Ask.LOOK)
    if isinstance(detail, AttestationError):
        # The time of a run ends with or without the service.
        if at >= run.deadline:
            return _fail(case, Reason.DEADLINE_EXCEEDED, f"the service: {detail.code}")
        if detail.code == "run-unknown":
            return _reopened(case)
        return _lost(case, detail)
    assert isinstance(detail, RunDetail)
    back = _back(case)
    if back.again:
        return back
    found = _look_at(case, detail)
    return replace(found, actions=(*back.actions, *found.actions), warning=found.warning or back.warning)


def _look_at(case: Case, detail: RunDetail) -> Looked:
    run, at = case.run, case.at
    # 1. Judged: that counts, also where this look comes late. The service took evidence before the deadline only.
    judged = next((each for each in reversed(detail.attempts) if each.state == "judged"), None)
    if judged is not None:
        return _conclude(case, detail, judged)
    last = detail.attempts[-1]
    # 2. Its time is over, and no evidence came.
    if at >= run.deadline + GRACE:
        return _end(case, detail, last, reason=Reason.AGENT_ABSENT, verdict="indeterminate")
    # 3. The challenge expired unused, and there is time left: another one.
    if last.state == "expired" and at < run.deadline:
        return _reopened(case)
    # 4. The agent has the turn.
    return _waiting(case, last.attempt)


def _reopened(case: Case) -> Looked:
    answer = case.answers.get(Ask.OPEN)
    if answer is None:
        return _asking_to_open(case)
    if isinstance(answer, RunOpened):
        return _waiting(case, answer.attempt)
    # It cannot be opened again (as where its policy was edited): it ends with its time.
    assert isinstance(answer, AttestationError)
    if isinstance(answer, Unavailable):
        return _lost(case, answer)
    return replace(_waiting(case, case.run.attempt), warning=f"not opened again: {answer.code}: {answer}")


def _waiting(case: Case, attempt: int) -> Looked:
    run = case.run
    if run.phase is Phase.RUNNING and (attempt != run.attempt or _is_lost(run)):
        waiting = said(Condition.JUDGED, "Waiting", true=False)
        return replace(_step(case, waiting, attempt=attempt), after=_pause(case, POLL_SECONDS))
    return Looked(after=_pause(case, POLL_SECONDS))


def _conclude(case: Case, detail: RunDetail, judged: RunAttempt) -> Looked:
    """End the run as the service judged it: the table of §3."""
    result = judged.result
    assert result is not None
    reason: Reason | None = None
    if result.unavailable is not None:
        reason = Reason.DEVICE_UNAVAILABLE
    elif result.rejected is not None:
        reason = Reason.EVIDENCE_REJECTED
    elif result.verdict == "failed":
        reason = Reason.VERDICT_FAILED
    return _end(case, detail, judged, reason=reason, verdict=result.verdict)


def _end(
    case: Case, detail: RunDetail, attempt: RunAttempt, *, reason: Reason | None, verdict: str
) -> Looked:
    """Write the Result, then the phase."""
    run = case.run
    wanted_result = results.result_object(run, detail, attempt, reason=reason)
    there = case.objects[run.result]
    # One of another run of this name, or one that the service does not bear out, goes first.
    if there is not None and not results.is_same(there, wanted_result):
        return Looked(actions=(Delete(target=Target.of(RESULT, there)),), again=True)
    status: dict[str, Any] = {
        "attempt": attempt.attempt,
        "policyID": detail.policy_id,
        "resultRef": {"name": run.result.name},
    }
    if attempt.challenge is not None:
        status["challenge"] = {
            "id": attempt.challenge.id,
            "random": attempt.challenge.random,
            "nonce": attempt.challenge.nonce,
            "expiresAt": rfc3339(attempt.challenge.expires_at),
        }
    ended = _terminal(case, reason, _why(reason, attempt), verdict=verdict, **status)
    created = () if there is not None else (Create(kind=RESULT, raw=wanted_result),)
    return replace(ended, actions=(*created, *ended.actions))


def _why(reason: Reason | None, attempt: RunAttempt) -> str:
    result = attempt.result
    match reason:
        case Reason.DEVICE_UNAVAILABLE if result is not None and result.unavailable is not None:
            return f"{result.unavailable.code}: {result.unavailable.detail}"
        case Reason.EVIDENCE_REJECTED if result is not None:
            return result.rejected or ""
        case Reason.VERDICT_FAILED if result is not None:
            failed = [each.code or each.id for each in result.checks if each.outcome == "fail"]
            return ", ".join(dict.fromkeys(failed))
        case Reason.AGENT_ABSENT:
            return "no evidence came before the deadline"
    return ""


def _fail(case: Case, reason: Reason, words: str) -> Looked:
    """End an accepted run of which the service says nothing (yet)."""
    return _terminal(case, reason, words, verdict="indeterminate")


def _terminal(case: Case, reason: Reason | None, words: str, *, verdict: str, **status: Any) -> Looked:
    came = reason in (None, Reason.EVIDENCE_REJECTED, Reason.VERDICT_FAILED)
    is_judged = came or reason is Reason.DEVICE_UNAVAILABLE
    conditions = [
        said(Condition.EVIDENCE_RECEIVED, reason if not came and reason else "Received", true=came),
        said(Condition.JUDGED, verdict.capitalize() if is_judged else reason or "", true=is_judged),
    ]
    if reason is not None:
        conditions.append(said(Condition.FAILED, reason, words))
    phase = Phase.SUCCEEDED if reason is None else Phase.FAILED
    at = rfc3339(case.at)
    return _step(case, *conditions, phase=phase, verdict=verdict, completionTime=at, **status)


# ---------------------------------------------------------------- the service is away


def _lost(case: Case, error: AttestationError) -> Looked:
    """Wait for the service, not beyond the deadline; tell that it is lost, once for a run and attempt."""
    run, at = case.run, case.at
    if not isinstance(error, Unavailable):
        return Looked(after=_pause(case, LOST_SECONDS), warning=f"refused: {error.code}: {error}")
    if not _is_lost(run):
        lost = said(Condition.JUDGED, SERVICE_UNAVAILABLE, error.code, true=None)
        return replace(_step(case, lost), after=_pause(case, LOST_SECONDS))
    since = parse_rfc3339(run.condition(Condition.JUDGED)["lastTransitionTime"])
    if at < since + LOST_AFTER:
        return Looked(after=_pause(case, LOST_SECONDS))
    told = _told(case, _outage(case, events.UNAVAILABLE, since))
    return replace(told, again=False, after=_pause(case, LOST_SECONDS))


def _back(case: Case) -> Looked:
    """Tell that the service is back, where it was told that it is lost."""
    if not (case.run.has_ended or _is_lost(case.run)):
        return Looked()
    lost = case.objects[case.chosen.teller.key(case.run, case.run.attempt, events.UNAVAILABLE)]
    if lost is None:
        return Looked()
    return _told(case, _outage(case, events.RECOVERED, case.at))


def _is_lost(run: Run) -> bool:
    return run.condition(Condition.JUDGED).get("reason") == SERVICE_UNAVAILABLE


def _outage(case: Case, type_: str, at: datetime) -> dict[str, Any]:
    run = case.run
    signals = events.signals_of(run, run.attempt, reason=SERVICE_UNAVAILABLE)
    return case.chosen.teller.event(
        run,
        FACTS[type_],
        attempt=run.attempt,
        detected_at=at,
        signals=signals,
        node=case.objects[run.node] if run.node_name else None,
    )


# ---------------------------------------------------------------- ended: what comes of it


def _complete(case: Case) -> Looked:
    run = case.run
    result = case.objects[run.result]
    if result is not None and (result["spec"].get("derivedFromRun") or {}).get("uid") != run.uid:
        result = None
    if not run.is_said(Condition.EVENTS_EMITTED):
        if run.has_result and result is None:
            return _result_again(case)
        return _tell_the_end(case, result)
    if not run.has_result:
        return _result_late(case)
    return _seal(case, result)


def _result_again(case: Case) -> Looked:
    """Write a Result again that somebody took away before anything rested on it."""
    detail = case.answers.get(Ask.LOOK)
    if detail is None:
        return Looked(ask=Ask.LOOK)
    if not isinstance(detail, RunDetail):
        return _waits_for_the_service(case, detail)
    wanted_result = results.result_object(case.run, detail, _last(case.run, detail), reason=case.run.failed_for)
    there = case.objects[case.run.result]
    first = () if there is None else (Delete(target=Target.of(RESULT, there)),)
    return Looked(actions=(*first, Create(kind=RESULT, raw=wanted_result)), again=True)


def _last(run: Run, detail: RunDetail) -> RunAttempt:
    """Return the attempt that *run* ended with; the last one where the service was away then."""
    if run.failed_for is Reason.DEADLINE_EXCEEDED:
        return detail.attempts[-1]
    return next((each for each in detail.attempts if each.attempt == run.attempt), detail.attempts[-1])


def _tell_the_end(case: Case, result: Raw | None) -> Looked:
    """Say what the Result is worth, mark the Node, tell the end."""
    run, chosen = case.run, case.chosen
    actions: list[Action] = []
    # 1. What the Result is worth: an API server drops `status` of what is created.
    if result is not None:
        status = results.first_status(result, ttl=chosen.result_ttl, at=case.at)
        if status is not None:
            actions.append(MergeStatus(target=Target.of(RESULT, result), status=status))
    # 2. The Node, where this run has a word about it.
    node = case.objects[run.node] if run.node_name else None
    if node is not None and run.verdict is not None and _has_a_word(run):
        actions += node_action.reconcile(
            node, action=chosen.node_action, verdict=run.verdict, ended_at=run.ended_at
        )
    # 3. The event, and that it was told.
    event = chosen.teller.event(
        run,
        chosen.teller.ending(run),
        attempt=run.attempt,
        detected_at=run.ended_at,
        signals=events.ending_signals(run, None if result is None else results.spec_sha256(result)),
        node=node,
        node_uid=None if result is None else result["spec"].get("nodeUID"),
    )
    told = _told(case, event)
    if told.again:
        return replace(told, actions=(*actions, *told.actions))
    if told.warning is not None:
        differs = said(Condition.EVENTS_EMITTED, EVENT_DIFFERS, told.warning, true=False)
        step = _step(case, differs) if run.condition(Condition.EVENTS_EMITTED) == {} else Looked()
        pause = _ended_pause(case)
        return replace(step, actions=(*actions, *step.actions), after=pause, warning=told.warning)
    step = _step(case, said(Condition.EVENTS_EMITTED, "Emitted"))
    return replace(step, actions=(*actions, *told.actions, *step.actions))


def _has_a_word(run: Run) -> bool:
    """Return whether *run* may mark its Node.

    Only under an AttestationPolicy that is enforced. A service that is away says nothing about a Node; an agent that
    delivers nothing does: who keeps it from doing so must not keep an old word alive.
    """
    return (
        run.source == "ref"
        and run.standing is Standing.ENFORCED
        and run.failed_for is not Reason.DEADLINE_EXCEEDED
    )


def _result_late(case: Case) -> Looked:
    """Write the Result of a run that ended while the service was away, when it is back."""
    run = case.run
    detail = case.answers.get(Ask.LOOK)
    if detail is None:
        return Looked(ask=Ask.LOOK)
    if not isinstance(detail, RunDetail):
        return _waits_for_the_service(case, detail)
    back = _back(case)
    if back.again:
        return back
    there = case.objects[run.result]
    wanted_result = results.result_object(
        run, detail, _last(run, detail), reason=run.failed_for or Reason.DEADLINE_EXCEEDED
    )
    if there is not None and not results.is_same(there, wanted_result):
        return Looked(actions=(*back.actions, Delete(target=Target.of(RESULT, there))), again=True)
    if there is None:
        return Looked(actions=(*back.actions, Create(kind=RESULT, raw=wanted_result)), again=True)
    actions: list[Action] = list(back.actions)
    status = results.first_status(there, ttl=case.chosen.result_ttl, at=case.at)
    if status is not None:
        actions.append(MergeStatus(target=Target.of(RESULT, there), status=status))
    step = _step(case, policyID=detail.policy_id, resultRef={"name": run.result.name})
    return replace(step, actions=(*actions, *step.actions))


def _seal(case: Case, result: Raw | None) -> Looked:
    """Have event, Result, policy and evidence sealed, and say so at bundle, event and run."""
    run = case.run
    key = _ending_key(run, case.chosen)
    event = case.objects[key]
    # 1. What is to be sealed must be there: kept for its time and no longer.
    if result is None:
        return _step(case, said(Condition.SEALED, RESULT_GONE, "the Result is there no more", true=False))
    if event is None:
        return _tell_the_end(case, result)
    # 2. A bundle for this event.
    bundle_key = bundles.bundle_key(key)
    bundle = case.objects[bundle_key]
    if bundle is None:
        return Looked(actions=(Create(kind=BUNDLE, raw=bundles.bundle_object(bundle_key, event)),), again=True)
    # 3. The service signs, logs and archives; the same may be asked again.
    sealed = case.answers.get(Ask.SEAL)
    if sealed is None:
        return Looked(ask=Ask.SEAL, question=bundles.seal_request(bundle, event, result))
    if not isinstance(sealed, RunBundle):
        return _waits_for_the_service(case, sealed)
    actions: list[Action] = []
    status = bundles.bundle_status(bundle, sealed, at=case.at)
    if status is not None:
        actions.append(MergeStatus(target=Target.of(BUNDLE, bundle), status=status))
    if sealed.phase != bundles.SEALED:
        return Looked(actions=tuple(actions), after=_ended_pause(case))
    actions.append(
        MergeStatus(target=Target.of(SECURITY_EVENT, event), status=bundles.attested_status(bundle, sealed))
    )
    step = _step(case, said(Condition.SEALED, bundles.SEALED, bundle_key.name))
    return replace(step, actions=(*actions, *step.actions))


def _waits_for_the_service(case: Case, answer: Answer) -> Looked:
    """Wait for the service, longer and longer; where it knows nothing of the run, nothing is sealed."""
    assert isinstance(answer, AttestationError)
    if answer.code == "run-unknown" and not case.run.has_result:
        return _step(
            case, said(Condition.SEALED, NOTHING_TO_SEAL, "the service never opened it", true=False)
        )
    pause = _ended_pause(case)
    if isinstance(answer, Unavailable):
        return Looked(after=pause)
    return Looked(after=pause, warning=f"refused: {answer.code}: {answer}")


# ---------------------------------------------------------------- parts


def _ending_key(run: Run, chosen: Chosen) -> Key:
    return chosen.teller.key(run, run.attempt, chosen.teller.ending(run).type)


def _told(case: Case, event: Mapping[str, Any]) -> Looked:
    """Return what is missing until *event* is told; `again` where it must be created first.

    One that is there is the same fact told before, if its signals are the same; else a warning.
    """
    there = case.objects[Key.of(SECURITY_EVENT, event)]
    if there is None:
        return Looked(actions=(Create(kind=SECURITY_EVENT, raw=event),), again=True)
    if there["spec"].get("signals") != event["spec"]["signals"]:
        return Looked(warning=f"SecurityEvent {event['metadata']['name']} tells another fact")
    if (there.get("status") or {}).get("phase"):
        return Looked()
    return Looked(
        actions=(MergeStatus(target=Target.of(SECURITY_EVENT, there), status={"phase": ACTIVE}),)
    )


def _step(case: Case, *conditions: Mapping[str, Any], **status: Any) -> Looked:
    """Return one change of the run's status, against what was judged."""
    run = case.run
    if conditions:
        status["conditions"] = with_conditions(
            run.conditions, conditions, generation=run.generation, at=case.at
        )
    status = {key: str(value) if isinstance(value, StrEnum) else value for key, value in status.items()}
    return Looked(actions=(MergeStatus(target=run.target, status=status),), after=STEP_SECONDS)


def _pause(case: Case, bounds: tuple[float, float]) -> float:
    """Return when to look again at a run that goes on: the longer it takes, the later; never beyond its end."""
    run, at = case.run, case.at
    longest = later(at, run.deadline if at < run.deadline else run.deadline + GRACE)
    return max(min(_between(later(run.started_at, at) / 4, bounds), longest), 0.05)


def _ended_pause(case: Case) -> float:
    return _between(later(case.run.ended_at, case.at) / 2, COMPLETE_SECONDS)


def _between(seconds: float, bounds: tuple[float, float]) -> float:
    return min(max(seconds, bounds[0]), bounds[1])
