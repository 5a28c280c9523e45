"""What the controller of attestation runs looks at: a run and a Node, as far as they matter here.

What is in a `spec` is a stranger's: an API server before 1.25 compares it with the schema and with none of the rules.
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from attestation.clock import parse_rfc3339
from attestation.runs import PolicySource, Reason
from attestation_operator.crds.runs import LONGEST
from attestation_operator.crds.security_events import MAX_FACT, MAX_IP, MAX_ROLES
from attestation_operator.durations import NotADuration, parse_duration
from attestation_operator.objects import MANAGER, NODE, POLICY, RESULT, RUN, Key, Raw, Target, clipped
from attestation_operator.runs.kinds import was_changed

CONTROLLER: Final = f"{MANAGER}-runs"
"""What the controller of runs is called: as the source of events, and as who writes a status."""
MAX_NAME: Final = 253
RESULT_SUFFIX: Final = "-result"
_SHORTENED: Final = re.compile(rf"-[0-9a-f]{{20}}{RESULT_SUFFIX}$")


class Phase(StrEnum):
    """`status.phase` of a run."""

    NEW = ""
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Condition(StrEnum):
    """Types of the conditions of a run."""

    ACCEPTED = "Accepted"
    EVIDENCE_RECEIVED = "EvidenceReceived"
    JUDGED = "Judged"
    SEALED = "Sealed"
    EVENTS_EMITTED = "EventsEmitted"
    FAILED = "Failed"


class Standing(StrEnum):
    """What a verdict about the run is worth: reason of its condition Accepted, so that each replica knows it later."""

    ENFORCED = "PolicyEnforced"
    REPORTED = "PolicyReported"
    NONE = "NoPolicy"


SERVICE_UNAVAILABLE: Final = "ServiceUnavailable"
"""Reason of the condition Judged while the service is away."""
NOTHING_TO_SEAL: Final = "NothingToSeal"
RESULT_GONE: Final = "ResultGone"
SEAL_REFUSED: Final = "SealRefused"
SEAL_FAILED: Final = "SealFailed"
"""The bundle is in phase Failed: a person has to look, and the service is asked on for its time."""
SEAL_ABANDONED: Final = "SealAbandoned"
"""The time of what comes of a run is over: nobody asks any more, whatever is missing."""
NEVER_SEALED: Final = frozenset({NOTHING_TO_SEAL, RESULT_GONE})
"""Reasons of the condition Sealed, with which a run is complete without a seal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A ConfidentialAttestationRun.

    Args:
        target: Which one, and when it was so.
        created_at: When it was created.
        spec: As it stands there.
        status: Likewise; empty before the first word of ours.
        was_changed: Its spec is not what was created, which an API server with rules in CEL does not let happen.
    """

    target: Target
    created_at: datetime
    generation: int
    spec: Raw
    status: Raw
    was_changed: bool = False

    @property
    def name(self) -> str:
        """Its name."""
        return self.target.name

    @property
    def namespace(self) -> str:
        """Where it is."""
        assert self.target.namespace is not None
        return self.target.namespace

    @property
    def uid(self) -> str:
        """What it is known by, here and at the service."""
        return self.target.uid

    @property
    def backend(self) -> str:
        """`tpm`, `sev-snp` or `tdx`."""
        return str(self.spec.get("backend") or "")

    @property
    def node_name(self) -> str:
        """Whose hardware is asked."""
        return str(self.spec.get("targetNodeName") or "")

    @property
    def node(self) -> Key:
        """The Node of that name."""
        return Key(kind=NODE, name=self.node_name)

    @property
    def nonce(self) -> str | None:
        """What the requester wants mixed into the challenge."""
        return self.spec.get("nonce") or None

    @property
    def source(self) -> PolicySource:
        """Where its policy comes from."""
        if self.policy is not None:
            return "ref"
        return "none" if self.spec.get("policy") is None else "inline"

    @property
    def policy(self) -> Key | None:
        """The AttestationPolicy that it names."""
        name = (self.spec.get("policyRef") or {}).get("name")
        return Key(kind=POLICY, name=name, namespace=self.namespace) if name else None

    @property
    def phase(self) -> Phase:
        """How far it is."""
        return Phase(self.status.get("phase") or "")

    @property
    def has_ended(self) -> bool:
        """Whether its phase never changes any more."""
        return self.phase in (Phase.SUCCEEDED, Phase.FAILED)

    @property
    def attempt(self) -> int:
        """Which attempt it is in, from 1."""
        return int(self.status.get("attempt") or 1)

    @property
    def deadline(self) -> datetime:
        """When it ends at the latest; where that is not said, or was taken away, its timeout after it was created."""
        return self._instant("deadline") or self.created_at + self._timeout

    @property
    def started_at(self) -> datetime:
        """When it was accepted, or created."""
        return self._instant("startTime") or self.created_at

    @property
    def ended_at(self) -> datetime:
        """When it ended, or should have; of a run that has."""
        return self._instant("completionTime") or self.deadline

    def _instant(self, member: str) -> datetime | None:
        # Who may write a status may take anything of it away. What is left has to come to an end all the same.
        try:
            return parse_rfc3339(self.status.get(member) or "")
        except ValueError:
            return None

    @property
    def _timeout(self) -> timedelta:
        try:
            return min(parse_duration(str(self.spec.get("timeout"))), parse_duration(LONGEST))
        except NotADuration:
            return parse_duration(LONGEST)

    @property
    def verdict(self) -> str | None:
        """What was found; of a run that has ended."""
        return self.status.get("verdict") or None

    @property
    def policy_id(self) -> str | None:
        """What was asked (§12.3)."""
        return self.status.get("policyID") or None

    @property
    def result(self) -> Key:
        """Where its Result is, or is to be."""
        return Key(kind=RESULT, name=result_name(self.target), namespace=self.namespace)

    @property
    def has_result(self) -> bool:
        """Whether its status names a Result: then there was one."""
        return bool((self.status.get("resultRef") or {}).get("name"))

    @property
    def conditions(self) -> tuple[Raw, ...]:
        """Its conditions, as they stand there."""
        return tuple(self.status.get("conditions") or ())

    def condition(self, type_: str) -> Raw:
        """Return one of them, empty where it is not there."""
        return next((each for each in self.conditions if each.get("type") == type_), {})

    def is_said(self, type_: str) -> bool:
        """Return whether a condition is True."""
        return self.condition(type_).get("status") == "True"

    @property
    def standing(self) -> Standing | None:
        """What a verdict is worth; None of a run that was not accepted."""
        accepted = self.condition(Condition.ACCEPTED)
        if accepted.get("status") != "True":
            return None
        # A word that is none of ours was written by somebody else, and gives no verdict any weight.
        return Standing(accepted["reason"]) if accepted["reason"] in set(Standing) else Standing.NONE

    @property
    def failed_for(self) -> Reason | None:
        """Why it failed."""
        found = self.condition(Condition.FAILED)
        if found.get("status") != "True":
            return None
        # Likewise: of a run that failed for such a word nothing is known.
        return Reason(found["reason"]) if found["reason"] in set(Reason) else Reason.DEADLINE_EXCEEDED

    @property
    def is_complete(self) -> bool:
        """Whether nothing is to be done about it any more: it has ended, and all was written that comes of it."""
        if not self.has_ended:
            return False
        if self.standing is None:
            return True
        sealed = self.condition(Condition.SEALED)
        if sealed.get("reason") == SEAL_ABANDONED:
            return True
        return self.is_said(Condition.EVENTS_EMITTED) and (
            sealed.get("status") == "True" or sealed.get("reason") in NEVER_SEALED
        )


def read_run(raw: Raw) -> Run:
    """Read a ConfidentialAttestationRun."""
    return Run(
        target=Target.of(RUN, raw),
        created_at=parse_rfc3339(raw["metadata"]["creationTimestamp"]),
        generation=int(raw["metadata"].get("generation") or 1),
        spec=raw.get("spec") or {},
        status=raw.get("status") or {},
        was_changed=was_changed(raw),
    )


def result_name(run: Target) -> str:
    """Return the name of the Result of *run*: `<run>-result`, and of a name that is too long for that its beginning."""
    whole = run.name + RESULT_SUFFIX
    # Nor may a run be called so that its Result has the name of another one's, which would then go.
    if len(whole) <= MAX_NAME and not (len(whole) == MAX_NAME and _SHORTENED.search(whole)):
        return whole
    # Two long names with one beginning are two runs: the UID tells them apart.
    ending = f"-{hashlib.sha256(run.uid.encode()).hexdigest()[:20]}{RESULT_SUFFIX}"
    beginning = run.name[: MAX_NAME - len(ending)]
    # No dot may stand before a hyphen. Each is as long as a name may be: by that they are known.
    return (f"{beginning[:-1]}-" if beginning.endswith(".") else beginning) + ending


def node_facts(raw: Raw) -> dict[str, Any]:
    """Return what a SecurityEvent says of a Node (`subject.node`), as far as the Node says it.

    A kubelet writes most of it, of any length: what is longer than the kind allows is cut off, so that no node can have
    its events refused.
    """
    status = raw.get("status") or {}
    info = status.get("nodeInfo") or {}
    addresses = {each.get("type"): each.get("address") for each in status.get("addresses") or ()}
    prefix = "node-role.kubernetes.io/"
    labels = raw["metadata"].get("labels") or {}
    roles = sorted(key.removeprefix(prefix) for key in labels if key.startswith(prefix) and key != prefix)
    facts = {
        "kernelVersion": info.get("kernelVersion"),
        "osImage": info.get("osImage"),
        "kubeletVersion": info.get("kubeletVersion"),
        "containerRuntime": info.get("containerRuntimeVersion"),
        "architecture": info.get("architecture"),
        "operatingSystem": info.get("operatingSystem"),
        "internalIP": addresses.get("InternalIP"),
        "hostname": addresses.get("Hostname"),
    }
    longest = {"internalIP": MAX_IP}
    told = {key: clipped(value, longest.get(key, MAX_FACT)) for key, value in facts.items() if value}
    return ({"roles": roles[:MAX_ROLES]} if roles else {}) | told


def later(at: datetime, until: datetime) -> float:
    """Return the seconds from *at* until *until*, none below 0."""
    return max((until - at) / timedelta(seconds=1), 0.0)
