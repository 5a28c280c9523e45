"""Whether what a controller wants sealed is what the service judged: no other verdict can be had sealed.

A Result tells what was judged in its attempt. One that tells nothing, because the run ended without a verdict, is told
beside an `AttestationFailed`: less than was found may be told, and never more.
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from attestation.api import RunResult, RunSeal
from attestation.errors import RunDiffers
from attestation.store import Run, RunAttempt
from attestation.wire import jcs

VERIFIED: Final = "AttestationVerified"
FAILED: Final = "AttestationFailed"
INDETERMINATE: Final = "AttestationIndeterminate"

_FOUND: Final = ("machineID", "quote", "signature", "evidence", "measurements", "tcb", "attestationResult")
_ABSENT: Final = "AgentAbsent"
_UNJUDGED: Final = (_ABSENT, "DeadlineExceeded", "NodeNotFound", "PolicyNotFound", "PolicyInvalid")
"""Reasons for which a run ends whatever was found, and its Result claims nothing."""


def agreed(request: RunSeal, run: Run, attempts: list[RunAttempt]) -> RunAttempt:
    """Return the attempt of *run* that *request* tells of, as it was judged.

    Raises:
        RunDiffers: It tells something else.
    """
    said = request.result.spec
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
    found = RunResult.model_validate_json(attempt.result) if attempt.result is not None else None
    types = _of_nothing(request, attempt) if _is_nothing(said) and _is_unjudged(request) else None
    if types is None:
        if found is None:
            raise RunDiffers("nothing was judged in this attempt")
        _demand_found(said, found)
        types = _types(found)
    # 3. The event tells of this run, in the words for what was found.
    _demand_event(request, run, said["verdict"], types)
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


def _types(found: RunResult) -> tuple[str, ...]:
    """Return how the event of a result may be called."""
    if found.verdict == "verified":
        return (VERIFIED,)
    if found.verdict == "failed" or found.unavailable is not None:
        return (FAILED,)
    # The last as the seed's operator tells it, `--seed-event-mapping`; its signals say what was found.
    return (INDETERMINATE, VERIFIED)


def _is_nothing(said: Mapping[str, Any]) -> bool:
    """Return True of a Result that claims nothing."""
    return said.get("verdict") == "indeterminate" and not any(said.get(member) for member in _FOUND)


def _is_unjudged(request: RunSeal) -> bool:
    signals = request.event.spec.get("signals")
    return isinstance(signals, Mapping) and signals.get("reason") in _UNJUDGED


def _of_nothing(request: RunSeal, attempt: RunAttempt) -> tuple[str, ...]:
    """Return how the event of a run is called that ended without a verdict."""
    absent = request.event.spec["signals"]["reason"] == _ABSENT
    if absent and attempt.used_at is not None:
        raise RunDiffers("the agent was there: this attempt was answered")
    return (FAILED,)


def _demand_event(request: RunSeal, run: Run, verdict: str, types: tuple[str, ...]) -> None:
    event = request.event.spec
    signals = event.get("signals")
    cluster = event.get("clusterIdentity")
    if not isinstance(signals, Mapping) or not isinstance(cluster, Mapping):
        raise RunDiffers("the event has no signals, or no clusterIdentity")
    if event.get("type") not in types:
        raise RunDiffers(f"type of the event is not {' or '.join(types)}")
    result = hashlib.sha256(jcs(request.result.spec)).hexdigest()
    # An event of a run that failed by itself may say nothing of a verdict; one that tells of it tells this one.
    told = signals.get("verdict", verdict if types == (FAILED,) else None)
    expected = {
        "clusterID": (cluster.get("clusterID"), run.cluster_id),
        "correlationID": (event.get("correlationID"), run.run_uid),
        "run.uid": (signals.get("run.uid"), run.run_uid),
        "verdict": (told, verdict),
        "policy.id": (signals.get("policy.id", run.policy_id), run.policy_id),
        "result.sha256": (signals.get("result.sha256", result), result),
    }
    for member, (there, wanted) in expected.items():
        if there != wanted:
            raise RunDiffers(f"{member} of the event is not what the service has")
