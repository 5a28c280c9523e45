"""`security.ugallu.io/v1alpha1`: SecurityEvent, as a model (CONFIDENTIAL.md §2.5)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from attestation_operator.crds.parts import (
    IMMUTABLE,
    UID,
    URL,
    Condition,
    Digest,
    Instant,
    MediaType,
    Name,
    NamedRef,
    Part,
    Size,
    listed,
    ruled,
)

EventClass = Literal["Detection", "Anomaly", "PolicyViolation", "Forensic", "Compliance", "Audit"]
Severity = Literal["critical", "high", "medium", "low", "info"]
EventPhase = Literal["Active", "Attested", "Archived"]
MAX_SIGNALS = 128
MAX_SIGNALS_BYTES = 8192
"""Of all keys and values together."""
MAX_FACT = 253
MAX_IP = 64
MAX_ROLES = 16
"""Of what a Node says of itself."""
Short = Annotated[str, Field(max_length=MAX_FACT)]
Kind = Annotated[str, Field(min_length=1, max_length=63)]
APIVersion = Annotated[str, Field(max_length=316)]


class ClusterIdentity(Part):
    """The cluster in which it happened."""

    cluster_id: Annotated[str, Field(min_length=1, max_length=253)] | None = Field(
        default=None, description="As the service knows it"
    )
    cluster_name: Short | None = Field(default=None, description="For people")


class EventSource(Part):
    """What says so."""

    api_version: APIVersion | None = Field(default=None, description="Of its kind")
    kind: Kind = Field(description="Of the program")
    name: Name = Field(description="Of the program")
    version: Short | None = Field(default=None, description="Of the program")
    instance: Short | None = Field(default=None, description="Which one of several it is, as a pod")


class EventNode(Part):
    """What a Node said of itself then."""

    roles: Annotated[tuple[Short, ...], Field(max_length=MAX_ROLES)] = Field(
        default=(), description="Its roles"
    )
    kernel_version: Short | None = Field(default=None, description="Of status.nodeInfo")
    os_image: Short | None = Field(default=None, description="Of status.nodeInfo")
    kubelet_version: Short | None = Field(default=None, description="Of status.nodeInfo")
    container_runtime: Short | None = Field(default=None, description="Of status.nodeInfo")
    architecture: Short | None = Field(default=None, description="Of status.nodeInfo")
    operating_system: Short | None = Field(default=None, description="Of status.nodeInfo")
    internal_ip: Annotated[str, Field(max_length=MAX_IP)] | None = Field(
        default=None, description="Of status.addresses"
    )
    hostname: Short | None = Field(default=None, description="Of status.addresses")


class EventSubject(Part):
    """What it is about. `node` is there for a Node, and for nothing else."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            (
                "self.kind == 'Node' ? has(self.node) || (has(self.unresolved) && self.unresolved) : !has(self.node)",
                "node is there exactly for a Node, unless it is unresolved",
            )
        )
    )

    api_version: APIVersion | None = Field(default=None, description="Of its kind")
    kind: Kind = Field(description="Of the object, as Node")
    name: Name = Field(description="Of the object")
    namespace: Annotated[str, Field(max_length=63)] | None = Field(default=None, description="Of the object")
    uid: UID | None = Field(default=None, description="Of the object")
    resource_version: Annotated[str, Field(max_length=64)] | None = Field(
        default=None, description="Of the object as it was seen"
    )
    labels: Annotated[dict[str, Annotated[str, Field(max_length=63)]], Field(max_length=64)] = Field(
        default_factory=dict, description="Of the object as it was seen"
    )
    node: EventNode | None = Field(default=None, description="Of a Node")
    partial: bool | None = Field(default=None, description="Not all of it could be read")
    tombstone: bool | None = Field(default=None, description="It had been deleted")
    unresolved: bool | None = Field(default=None, description="It could not be read: only its name is known")

    @model_validator(mode="after")
    def _discriminated(self) -> EventSubject:
        is_node = self.kind == "Node"
        if (is_node and self.node is None and not self.unresolved) or (not is_node and self.node is not None):
            raise ValueError("node is there exactly for a Node, unless it is unresolved")
        return self


class EventEvidence(Part):
    """What it rests on."""

    media_type: MediaType = Field(description="What it is")
    url: URL = Field(description="Where it is kept")
    sha256: Digest | None = Field(default=None, description="Of its bytes")
    size: Size | None = Field(default=None, description="Of its bytes")


class SecurityEventSpec(Part):
    """What happened. It cannot be changed."""

    model_config = ConfigDict(json_schema_extra=IMMUTABLE)

    # `class` is a word of Python's.
    class_: EventClass = Field(alias="class", description="Of what nature it is")
    type: Annotated[str, Field(pattern="^[A-Z][A-Za-z0-9]*$", max_length=63)] = Field(
        description="What happened, as AttestationVerified"
    )
    severity: Severity = Field(description="How grave it is")
    cluster_identity: ClusterIdentity = Field(description="Where it happened")
    source: EventSource = Field(description="What says so")
    subject: EventSubject = Field(description="What it is about")
    detected_at: Instant = Field(description="When it was seen")
    signals: Annotated[dict[str, Annotated[str, Field(max_length=2048)]], Field(max_length=MAX_SIGNALS)] = (
        Field(
            default_factory=dict,
            description=f"What was seen: at most {MAX_SIGNALS} words, {MAX_SIGNALS_BYTES} bytes together",
        )
    )
    evidence: Annotated[tuple[EventEvidence, ...], Field(max_length=64)] = Field(
        default=(), description="What it rests on"
    )
    parents: Annotated[tuple[Name, ...], Field(max_length=64)] = Field(
        default=(), description="Names of SecurityEvents that led to it", json_schema_extra=listed()
    )
    correlation_id: Short | None = Field(default=None, description="Events with the same belong together")
    traceparent: Annotated[str, Field(max_length=128)] | None = Field(
        default=None, description="Of the trace in which it was seen (W3C Trace Context)"
    )

    @field_validator("signals")
    @classmethod
    def _is_bounded(cls, signals: dict[str, str]) -> dict[str, str]:
        if sum(len(key.encode()) + len(value.encode()) for key, value in signals.items()) > MAX_SIGNALS_BYTES:
            raise ValueError(f"more than {MAX_SIGNALS_BYTES} bytes")
        return signals


class SecurityEventStatus(Part):
    """What became of it."""

    phase: EventPhase | None = Field(
        default=None, description="Attested: signed and logged. Archived: the bundle's file is kept too"
    )
    acknowledged: bool | None = Field(default=None, description="Somebody has seen it")
    acknowledged_by: Short | None = Field(default=None, description="Who")
    acknowledged_at: Instant | None = Field(default=None, description="When")
    attestation_digest: Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$", max_length=71)] | None = Field(
        default=None, description="Of the sealed statement"
    )
    attestation_bundle_ref: NamedRef | None = Field(default=None, description="The AttestationBundle")
    archived_at: Instant | None = Field(default=None, description="When the file was there")
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = Field(
        default=(), description="As of every kind", json_schema_extra=listed("type")
    )


class SecurityEvent(Part):
    """Something that matters to the security of a cluster. Ours are about Nodes and their attestation runs."""

    spec: SecurityEventSpec
    status: SecurityEventStatus | None = None
