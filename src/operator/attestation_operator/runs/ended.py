"""What comes of a run that has ended: what its Result is worth, its Node, the verdict's event, the seal.

All of it waits for something that may never come: the service, the archive, whoever wrote under a name of ours. So it
has its time, `RunOptions.seal_timeout`; then the run says what is missing, and nobody asks any more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from attestation.api.runs import RunAttempt, RunBundle, RunDetail
from attestation.errors import AttestationError, Unavailable
from attestation.runs import Reason
from attestation_operator.actions import Action, Create, Delete, MergeStatus
from attestation_operator.conditions import said
from attestation_operator.objects import BUNDLE, RESULT, SECURITY_EVENT, Raw, Target
from attestation_operator.runs import bundles, events, node_action, request, results
from attestation_operator.runs.cases import (
    Answer,
    Ask,
    Case,
    Decision,
    ended_pause,
    ending_key,
    event,
    tell,
    write,
)
from attestation_operator.runs.objects import (
    NOTHING_TO_SEAL,
    RESULT_GONE,
    SEAL_ABANDONED,
    SEAL_FAILED,
    SEAL_REFUSED,
    Condition,
    Run,
    Standing,
)
from attestation_operator.runs.outages import recovered

EVENT_DIFFERS: Final = "EventDiffers"


def complete(case: Case) -> Decision:
    """Return what is missing of what comes of a run that has ended; the first of it."""
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


def _result_again(case: Case) -> Decision:
    """Write a Result again that somebody took away before anything rested on it."""
    detail = case.answers.get(Ask.LOOK)
    if detail is None:
        return Decision(ask=Ask.LOOK)
    if not isinstance(detail, RunDetail):
        return _waits_for_the_service(case, detail)
    if other := request.of_another(case.run, detail):
        return _of_another(case, other)
    wanted_result = results.result_object(
        case.run, detail, _last(case.run, detail), reason=case.run.failed_for
    )
    there = case.objects[case.run.result]
    first = () if there is None else (Delete(target=Target.of(RESULT, there)),)
    return Decision(actions=(*first, Create(kind=RESULT, raw=wanted_result)), again=True)


def _of_another(case: Case, member: str) -> Decision:
    words = f"the service tells of another run: {member}"
    return _waits(case, words, warning=words)


def _last(run: Run, detail: RunDetail) -> RunAttempt:
    """Return the attempt that *run* ended with; the last one where the service was away then."""
    if run.failed_for is Reason.DEADLINE_EXCEEDED:
        return detail.attempts[-1]
    return next((each for each in detail.attempts if each.attempt == run.attempt), detail.attempts[-1])


def _tell_the_end(case: Case, result: Raw | None) -> Decision:
    """Say what the Result is worth, mark the Node, tell the end."""
    run, options = case.run, case.options
    actions: list[Action] = []
    # 1. What the Result is worth: an API server drops `status` of what is created.
    if result is not None:
        status = results.first_status(result, ttl=options.result_ttl, at=case.at)
        if status is not None:
            actions.append(MergeStatus(target=Target.of(RESULT, result), status=status))
    # 2. The Node, where this run has a word about it: the one that was asked. Another of its name proved nothing.
    node = case.objects[run.node] if run.node_name else None
    asked_uid = None if result is None else result["spec"].get("nodeUID")
    if node is not None and asked_uid not in (None, node["metadata"]["uid"]):
        node = None
    if node is not None and run.verdict is not None and _has_a_word(run, options.acts_for):
        actions += node_action.reconcile(
            node, action=options.node_action, verdict=run.verdict, ended_at=run.ended_at
        )
    # 3. The event, and that it was told.
    fact = options.recorder.event(
        run,
        options.recorder.ending(run),
        attempt=run.attempt,
        detected_at=run.ended_at,
        signals=events.ending_signals(run, None if result is None else results.spec_sha256(result)),
        node=node,
        node_uid=asked_uid,
    )
    told = tell(case, fact)
    if told.again:
        return replace(told, actions=(*actions, *told.actions))
    if told.warning is not None:
        if run.condition(Condition.EVENTS_EMITTED) == {}:
            differs = said(Condition.EVENTS_EMITTED, EVENT_DIFFERS, told.warning, true=False)
            actions += write(case, differs).actions
            return Decision(actions=tuple(actions), after=ended_pause(case), warning=told.warning)
        return _waits(case, told.warning, actions=tuple(actions), warning=told.warning)
    step = write(case, said(Condition.EVENTS_EMITTED, "Emitted"))
    return replace(step, actions=(*actions, *told.actions, *step.actions))


def _has_a_word(run: Run, namespaces: frozenset[str]) -> bool:
    """Return whether *run* may mark its Node.

    Only in one of *namespaces*: a Node is everybody's, and who may write policies in any other namespace could have any
    Node verified, or none. Only under an AttestationPolicy that is enforced. A service that is away says nothing about
    a Node; an agent that delivers nothing does: who keeps it from doing so must not keep an old word alive.
    """
    return (
        run.namespace in namespaces
        and run.source == "ref"
        and not run.was_changed
        and run.standing is Standing.ENFORCED
        and run.failed_for is not Reason.DEADLINE_EXCEEDED
    )


def _result_late(case: Case) -> Decision:
    """Write the Result of a run that ended while the service was away, when it is back."""
    run = case.run
    detail = case.answers.get(Ask.LOOK)
    if detail is None:
        return Decision(ask=Ask.LOOK)
    if not isinstance(detail, RunDetail):
        return _waits_for_the_service(case, detail)
    if other := request.of_another(run, detail):
        return _of_another(case, other)
    back = recovered(case)
    if back.again:
        return back
    there = case.objects[run.result]
    wanted_result = results.result_object(
        run, detail, _last(run, detail), reason=run.failed_for or Reason.DEADLINE_EXCEEDED
    )
    if there is not None and not results.is_same(there, wanted_result):
        return Decision(actions=(*back.actions, Delete(target=Target.of(RESULT, there))), again=True)
    if there is None:
        return Decision(actions=(*back.actions, Create(kind=RESULT, raw=wanted_result)), again=True)
    actions: list[Action] = list(back.actions)
    status = results.first_status(there, ttl=case.options.result_ttl, at=case.at)
    if status is not None:
        actions.append(MergeStatus(target=Target.of(RESULT, there), status=status))
    step = write(case, policyID=detail.policy_id, resultRef={"name": run.result.name})
    return replace(step, actions=(*actions, *step.actions))


def _seal(case: Case, result: Raw | None) -> Decision:
    """Have event, Result, policy and evidence sealed, and say so at bundle, event and run."""
    run = case.run
    key = ending_key(run, case.options)
    fact = case.objects[key]
    # 1. What is to be sealed must be there: kept for its time and no longer.
    if result is None:
        return write(case, said(Condition.SEALED, RESULT_GONE, "the Result is there no more", true=False))
    if fact is None:
        return _tell_the_end(case, result)
    # 2. A bundle for this event.
    bundle_key = bundles.bundle_key(key)
    bundle = case.objects[bundle_key]
    if bundle is None:
        return Decision(
            actions=(Create(kind=BUNDLE, raw=bundles.bundle_object(bundle_key, fact)),), again=True
        )
    # 3. The service signs, logs and archives; the same may be asked again.
    sealed = case.answers.get(Ask.SEAL)
    if sealed is None:
        return Decision(ask=Ask.SEAL, question=bundles.seal_request(bundle, fact, result))
    if not isinstance(sealed, RunBundle):
        return _unsealed(case, sealed)
    actions: list[Action] = []
    status = bundles.bundle_status(bundle, sealed, at=case.at)
    if status is not None:
        actions.append(MergeStatus(target=Target.of(BUNDLE, bundle), status=status))
    told = bundles.event_status(fact, bundle, sealed)
    if told is not None:
        actions.append(MergeStatus(target=Target.of(SECURITY_EVENT, fact), status=told))
    if sealed.phase != bundles.SEALED:
        return _unfinished(case, sealed, tuple(actions))
    step = write(case, said(Condition.SEALED, bundles.SEALED, bundle_key.name))
    return replace(step, actions=(*actions, *step.actions))


def _unfinished(case: Case, sealed: RunBundle, actions: tuple[Action, ...]) -> Decision:
    """Wait until a bundle is in the archive; where another file is under its name, say so."""
    last = sealed.failures[-1] if sealed.failures else None
    words = f"the bundle is {sealed.phase}" + ("" if last is None else f": {last.stage}: {last.reason}")
    if sealed.phase == "Failed" and case.run.condition(Condition.SEALED).get("reason") != SEAL_FAILED:
        step = write(case, said(Condition.SEALED, SEAL_FAILED, words, true=False))
        told = event(case, SEAL_FAILED, words, warning=True)
        return Decision(actions=(*actions, *step.actions, told), after=ended_pause(case))
    return _waits(case, words, actions=actions)


def _unsealed(case: Case, answer: Answer) -> Decision:
    """Say that the service seals nothing, where it says so; it may another time, as when it was mended."""
    waits = _waits_for_the_service(case, answer)
    assert isinstance(answer, AttestationError)
    there = case.run.condition(Condition.SEALED)
    if isinstance(answer, Unavailable) or there.get("reason") == SEAL_REFUSED:
        return waits
    words = f"{answer.code}: {answer}"
    refused = write(case, said(Condition.SEALED, SEAL_REFUSED, words, true=False))
    return replace(waits, actions=(*refused.actions, event(case, SEAL_REFUSED, words, warning=True)))


def _waits_for_the_service(case: Case, answer: Answer) -> Decision:
    """Wait for the service, longer and longer; where it knows nothing of the run, nothing is sealed."""
    assert isinstance(answer, AttestationError)
    if answer.code == "run-unknown" and not case.run.has_result:
        return write(case, said(Condition.SEALED, NOTHING_TO_SEAL, "the service never opened it", true=False))
    if isinstance(answer, Unavailable):
        return _waits(case, f"the service is away: {answer.code}")
    words = f"refused: {answer.code}: {answer}"
    return _waits(case, words, warning=words)


def _is_over(case: Case) -> bool:
    return case.at >= case.run.ended_at + case.options.seal_timeout


def _waits(
    case: Case, words: str, *, actions: tuple[Action, ...] = (), warning: str | None = None
) -> Decision:
    """Look again later, and later; when the time of what comes of a run is over, say what was missing, and end.

    It was asked for once more before: a controller that was away for so long gives up nothing that can be had now.
    """
    if not _is_over(case):
        return Decision(actions=actions, after=ended_pause(case), warning=warning)
    step = write(case, said(Condition.SEALED, SEAL_ABANDONED, words, true=False))
    told = event(case, SEAL_ABANDONED, words, warning=True)
    return replace(step, actions=(*actions, *step.actions, told), warning=warning)
