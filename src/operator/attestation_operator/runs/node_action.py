"""What a run does to its Node, where the administrator chose that (CONFIDENTIAL.md §4): label, taint or cordon.

Only a run under an AttestationPolicy that is enforced does: who may create runs may also write an inline policy that
everything satisfies, or one that nothing does. A Node that was not verified is marked; a later verified run lifts it.

All that is remembered is on the Node, under labels that no kubelet can write: when the last run ended whose word counts
here, so that a run that is completed late, by another replica, does not take back what a newer one found.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from attestation_operator.actions import Action, PatchNode
from attestation_operator.nodes.objects import (
    ATTESTED_LABEL,
    CORDONED_LABEL,
    RUN_AT_LABEL,
    RUN_CORDONED_LABEL,
    RUN_VERDICT_LABEL,
)
from attestation_operator.objects import NODE, Raw, Target

TAINT_KEY: Final = "security.ugallu.io/unattested"
TAINT: Final = {"key": TAINT_KEY, "effect": "NoSchedule"}
VERIFIED: Final = "verified"
UNDECIDED: Final = "indeterminate"
LAPSED: Final = "false"
"""What the controller of Nodes writes while a machine is not trusted; it takes that back itself (docs/adr/0181)."""


class NodeAction(StrEnum):
    """What is done to a Node."""

    NONE = "none"
    LABEL = "label"
    TAINT = "taint"
    CORDON = "cordon"


def reconcile(node: Raw, *, action: NodeAction, verdict: str, ended_at: datetime) -> tuple[Action, ...]:
    """Return what is to be changed on *node*; nothing where it says already what holds, or a newer run said it.

    Args:
        node: The Node.
        action: What the administrator chose.
        verdict: Of the run.
        ended_at: When the run ended.
    """
    if action is NodeAction.NONE:
        return ()
    labels = node["metadata"].get("labels") or {}
    at = str(int(ended_at.timestamp()))
    said_at = labels.get(RUN_AT_LABEL, "")
    if said_at.isdecimal() and int(said_at) > int(at):
        return ()
    return _act(node, labels, action, verdict, at)


def lapsed(node: Raw, *, action: NodeAction, before: datetime) -> tuple[Action, ...]:
    """Return what is to be changed on *node* because the last word about it is older than *before*.

    It is worth then what an undecided run is worth. Without this, a Node stays verified for as long as nobody can ask:
    the service is away, a schedule was suspended, or the Node lost the label by which it was chosen.
    """
    labels = node["metadata"].get("labels") or {}
    said_at = labels.get(RUN_AT_LABEL, "")
    if action is NodeAction.NONE or not said_at.isdecimal() or int(said_at) >= int(before.timestamp()):
        return ()
    if action is NodeAction.LABEL and labels.get(RUN_VERDICT_LABEL) != VERIFIED:
        return ()  # one that failed does not become undecided by itself
    return _act(node, labels, action, UNDECIDED, said_at)


def _act(node: Raw, labels: Raw, action: NodeAction, verdict: str, at: str) -> tuple[Action, ...]:
    is_good = verdict == VERIFIED
    wanted: dict[str, str | None] = {RUN_AT_LABEL: at}
    more: dict[str, Any] = {}
    match action:
        case NodeAction.LABEL:
            wanted[RUN_VERDICT_LABEL] = verdict
            if labels.get(ATTESTED_LABEL) != LAPSED:
                wanted[ATTESTED_LABEL] = verdict
        case NodeAction.TAINT:
            more = _taints(node, tainted=not is_good)
        case NodeAction.CORDON:
            cordon = _cordon(node, labels, cordoned=not is_good)
            wanted |= cordon.pop("labels", {})
            more = cordon
    changed = {key: value for key, value in wanted.items() if labels.get(key) != value}
    if not changed and not more:
        return ()
    return (PatchNode(target=Target.of(NODE, node), labels=changed, **more),)


def _taints(node: Raw, *, tainted: bool) -> dict[str, Any]:
    there = tuple((node.get("spec") or {}).get("taints") or ())
    ours = [taint.get("effect") for taint in there if taint.get("key") == TAINT_KEY]
    if ours == ([TAINT["effect"]] if tainted else []):
        return {}
    others = tuple(taint for taint in there if taint.get("key") != TAINT_KEY)
    return {"taints": (*others, TAINT) if tainted else others}


def _cordon(node: Raw, labels: Raw, *, cordoned: bool) -> dict[str, Any]:
    """Cordon, or take back a cordon of ours; one of somebody else stays, that of the controller of Nodes too."""
    is_cordoned = bool((node.get("spec") or {}).get("unschedulable"))
    if cordoned:
        if is_cordoned:
            return {}
        return {"labels": {RUN_CORDONED_LABEL: "true"}, "unschedulable": True}
    if RUN_CORDONED_LABEL not in labels:
        return {}
    lifted: dict[str, Any] = {"labels": {RUN_CORDONED_LABEL: None}}
    return lifted if CORDONED_LABEL in labels or not is_cordoned else lifted | {"unschedulable": False}
