"""Whether what a controller wants sealed is what the service judged: no other verdict can be had sealed.

A Result tells what was judged in its attempt. One that tells nothing, because the run ended without a verdict, is told
beside an `AttestationFailed`: less than was found may be told, and never more.
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from attestation.api import RunResult, RunSeal
from attestation.errors import RunDiffers
from attestation.runs import FACTS, REPORTED, UNJUDGED, EventType, Fact, Reason
from attestation.store import Run, RunAttempt
from attestation.wire import jcs
from attestation_service.runs.attempts import result_of

_TOLD_AS: Final[Mapping[EventType, tuple[Fact, ...]]] = {
    EventType.VERIFIED: (FACTS[EventType.VERIFIED],),
    EventType.FAILED: (FACTS[EventType.FAILED],),
    EventType.INDETERMINATE: (FACTS[EventType.INDETERMINATE], REPORTED),
}
"""How the end of a run may be told: a failure that is told as a note is one that nobody looks at."""
_MEMBERS: Final = frozenset(
    {
        *("derivedFromRun", "backend", "nodeName", "nodeUID", "nonce", "attempt", "challengeID", "policyID"),
        *("policySource", "machineID", "quote", "signature", "evidence", "measurements", "verdict", "checks"),
        *("tcb", "attestationResult", "verifierNotes"),
    }
)
"""What a Result says. Another member is nobody's finding."""
_OF_THE_AGENT: Final = ("device", "evidence")
"""Checks that a controller adds: why there is no evidence, or none that proves anything."""
_FOUND: Final = ("machineID", "quote", "signature", "evidence", "measurements", "tcb", "attestationResult")


def agreed(request: RunSeal, run: Run, attempts: list[RunAttempt], at: datetime) -> RunAttempt:
    """Return the attempt of *run* that *request* tells of, as it was judged.

    Args:
        request: What is to be sealed.
        run: The run, as it was opened.
        attempts: All of its attempts.
        at: Now: before its deadline no run is sealed as one without a verdict.

    Raises:
        RunDiffers: It tells something else.
    """
    said = request.result.spec
    if strangers := sorted(said.keys() - _MEMBERS):
        raise RunDiffers(f"the Result has a member that none has: {strangers[0][:40]!r}")
    # 1. The Result is of this run and of one of its attempts.
    _demand(
        said,
        derivedFromRun={"name": run.name, "uid": run.run_uid},
        backend=run.backend,
        nodeName=run.node_name,
        nodeUID=run.node_uid,
        nonce=run.nonce,
        policyID=run.policy_id,
        policySource=run.policy_source,
    )
    if request.result.namespace != run.namespace:
        raise RunDiffers(f"the Result is in {request.result.namespace}, the run in {run.namespace}")
    attempt = next(
        (
            each
            for each in attempts
            if (each.attempt, each.challenge_id) == (said.get("attempt"), said.get("challengeID"))
        ),
        None,
    )
    if attempt is None:
        raise RunDiffers("attempt, challengeID: the run has no such attempt")
    # 2. It tells what was found then. Otherwise a controller could have any verdict sealed.
    found = result_of(run, attempt)
    is_nothing = _is_nothing(said) and _is_unjudged(request)
    types = _of_nothing(request, run, attempt, at) if is_nothing else None
    if types is None:
        if found is None:
            raise RunDiffers("nothing was judged in this attempt")
        _demand_found(said, found)
        types = _types(found)
    # 3. The event tells of this run, in the words for what was found.
    _demand_event(request, run, attempt, types)
    return attempt


def _demand(said: Mapping[str, Any], **expected: Any) -> None:
    for member, wanted in expected.items():
        if said.get(member) != wanted:
            raise RunDiffers(f"{member} of the Result is not what the service has")


def _demand_found(said: Mapping[str, Any], found: RunResult) -> None:
    written = found.written()
    _demand(said, **{member: written.get(member) for member in ("verdict", *_FOUND)})
    # A controller may add what it knows of the agent; what was checked stands first, in its order.
    checks, judged = said.get("checks") or [], written.get("checks", [])
    if not isinstance(checks, list) or checks[: len(judged)] != judged:
        raise RunDiffers("checks of the Result are not what the service found")
    _demand_of_agent(checks[len(judged) :])
    _demand(said, verifierNotes=written.get("verifierNotes"))


def _demand_of_agent(checks: list[Any]) -> None:
    """Check that what a controller adds only says why nothing was found: a `pass` is the service's to say."""
    for each in checks:
        if (
            not isinstance(each, Mapping)
            or each.get("id") not in _OF_THE_AGENT
            or each.get("outcome") not in ("unavailable", "fail")
        ):
            raise RunDiffers("checks of the Result: one that the service did not make")


def _types(found: RunResult) -> tuple[EventType, ...]:
    """Return how the event of a result may be called."""
    if found.verdict == "verified":
        return (EventType.VERIFIED,)
    if found.verdict == "failed" or found.unavailable is not None:
        return (EventType.FAILED,)
    # The last as the seed's operator tells it, `--seed-event-mapping`; its signals say what was found.
    return (EventType.INDETERMINATE, EventType.VERIFIED)


def _is_nothing(said: Mapping[str, Any]) -> bool:
    """Return True of a Result that claims nothing."""
    return said.get("verdict") == "indeterminate" and not any(said.get(member) for member in _FOUND)


def _is_unjudged(request: RunSeal) -> bool:
    signals = request.event.spec.get("signals")
    return isinstance(signals, Mapping) and signals.get("reason") in UNJUDGED


def _of_nothing(request: RunSeal, run: Run, attempt: RunAttempt, at: datetime) -> tuple[EventType, ...]:
    """Return how the event of a run is called that ended without a verdict."""
    reason = request.event.spec["signals"]["reason"]
    if reason == Reason.AGENT_ABSENT and attempt.used_at is not None:
        raise RunDiffers("the agent was there: this attempt was answered")
    # A run has one seal: without this, one of nothing could be had before the node answers, and what it answers never.
    # The deadline is of the controller's clock, the end of the attempt of ours.
    if at < max(run.deadline, attempt.expires_at):
        raise RunDiffers("the deadline of the run has not come")
    checks = request.result.spec.get("checks") or []
    if not isinstance(checks, list):
        raise RunDiffers("checks of the Result are no list")
    _demand_of_agent(checks)
    _demand(request.result.spec, tcb=None, verifierNotes=reason)
    return (EventType.FAILED,)


def _demand_event(request: RunSeal, run: Run, attempt: RunAttempt, types: tuple[EventType, ...]) -> None:
    event, result = request.event.spec, request.result
    signals, cluster, subject = (_object(event, name) for name in ("signals", "clusterIdentity", "subject"))
    type_, verdict = event.get("type"), result.spec["verdict"]
    if type_ not in types:
        raise RunDiffers(f"type of the event is not {' or '.join(types)}")
    facts = _TOLD_AS[EventType(type_)]
    # One that is missing is told by whoever makes the statement.
    if event.get("class") not in (None, *(each.class_ for each in facts)) or event.get("severity") not in (
        None,
        *(each.severity for each in facts),
    ):
        raise RunDiffers(f"class or severity of the event is not that of {type_}")
    for member, there, wanted in (
        ("clusterID", cluster.get("clusterID"), run.cluster_id),
        ("correlationID", event.get("correlationID"), run.run_uid),
        ("run.uid", signals.get("run.uid"), run.run_uid),
        # An event of a run that failed by itself may say nothing of a verdict; one that tells of it tells this one.
        ("verdict", signals.get("verdict", verdict if types == (EventType.FAILED,) else None), verdict),
        # About another node it would be another node's verdict, for whoever reads events alone.
        ("subject", (subject.get("kind"), subject.get("name")), ("Node", run.node_name)),
    ):
        if there != wanted:
            raise RunDiffers(f"{member} of the event is not what the service has")
    may_say = {
        "run.namespace": run.namespace,
        "run.name": run.name,
        "node.name": run.node_name,
        "backend": run.backend,
        "policy.id": run.policy_id,
        "result.name": result.name,
        "result.sha256": hashlib.sha256(jcs(result.spec)).hexdigest(),
    }
    said = {**signals, "subject.uid": subject.get("uid", run.node_uid)}
    if signals.get("reason") not in UNJUDGED or signals.get("reason") == Reason.AGENT_ABSENT:
        # Who ended a run without the service knew only the Node that is there now, and the attempt that it saw last.
        may_say |= {"run.attempt": str(attempt.attempt), "subject.uid": run.node_uid}
    for member, wanted in may_say.items():
        if said.get(member, wanted) != wanted:
            raise RunDiffers(f"{member} of the event is not what the service has")


def _object(event: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = event.get(name)
    if not isinstance(found, Mapping):
        raise RunDiffers(f"the event has no {name}")
    return found
