"""Objects of security.ugallu.io, read and made through their models: each server's objects, each in one way. Pure.

An API server before 1.25 leaves out the rules in CEL, one before 1.32 the selectable fields; any of them was told to
take an object as it is by whoever wrote it. So what matters is compared here once more (`faults`), and what a rule of
CEL remembers (`self == oldSelf`) is seen from `metadata.generation`, which counts each change of `spec`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from attestation.api.attestation_policy import AttestationPolicySpec
from attestation.api.said import said
from attestation.clock import parse_rfc3339
from attestation_operator.crds import DEFINITIONS
from attestation_operator.crds.bundles import BundleSpec, BundleStatus
from attestation_operator.crds.policies import PolicyStatus
from attestation_operator.crds.runs import ResultSpec, ResultStatus, RunSpec, RunStatus
from attestation_operator.crds.schedules import ScheduleSpec, ScheduleStatus
from attestation_operator.crds.security_events import SecurityEventSpec, SecurityEventStatus
from attestation_operator.durations import parse_duration
from attestation_operator.objects import (
    BUNDLE,
    POLICY,
    RESULT,
    RUN,
    RUNS_GROUP,
    SCHEDULE,
    SECURITY_EVENT,
    Kind,
    Raw,
    Target,
)

FINAL: Final = (RUN, RESULT, SECURITY_EVENT, BUNDLE)
"""Kinds whose `spec` stays as it was created."""
RESULT_SUFFIX: Final = "-result"
MAX_RUN_NAME: Final = 253 - len(RESULT_SUFFIX)
"""Of a longer one no Result could have a name."""
_MODELS: Final = {each.kind: each.model for each in DEFINITIONS if each.kind.group == RUNS_GROUP}

Spec = TypeVar("Spec", bound=BaseModel)
Status = TypeVar("Status", bound=BaseModel)


class KindInvalid(Exception):
    """An object is not as its kind allows.

    Args:
        faults: Each with the member that it is about.
    """

    def __init__(self, faults: tuple[str, ...]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


# ---------------------------------------------------------------- what is wrong with an object


def faults(kind: Kind, raw: Raw, *, old: Raw | None = None) -> tuple[str, ...]:
    """Return what is wrong with an object, each with its member; nothing where it is as its kind allows.

    Args:
        kind: Which of security.ugallu.io.
        raw: As an API server shows it, or is asked to keep it.
        old: As it was before; None where that is not known.
    """
    return (*_of_model(kind, raw), *_of_metadata(kind, raw), *_of_change(kind, raw, old))


def _of_model(kind: Kind, raw: Raw) -> Iterator[str]:
    try:
        _validated(kind, raw)
    except ValidationError as e:
        for each in e.errors(include_url=False, include_input=False):
            yield f"{'.'.join(map(str, each['loc']))}: {said(each)}"


def _validated(kind: Kind, raw: Raw) -> Any:
    members = {name: raw[name] for name in ("spec", "status") if raw.get(name) is not None}
    # By their names in Kubernetes alone: Python's would be taken too, and no other program knows them.
    return _MODELS[kind].model_validate(members, by_alias=True, by_name=False)


def _of_metadata(kind: Kind, raw: Raw) -> Iterator[str]:
    if kind == RUN and len(raw.get("metadata", {}).get("name", "")) > MAX_RUN_NAME:
        yield f"metadata.name: longer than {MAX_RUN_NAME} characters: its Result could have no name"


def _of_change(kind: Kind, raw: Raw, old: Raw | None) -> Iterator[str]:
    if kind not in FINAL:
        return
    if old is not None and old.get("spec") != raw.get("spec"):
        yield "spec: it cannot be changed"
    elif was_changed(raw):
        yield "spec: it was changed after it was created"


def was_changed(raw: Raw) -> bool:
    """Return whether `spec` of an object is another than when it was created, as its generation says.

    The server counts each change of what is neither metadata nor status; a deletion that has to wait counts as one.
    """
    metadata = raw.get("metadata") or {}
    allowed = 2 if metadata.get("deletionTimestamp") else 1
    return int(metadata.get("generation") or 1) > allowed


# ---------------------------------------------------------------- objects, read


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(Generic[Spec, Status]):
    """An object that is as its kind allows.

    Args:
        target: Which one, and when it was so.
        created_at: When it was created.
        spec: What it asks or says.
        status: What became of it; None where nobody said anything.
    """

    target: Target
    created_at: datetime
    spec: Spec
    status: Status | None


RunRead = Read[RunSpec, RunStatus]
ResultRead = Read[ResultSpec, ResultStatus]
PolicyRead = Read[AttestationPolicySpec, PolicyStatus]
EventRead = Read[SecurityEventSpec, SecurityEventStatus]
BundleRead = Read[BundleSpec, BundleStatus]
ScheduleRead = Read[ScheduleSpec, ScheduleStatus]


def _read(kind: Kind, raw: Raw) -> Read[Any, Any]:
    """Read an object.

    Raises:
        KindInvalid: It is not as its kind allows, or `spec` was changed where it stays.
    """
    if found := faults(kind, raw):
        raise KindInvalid(found)
    value = _validated(kind, raw)
    return Read(
        target=Target.of(kind, raw),
        created_at=parse_rfc3339(raw["metadata"]["creationTimestamp"]),
        spec=value.spec,
        status=value.status,
    )


def read_run(raw: Raw) -> RunRead:
    """Read a ConfidentialAttestationRun. Raises `KindInvalid`."""
    return _read(RUN, raw)


def read_result(raw: Raw) -> ResultRead:
    """Read a ConfidentialAttestationResult. Raises `KindInvalid`."""
    return _read(RESULT, raw)


def read_policy(raw: Raw) -> PolicyRead:
    """Read an AttestationPolicy. Raises `KindInvalid`."""
    return _read(POLICY, raw)


def read_event(raw: Raw) -> EventRead:
    """Read a SecurityEvent. Raises `KindInvalid`."""
    return _read(SECURITY_EVENT, raw)


def read_bundle(raw: Raw) -> BundleRead:
    """Read an AttestationBundle. Raises `KindInvalid`."""
    return _read(BUNDLE, raw)


def read_schedule(raw: Raw) -> ScheduleRead:
    """Read an AttestationSchedule. Raises `KindInvalid`."""
    return _read(SCHEDULE, raw)


def timeout_of(spec: RunSpec | ScheduleSpec) -> timedelta:
    """Return how long a run may take."""
    return parse_duration(spec.timeout)


# ---------------------------------------------------------------- objects, made


def fact_digest(cluster_id: str, run_uid: str, attempt: int, type_: str) -> str:
    """Return what names a fact about a run: 20 hex digits, the same whoever tells it, however often."""
    return hashlib.sha256(f"{cluster_id}|{run_uid}|{attempt}|{type_}".encode()).hexdigest()[:20]


def result_name(run: str) -> str:
    """Return the name of the Result of the run of that name."""
    return f"{run}{RESULT_SUFFIX}"


def event_name(cluster_id: str, run_uid: str, attempt: int, type_: str) -> str:
    """Return the name of the SecurityEvent that tells a fact."""
    return f"se-{fact_digest(cluster_id, run_uid, attempt, type_)}"


def bundle_name(event: str) -> str:
    """Return the name of the AttestationBundle of the event of that name."""
    return f"ab-{event.removeprefix('se-')}"


def made(
    kind: Kind,
    name: str,
    spec: Mapping[str, Any],
    *,
    namespace: str | None = None,
    owner: Target | None = None,
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return an object to be created, which its kind allows.

    Args:
        kind: Which.
        name: Its name.
        spec: What it says, as Kubernetes has it.
        namespace: Where, exactly of a kind that has namespaces.
        owner: What it goes with.
        labels: For who looks for it.

    Raises:
        KindInvalid: Its kind does not allow it.
        ValueError: It has a namespace and its kind has none, or the other way round.
    """
    if kind.namespaced != (namespace is not None):
        raise ValueError(f"{kind.kind} {name}: namespace {namespace}")
    metadata: dict[str, Any] = {"name": name}
    if namespace is not None:
        metadata["namespace"] = namespace
    if labels:
        metadata["labels"] = dict(labels)
    if owner is not None:
        metadata["ownerReferences"] = [owner.reference]
    raw = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": dict(spec)}
    if found := faults(kind, raw):
        raise KindInvalid(found)
    return raw


def result_object(run: Target, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Result of *run*, which goes with it. Raises `KindInvalid`."""
    return made(RESULT, result_name(run.name), spec, namespace=run.namespace, owner=run)


def event_object(spec: Mapping[str, Any], *, attempt: int, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the SecurityEvent that tells a fact about the run `correlationID` in attempt *attempt*.

    Raises:
        KindInvalid: Its kind does not allow it.
        KeyError: It does not say of which cluster and run it is.
    """
    name = event_name(spec["clusterIdentity"]["clusterID"], spec["correlationID"], attempt, spec["type"])
    return made(SECURITY_EVENT, name, spec, labels=labels)


def bundle_object(event: Target) -> dict[str, Any]:
    """Return the AttestationBundle of *event*."""
    return made(BUNDLE, bundle_name(event.name), {"attestedFor": event.reference})


def canonical(spec: Mapping[str, Any]) -> bytes:
    """Return a `spec` as RFC 8785 writes it.

    Kinds have no number but whole ones below 2^53, and no name of a member beyond the Basic Multilingual Plane, whose
    order would be another one.
    """
    return json.dumps(spec, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def spec_sha256(spec: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a `spec`, hex: what a seal covers of an object, and what names what was asked."""
    return hashlib.sha256(canonical(spec)).hexdigest()
