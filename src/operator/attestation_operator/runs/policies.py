"""The status of an AttestationPolicy (CONFIDENTIAL.md §2.3): whether it can be followed, and what it is known by."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from attestation.errors import PolicyInvalid
from attestation.reference.attestation_policy import policy_id
from attestation.runs import Reason
from attestation_operator.actions import Action, SetStatus
from attestation_operator.conditions import said, with_conditions
from attestation_operator.objects import POLICY, Raw, Target
from attestation_operator.runs.objects import CONTROLLER
from attestation_operator.runs.request import NO_GPU

READY: Final = "Ready"
GPU_NOT_COLLECTED: Final = "GPUNotCollected"
"""Reason of Ready: it asks for evidence that no run collects."""


def reconcile(raw: Raw, at: datetime) -> tuple[Action, ...]:
    """Return what is to be said of an AttestationPolicy; nothing where that stands there."""
    there = raw.get("status") or {}
    generation = int(raw["metadata"].get("generation") or 1)
    status: dict[str, Any] = {"observedGeneration": generation}
    try:
        status["policyID"] = policy_id(raw.get("spec") or {})
        ready = said(READY, "Valid")
        if (raw.get("spec") or {}).get("gpu") is not None:
            ready = said(READY, GPU_NOT_COLLECTED, NO_GPU, true=False)
    except PolicyInvalid as e:
        ready = said(READY, Reason.POLICY_INVALID, str(e), true=False)
    ours = [each for each in there.get("conditions") or () if each.get("type") == READY]
    status["conditions"] = with_conditions(ours, [ready], generation=generation, at=at)
    members = ("observedGeneration", "policyID")
    if ours == status["conditions"] and all(there.get(each) == status.get(each) for each in members):
        return ()
    return (SetStatus(target=Target.of(POLICY, raw), manager=CONTROLLER, status=status),)
