"""What schedules rest on: the schedule, the Nodes it may choose, the runs that it created."""

# Algorithms for: digest
from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from pydantic import ValidationError

from attestation.api.said import said
from attestation.clock import parse_rfc3339
from attestation.runs import BACKENDS, Backend
from attestation_operator.crds.schedules import ScheduleSpec
from attestation_operator.durations import parse_duration
from attestation_operator.objects import RUN, SCHEDULE, Key, Raw, Target
from attestation_operator.runs import objects
from attestation_operator.runs.schedule_times import Times, TimesInvalid, cron, repeated

AUTO: Final = "auto"

BACKEND_LABEL: Final = "node-restriction.kubernetes.io/itl-backend-"
"""With `tpm`, `sev-snp` or `tdx` behind it and the value `true`: the Node has such hardware. NodeRestriction lets no
kubelet write it, so no node gets itself out of what others see of it."""
SCHEDULE_LABEL: Final = "security.ugallu.io/schedule"
"""On a Run: name of its AttestationSchedule, for who looks; whose it is stands in `ownerReferences`."""
MANAGED: Final[Mapping[str, str]] = {"app.kubernetes.io/managed-by": "attestation-schedule"}
"""Labels of all Runs of all schedules."""
SCHEDULED_AT: Final = "security.ugallu.io/scheduled-at"
"""Annotation of a Run: the instant at which it was due, RFC 3339."""

LONGEST_NAME: Final = 200
"""Of the schedule in the name of a run; the rest makes it unique."""
AHEAD: Final = timedelta(hours=1)
"""An instant that lies so far ahead was written by a clock that was wrong."""
_TIME: Final = re.compile(r"-([0-9]{14})$", re.ASCII)

ENDED: Final = frozenset({"Succeeded", "Failed"})


class Unreadable(Exception):
    """A schedule from which nothing follows; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A Node, as far as a schedule chooses by it."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """An AttestationSchedule.

    Args:
        target: Which one, and when it was so.
        times: When it is due.
        jitter: Over how long after a time the Nodes' runs are spread.
        selector: Labels that a Node must have; none choose all.
        backend: What is asked for; `auto` is what the Node has.
        policy: Name of an AttestationPolicy of its namespace, or None.
        timeout: Of each run, as Go writes durations.
        keep_succeeded: How many runs stay of those that succeeded, of each Node and backend.
        keep_failed: Likewise of those that failed.
        dealt_with: `status.lastScheduleTime`.
        raw: All of it, as it stands there.
    """

    target: Target
    created_at: datetime
    times: Times
    jitter: timedelta
    selector: Mapping[str, str]
    backend: str
    policy: str | None
    timeout: str
    keep_succeeded: int
    keep_failed: int
    suspended: bool
    dealt_with: datetime | None
    raw: Raw = field(repr=False)

    def chooses(self, node: Candidate) -> bool:
        """Return whether runs of *node* are wanted."""
        return all(node.labels.get(label) == value for label, value in self.selector.items())

    def backends(self, node: Candidate) -> tuple[Backend, ...]:
        """Return of which hardware evidence is asked for, in the order in which it is.

        A Node of which nobody said what it has is asked for its TPM: by that its machine has joined.
        """
        if self.backend != AUTO:
            return tuple(each for each in BACKENDS if each == self.backend)
        has = tuple(each for each in BACKENDS if node.labels.get(f"{BACKEND_LABEL}{each}") == "true")
        return has or ("tpm",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRun:
    """A ConfidentialAttestationRun that a schedule created.

    Args:
        target: Which one, and when it was so.
        schedule_uid: Of the schedule.
        phase: As its status has it, empty at first.
        scheduled_at: When it was due.
        ended_at: When it ended, where it says so.
        settled: It has ended, and all was written that comes of it.
    """

    target: Target
    schedule_uid: str
    node: str
    backend: str
    phase: str = ""
    scheduled_at: datetime
    ended_at: datetime | None = None
    settled: bool = False

    @property
    def name(self) -> str:
        """Its name."""
        return self.target.name

    @property
    def ended(self) -> bool:
        """Whether nothing more becomes of it."""
        return self.phase in ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """A ConfidentialAttestationRun that has not ended: as long as it goes on, no schedule has its node asked.

    Args:
        key: Which one.
        node: Whose hardware is asked.
        scheduled: A schedule created it; else somebody, who could create another, and another.
    """

    key: Key
    node: str
    scheduled: bool


def read_schedule(raw: Raw) -> Schedule:
    """Read an AttestationSchedule.

    Raises:
        Unreadable: Nothing follows from its spec.
    """
    metadata, status = raw["metadata"], raw.get("status") or {}
    created_at = parse_rfc3339(metadata["creationTimestamp"])
    try:
        # An old API server has compared it with the schema, and with none of the rules.
        spec = ScheduleSpec.model_validate(raw.get("spec") or {}, by_alias=True, by_name=False)
        times: Times
        if spec.every is not None:
            times = repeated(parse_duration(spec.every), begin=created_at)
        else:
            times = cron(spec.schedule or "", at=created_at)
    except ValidationError as e:
        fault = e.errors(include_url=False)[0]
        raise Unreadable(f"{'.'.join(map(str, fault['loc'])) or 'spec'}: {said(fault)}") from None
    except TimesInvalid as e:
        raise Unreadable(f"schedule: {e}") from None
    return Schedule(
        target=Target.of(SCHEDULE, raw),
        created_at=created_at,
        times=times,
        jitter=parse_duration(spec.jitter or "0s"),
        selector=spec.node_selector,
        backend=spec.backend,
        policy=None if spec.policy_ref is None else spec.policy_ref.name,
        timeout=spec.timeout,
        keep_succeeded=spec.history.succeeded,
        keep_failed=spec.history.failed,
        suspended=spec.suspend,
        dealt_with=_instant(status.get("lastScheduleTime")),
        raw=raw,
    )


def run_name(schedule: str, uid: str, *, node: str, backend: str, time: str) -> str:
    """Return the name of a run: `<schedule>-<10 hex of SHA-256(uid|node|backend)>-<time>`; a DNS subdomain.

    Args:
        schedule: Name of the schedule.
        uid: Its UID.
        node: Who is asked.
        backend: For what.
        time: Of the schedule, 14 digits.
    """
    digest = hashlib.sha256(f"{uid}|{node}|{backend}".encode()).hexdigest()
    return f"{schedule[:LONGEST_NAME].rstrip('-.')}-{digest[:10]}-{time}"


def read_run(raw: Raw) -> ScheduledRun | None:
    """Read a ConfidentialAttestationRun; None where no schedule created it.

    Whoever may create Runs can write all that a run says of itself. That none but the controller makes a run the run of
    a schedule is for the API server to say (`admission`); where nobody tells it to, a run counts here only where it is
    in all what a schedule would have created, and no sooner than it was due.
    """
    metadata, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    owner = next((each for each in metadata.get("ownerReferences") or () if _is_schedule(each)), None)
    due = _instant((metadata.get("annotations") or {}).get(SCHEDULED_AT))
    time = _TIME.search(metadata["name"])
    node, backend = spec.get("targetNodeName") or "", spec.get("backend") or ""
    if owner is None or due is None or time is None or spec.keys() & {"nonce", "policy"}:
        return None
    if not (MANAGED.items() <= (metadata.get("labels") or {}).items()):
        return None
    name = run_name(owner["name"], owner["uid"], node=node, backend=backend, time=time[1])
    if metadata["name"] != name or due > parse_rfc3339(metadata["creationTimestamp"]) + AHEAD:
        return None
    return ScheduledRun(
        target=Target.of(RUN, raw),
        schedule_uid=owner["uid"],
        node=node,
        backend=backend,
        phase=status.get("phase") or "",
        scheduled_at=due,
        ended_at=_instant(status.get("completionTime")),
        settled=_is_settled(raw, status),
    )


def read_open(raw: Raw) -> OpenRun | None:
    """Read a ConfidentialAttestationRun that has not ended; None of one that has."""
    if ((raw.get("status") or {}).get("phase") or "") in ENDED:
        return None
    node = (raw.get("spec") or {}).get("targetNodeName") or ""
    return OpenRun(key=Key.of(RUN, raw), node=node, scheduled=read_run(raw) is not None)


def _is_settled(raw: Raw, status: Raw) -> bool:
    return status.get("phase") in ENDED and objects.read_run(raw).is_complete


def _is_schedule(owner: Raw) -> bool:
    of_kind = owner.get("apiVersion") == SCHEDULE.api_version and owner.get("kind") == SCHEDULE.kind
    return of_kind and owner.get("controller") is True


def read_candidate(raw: Raw) -> Candidate:
    """Read a Node."""
    metadata = raw["metadata"]
    return Candidate(name=metadata["name"], labels=dict(metadata.get("labels") or {}))


def _instant(text: object) -> datetime | None:
    """Return an instant of a status or an annotation, None where there is none: somebody may have written it."""
    try:
        return parse_rfc3339(text) if isinstance(text, str) else None
    except ValueError:
        return None
