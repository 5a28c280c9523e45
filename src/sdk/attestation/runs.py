"""Words of attestation runs (CONFIDENTIAL.md §2), each once: in rows, on wires, in Kubernetes objects, on metrics.

What a type checker reads is a `Literal`; what a program reads of it (`BACKENDS`, `STAGES`) is made of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, get_args

Backend = Literal["tpm", "sev-snp", "tdx"]
"""Which hardware is asked."""
BACKENDS: Final[tuple[Backend, ...]] = get_args(Backend)

Verdict = Literal["verified", "failed", "indeterminate"]
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)

PolicySource = Literal["ref", "inline", "none"]
"""Where the policy of a run comes from: an AttestationPolicy, the run itself, nowhere."""

CheckSource = Literal["request", "challenge", "machine", "policy", "vendor", "evidence", "service"]
"""What a check compares evidence with: who says what is expected.

The form and the run that was asked for, its challenge, the record of the machine, the policy, the vendor of the
hardware, another part of the same evidence, what the service knows and was set to.
"""


class Reason(StrEnum):
    """Why a run failed: reason of its condition Failed, signal `reason` of its event."""

    POLICY_NOT_FOUND = "PolicyNotFound"
    POLICY_INVALID = "PolicyInvalid"
    NODE_NOT_FOUND = "NodeNotFound"
    DEVICE_UNAVAILABLE = "DeviceUnavailable"
    EVIDENCE_REJECTED = "EvidenceRejected"
    VERDICT_FAILED = "VerdictFailed"
    AGENT_ABSENT = "AgentAbsent"
    DEADLINE_EXCEEDED = "DeadlineExceeded"


JUDGED: Final = frozenset({Reason.DEVICE_UNAVAILABLE, Reason.EVIDENCE_REJECTED, Reason.VERDICT_FAILED})
"""Reasons of runs that the service judged. For any other a run ends whatever was found: its Result claims nothing."""
UNJUDGED: Final = frozenset(Reason) - JUDGED


# ---------------------------------------------------------------- events


class EventType(StrEnum):
    """Types of the SecurityEvents of runs (§2.5)."""

    STARTED = "AttestationStarted"
    VERIFIED = "AttestationVerified"
    FAILED = "AttestationFailed"
    INDETERMINATE = "AttestationIndeterminate"
    UNAVAILABLE = "AttestorUnavailable"
    RECOVERED = "AttestorRecovered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """How one fact is told: type, class and severity of its SecurityEvent."""

    type: EventType
    class_: str
    severity: str


_COMPLIANCE, _DETECTION, _ANOMALY = "Compliance", "Detection", "Anomaly"

FACTS: Final[Mapping[EventType, Fact]] = {
    each.type: each
    for each in (
        Fact(type=EventType.STARTED, class_=_COMPLIANCE, severity="info"),
        Fact(type=EventType.VERIFIED, class_=_COMPLIANCE, severity="info"),
        Fact(type=EventType.FAILED, class_=_DETECTION, severity="critical"),
        Fact(type=EventType.INDETERMINATE, class_=_COMPLIANCE, severity="medium"),
        Fact(type=EventType.UNAVAILABLE, class_=_ANOMALY, severity="high"),
        Fact(type=EventType.RECOVERED, class_=_ANOMALY, severity="info"),
    )
}
REPORTED: Final = Fact(type=EventType.INDETERMINATE, class_=_COMPLIANCE, severity="info")
"""Undecided because nothing was demanded."""


# ---------------------------------------------------------------- seals

SealPhase = Literal["Pending", "Signed", "Logged", "Sealed", "Failed"]
"""How far a bundle is. `Failed`: waiting would change nothing."""
SealStage = Literal["Signed", "Logged", "Archived"]
"""What is done for a bundle, in this order."""

STAGES: Final[Mapping[SealPhase, SealStage]] = {
    "Pending": "Signed",
    "Signed": "Logged",
    "Logged": "Archived",
}
"""Phase -> the stage that it waits for. A bundle that waits for none is `Sealed` or `Failed`."""
