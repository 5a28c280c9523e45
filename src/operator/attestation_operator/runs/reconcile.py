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

from dataclasses import replace
from typing import Any

from attestation.api.runs import RunAttempt, RunDetail, RunOpened
from attestation.clock import rfc3339
from attestation.errors import AttestationError, PolicyInvalid, Unavailable
from attestation.runs import FACTS, EventType, Reason
from attestation_operator.actions import Create, Delete
from attestation_operator.conditions import said
from attestation_operator.objects import RESULT, Target
from attestation_operator.runs import events, request, results
from attestation_operator.runs.cases import (
    GRACE,
    LOST_SECONDS,
    POLL_SECONDS,
    Answer,
    Ask,
    Case,
    Decision,
    Unread,
    event,
    pause_for,
    tell,
    write,
)
from attestation_operator.runs.ended import complete
from attestation_operator.runs.objects import Condition, Phase
from attestation_operator.runs.outages import is_lost, lost, recovered


def reconcile(case: Case) -> Decision:
    """Return what is to be done about a run now."""
    if case.run.is_complete:
        return Decision()
    try:
        match case.run.phase:
            case Phase.NEW:
                return _accept(case)
            case Phase.PENDING | Phase.RUNNING if case.run.was_changed:
                # Whatever is judged now is an answer to another question than the one that stands there.
                return _fail(case, Reason.POLICY_INVALID, request.CHANGED)
            case Phase.PENDING:
                return _open(case)
            case Phase.RUNNING:
                return _look(case)
        return complete(case)
    except Unread as e:
        return Decision(read=e.key)


# ---------------------------------------------------------------- "" → Pending | Failed


def _accept(case: Case) -> Decision:
    run, at = case.run, case.at
    try:
        wants = request.read(run, case.objects)
    except request.RunRefused as e:
        refused = said(Condition.ACCEPTED, e.reason, str(e), true=False)
        failed = said(Condition.FAILED, e.reason, str(e))
        step = write(case, refused, failed, phase=Phase.FAILED, completionTime=rfc3339(at))
        return replace(step, actions=(*step.actions, event(case, e.reason, str(e), warning=True)))
    accepted = said(Condition.ACCEPTED, wants.standing, f"policy: {run.source}")
    return write(
        case,
        accepted,
        phase=Phase.PENDING,
        startTime=rfc3339(at),
        deadline=rfc3339(at + wants.timeout),
        attempt=1,
    )


# ---------------------------------------------------------------- Pending → Running | Failed


def _open(case: Case) -> Decision:
    run = case.run
    # 1. Opened, or opened already: the same run gets the open attempt again. When its time is over none is opened any
    #    more, and it may be open all the same: a replica may have ended before it could say so. And where policy or
    #    Node have changed since another replica opened it, what it opened counts.
    opened = None if case.at >= run.deadline else case.answers.get(Ask.OPEN)
    if opened is None and case.at < run.deadline:
        return _asking_to_open(case)
    if opened is None or (isinstance(opened, AttestationError) and opened.code == "run-differs"):
        opened = case.answers.get(Ask.LOOK)
        if opened is None:
            return Decision(ask=Ask.LOOK)
    # 2. Not opened.
    if isinstance(opened, AttestationError):
        if case.at >= run.deadline:
            return _fail(case, Reason.DEADLINE_EXCEEDED, f"the service: {opened.code}")
        if isinstance(opened, PolicyInvalid) or opened.code == PolicyInvalid.code:
            return _fail(case, Reason.POLICY_INVALID, str(opened))
        return lost(case, opened)
    attempt, policy_id = _opened(opened)
    # 3. The fact is told once for a run, whichever attempt this is by now; then the phase says that it was told.
    fact = FACTS[EventType.STARTED]
    signals = events.signals_of(run, 1)
    started = case.options.recorder.event(
        run, fact, attempt=1, detected_at=run.started_at, signals=signals, node=case.objects[run.node]
    )
    told = tell(case, started)
    back = recovered(case)
    if told.again or back.again:
        return replace(told, actions=(*told.actions, *back.actions), again=True)
    waiting = said(Condition.JUDGED, "Waiting", true=False)
    running = write(case, waiting, phase=Phase.RUNNING, attempt=attempt, policyID=policy_id)
    return replace(
        running,
        actions=(*told.actions, *back.actions, *running.actions),
        warning=told.warning or back.warning,
    )


def _asking_to_open(case: Case) -> Decision:
    try:
        wants = request.read(case.run, case.objects)
        return Decision(
            ask=Ask.OPEN,
            question=request.question(
                case.run, wants, case.objects, case.options.recorder.cluster_id, case.at
            ),
        )
    except request.RunRefused as e:
        return _fail(case, e.reason, str(e))


def _opened(answer: Answer) -> tuple[int, str]:
    if isinstance(answer, RunDetail):
        return answer.attempts[-1].attempt, answer.policy_id
    assert isinstance(answer, RunOpened)
    return answer.attempt, answer.policy_id


# ---------------------------------------------------------------- Running → Succeeded | Failed


def _look(case: Case) -> Decision:
    """Look what the service says of the run, and end it where it is judged or its time is over."""
    run, at = case.run, case.at
    detail = case.answers.get(Ask.LOOK)
    if detail is None:
        return Decision(ask=Ask.LOOK)
    if isinstance(detail, AttestationError):
        # The time of a run ends with or without the service.
        if at >= run.deadline:
            return _fail(case, Reason.DEADLINE_EXCEEDED, f"the service: {detail.code}")
        if detail.code == "run-unknown":
            return _reopened(case)
        return lost(case, detail)
    assert isinstance(detail, RunDetail)
    if other := request.of_another(run, detail):
        # Its verdict is another's, whatever it says.
        return _untold(case, f"the service tells of another run: {other}")
    back = recovered(case)
    if back.again:
        return back
    found = _look_at(case, detail)
    return replace(found, actions=(*back.actions, *found.actions), warning=found.warning or back.warning)


def _untold(case: Case, words: str) -> Decision:
    """Wait for the end of a run of which nothing is known that could be told: it ends with its time."""
    if case.at >= case.run.deadline:
        return _fail(case, Reason.DEADLINE_EXCEEDED, words)
    return Decision(after=pause_for(case, LOST_SECONDS), warning=words)


def _look_at(case: Case, detail: RunDetail) -> Decision:
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


def _reopened(case: Case) -> Decision:
    answer = case.answers.get(Ask.OPEN)
    if answer is None:
        return _asking_to_open(case)
    if isinstance(answer, RunOpened):
        return _waiting(case, answer.attempt)
    # It cannot be opened again (as where its policy was edited): it ends with its time.
    assert isinstance(answer, AttestationError)
    if isinstance(answer, Unavailable):
        return lost(case, answer)
    return replace(_waiting(case, case.run.attempt), warning=f"not opened again: {answer.code}: {answer}")


def _waiting(case: Case, attempt: int) -> Decision:
    run = case.run
    if run.phase is Phase.RUNNING and (attempt != run.attempt or is_lost(run)):
        waiting = said(Condition.JUDGED, "Waiting", true=False)
        return replace(write(case, waiting, attempt=attempt), after=pause_for(case, POLL_SECONDS))
    return Decision(after=pause_for(case, POLL_SECONDS))


def _conclude(case: Case, detail: RunDetail, judged: RunAttempt) -> Decision:
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
) -> Decision:
    """Write the Result, then the phase."""
    run = case.run
    wanted_result = results.result_object(run, detail, attempt, reason=reason)
    if unfit := results.fault(wanted_result):
        return _untold(case, f"what the service tells is no Result: {unfit}")
    there = case.objects[run.result]
    # One of another run of this name, or one that the service does not bear out, goes first.
    if there is not None and not results.is_same(there, wanted_result):
        return Decision(actions=(Delete(target=Target.of(RESULT, there)),), again=True)
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


def _fail(case: Case, reason: Reason, words: str) -> Decision:
    """End an accepted run of which the service says nothing (yet)."""
    return _terminal(case, reason, words, verdict="indeterminate")


def _terminal(case: Case, reason: Reason | None, words: str, *, verdict: str, **status: Any) -> Decision:
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
    step = write(case, *conditions, phase=phase, verdict=verdict, completionTime=at, **status)
    # Behind the phase: what is told has happened.
    ended = event(
        case,
        reason or verdict.capitalize(),
        f"{case.run.node_name}: {verdict}" + (f": {words}" if words else ""),
        warning=reason is not None,
    )
    return replace(step, actions=(*step.actions, ended))
