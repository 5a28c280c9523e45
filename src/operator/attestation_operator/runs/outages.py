"""The service is away, and back: how long is waited, and what is told of it (CONFIDENTIAL.md §2.5)."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from attestation.clock import parse_rfc3339
from attestation.errors import AttestationError, Unavailable
from attestation.runs import FACTS, EventType
from attestation_operator.conditions import said
from attestation_operator.runs import events
from attestation_operator.runs.cases import LOST_SECONDS, Case, Decision, pause_for, tell, write
from attestation_operator.runs.objects import SERVICE_UNAVAILABLE, Condition, Run

LOST_AFTER: Final = timedelta(seconds=5)
"""How long the service is away until that is told: one that restarts is none that is lost."""


def lost(case: Case, error: AttestationError) -> Decision:
    """Wait for the service, not beyond the deadline; tell that it is lost, once for a run and attempt."""
    run, at = case.run, case.at
    if not isinstance(error, Unavailable):
        return Decision(after=pause_for(case, LOST_SECONDS), warning=f"refused: {error.code}: {error}")
    if not is_lost(run):
        lost = said(Condition.JUDGED, SERVICE_UNAVAILABLE, error.code, true=None)
        return replace(write(case, lost), after=pause_for(case, LOST_SECONDS))
    since = parse_rfc3339(run.condition(Condition.JUDGED)["lastTransitionTime"])
    if at < since + LOST_AFTER:
        return Decision(after=pause_for(case, LOST_SECONDS))
    told = tell(case, _outage(case, EventType.UNAVAILABLE, since))
    return replace(told, again=False, after=pause_for(case, LOST_SECONDS))


def recovered(case: Case) -> Decision:
    """Tell that the service is back, where it was told that it is lost."""
    if not (case.run.has_ended or is_lost(case.run)):
        return Decision()
    lost = case.objects[case.options.recorder.key(case.run, case.run.attempt, EventType.UNAVAILABLE)]
    if lost is None:
        return Decision()
    return tell(case, _outage(case, EventType.RECOVERED, case.at))


def is_lost(run: Run) -> bool:
    """Return whether the run says that the service is away."""
    return run.condition(Condition.JUDGED).get("reason") == SERVICE_UNAVAILABLE


def _outage(case: Case, type_: EventType, at: datetime) -> dict[str, Any]:
    run = case.run
    signals = events.signals_of(run, run.attempt, reason=SERVICE_UNAVAILABLE)
    return case.options.recorder.event(
        run,
        FACTS[type_],
        attempt=run.attempt,
        detected_at=at,
        signals=signals,
        node=case.objects[run.node] if run.node_name else None,
    )
