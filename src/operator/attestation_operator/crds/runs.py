"""`security.ugallu.io/v1alpha1`: ConfidentialAttestationRun and its Result, as models (CONFIDENTIAL.md §2.1, §2.2)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from attestation.api.attestation_policy import AttestationPolicySpec
from attestation.api.runs import (
    MAX_ADVISORIES,
    MAX_CHECKS,
    MAX_ITEMS,
    MAX_MEASUREMENTS,
    CallerNonce,
    CheckOutcome,
)
from attestation.runs import Backend, CheckSource, PolicySource, Reason, Verdict
from attestation_operator.crds.parts import (
    IMMUTABLE,
    UID,
    URL,
    Bytes,
    Condition,
    Digest,
    Duration,
    Instant,
    MediaType,
    Name,
    NamedRef,
    Part,
    PolicyID,
    Size,
    Text,
    between,
    listed,
    ruled,
    within,
)

SHORTEST = "5s"
LONGEST = "5m"
"""Of the timeout of a run."""
Phase = Literal["", "Pending", "Running", "Succeeded", "Failed"]
MAX_QUOTE = 87_384
"""Characters of 64 KiB in base64."""
NodeName = Annotated[str, Field(min_length=1, max_length=253)]
Timeout = Annotated[
    Duration,
    within(SHORTEST, LONGEST),
    Field(
        default="2m",
        description=f"How long the run may take, from {SHORTEST} to {LONGEST}, as Go writes durations",
        json_schema_extra=between(SHORTEST, LONGEST),
    ),
]


class RunSpec(Part):
    """What is asked. It cannot be changed: another question is another run."""

    model_config = ConfigDict(
        json_schema_extra=ruled(
            ("self == oldSelf", "spec cannot be changed"),
            ("!(has(self.policy) && has(self.policyRef))", "a run has policy or policyRef, not both"),
        )
    )

    backend: Backend = Field(description="Which hardware is asked for evidence")
    target_node_name: NodeName = Field(description="Name of the Node that is to prove itself")
    nonce: CallerNonce | None = Field(
        default=None,
        description="A value of the caller's that goes into the evidence beside the challenge of the service",
    )
    policy: AttestationPolicySpec | None = Field(
        default=None, description="What is expected; a run with an inline policy gives no standing"
    )
    policy_ref: NamedRef | None = Field(
        default=None, description="An AttestationPolicy of the same namespace that says it"
    )
    timeout: Timeout

    @model_validator(mode="after")
    def _one_policy(self) -> RunSpec:
        if self.policy is not None and self.policy_ref is not None:
            raise ValueError("a run has policy or policyRef, not both")
        return self


class RunChallenge(Part):
    """The challenge of an attempt that was answered or has ended: relying parties compute the nonce again."""

    id: Annotated[str, Field(min_length=1, max_length=64)] = Field(description="Of the challenge, hex")
    random: Annotated[Bytes, Field(max_length=128)] = Field(description="32 bytes that the service chose")
    nonce: Annotated[Bytes, Field(max_length=128)] = Field(
        description="What hardware signed: SHA-256 over `random`, the run's UID and its nonce"
    )
    expires_at: Instant = Field(description="When it was too late to answer")


class RunStatus(Part):
    """How far the run is; written by the controller alone."""

    phase: Phase | None = Field(default=None, description="Empty until the controller saw it")
    verdict: Verdict | None = Field(default=None, description="As the service judged")
    start_time: Instant | None = Field(default=None, description="When the controller took it up")
    deadline: Instant | None = Field(default=None, description="startTime and timeout")
    completion_time: Instant | None = Field(default=None, description="When it ended")
    attempt: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Which one it is; a challenge that nobody answered has another"
    )
    challenge: RunChallenge | None = Field(
        default=None, description="Of that attempt, once it was answered or has ended"
    )
    policy_id: PolicyID | None = Field(
        default=None, description="What was asked: `ni:///sha-384;…`, equal exactly when the same was"
    )
    result_ref: NamedRef | None = Field(
        default=None, description="The ConfidentialAttestationResult, of the same namespace"
    )
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = Field(
        default=(),
        description="Accepted, EvidenceReceived, Judged, Sealed, EventsEmitted, Failed; reasons of Failed: "
        + ", ".join(Reason),
        json_schema_extra=listed("type"),
    )


class Run(Part):
    """Asks whether a node is what it claims to be: its hardware is to prove it, and the service judges."""

    spec: RunSpec
    status: RunStatus | None = None


class DerivedFromRun(Part):
    """The run of a result."""

    name: Name = Field(description="Its name, in the same namespace")
    uid: UID = Field(description="Its UID: a run of the same name is another one")


class ResultBlob(Part):
    """An item of evidence."""

    media_type: MediaType = Field(description="What it is")
    sha256: Digest = Field(description="Of its bytes")
    size: Size = Field(description="Of its bytes")
    url: URL | None = Field(
        default=None,
        description="Where it is kept: the sealed bundle of the run, one of whose lines has its bytes",
    )


class Measurement(Part):
    """A measured register."""

    slot: Annotated[str, Field(min_length=1, max_length=32)] = Field(
        description="Index of a PCR, or MEASUREMENT, MRTD, RTMR0 …"
    )
    digest: Annotated[str, Field(pattern="^([0-9a-f]{2})+$", max_length=128)] = Field(
        description="Its value, hex"
    )


class ResultCheck(Part):
    """A check that was made."""

    id: Annotated[str, Field(min_length=1, max_length=128)] = Field(description="Which one")
    outcome: CheckOutcome = Field(description="How it ended; unavailable: it could not be decided")
    code: Annotated[str, Field(max_length=64)] | None = Field(
        default=None, description="Why, as a word for programs"
    )
    expected: Text | None = Field(default=None, description="What was expected")
    actual: Text | None = Field(default=None, description="What was found")
    source: CheckSource | None = Field(default=None, description="Who says what is expected")


class ResultTcb(Part):
    """What the vendor says of the platform's firmware."""

    status: Annotated[str, Field(max_length=64)] | None = Field(default=None, description="Its word for it")
    date: Annotated[str, Field(max_length=32)] | None = Field(
        default=None, description="Of the level that was reached"
    )
    evaluation_data_number: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Which edition of the vendor's data was used"
    )
    advisory_ids: Annotated[
        tuple[Annotated[str, Field(max_length=64)], ...], Field(max_length=MAX_ADVISORIES)
    ] = Field(default=(), description="Advisories that apply")


class ResultSpec(Part):
    """What was found. It cannot be changed."""

    model_config = ConfigDict(json_schema_extra=IMMUTABLE)

    derived_from_run: DerivedFromRun = Field(description="The run")
    backend: Backend = Field(description="Of the run")
    node_name: NodeName = Field(description="The Node")
    node_uid: UID | None = Field(default=None, description="Its UID, which evidence was made for")
    machine_id: Annotated[str, Field(max_length=64)] | None = Field(
        default=None, description="The machine of the service that it is"
    )
    nonce: CallerNonce | None = Field(default=None, description="Of the run")
    attempt: Annotated[int, Field(ge=1)] = Field(description="Which one was judged")
    challenge_id: Annotated[str, Field(min_length=1, max_length=64)] = Field(
        description="Of the challenge that was answered"
    )
    quote: Annotated[Bytes, Field(max_length=MAX_QUOTE)] | None = Field(
        default=None, description="As hardware made it"
    )
    signature: Annotated[Bytes, Field(max_length=MAX_QUOTE)] | None = Field(
        default=None, description="Over the quote; absent where it is inside of it"
    )
    evidence: Annotated[tuple[ResultBlob, ...], Field(max_length=MAX_ITEMS)] = Field(
        default=(), description="What the node sent, by digest"
    )
    measurements: Annotated[tuple[Measurement, ...], Field(max_length=MAX_MEASUREMENTS)] = Field(
        default=(), description="What hardware measured", json_schema_extra=listed("slot")
    )
    verdict: Verdict = Field(description="verified, failed or indeterminate")
    checks: Annotated[tuple[ResultCheck, ...], Field(max_length=MAX_CHECKS)] = Field(
        default=(), description="Each check with what was expected and found"
    )
    tcb: ResultTcb | None = Field(default=None, description="Of the platform")
    policy_id: PolicyID = Field(description="What was asked")
    policy_source: PolicySource = Field(
        description="ref: an AttestationPolicy; inline: the run itself; none: nothing was expected"
    )
    attestation_result: Annotated[str, Field(max_length=524_288)] | None = Field(
        default=None, description="The same, signed by the service: an EAR, as a JWT"
    )
    verifier_notes: Text | None = Field(default=None, description="For people")


class ResultStatus(Part):
    """What it is worth now; written by the controller alone."""

    trusted: bool | None = Field(
        default=None, description="Verified under an AttestationPolicy, and not expired"
    )
    trusted_until: Instant | None = Field(default=None, description="When that ends")


class Result(Part):
    """What became of a run: the verdict of the service, each check, and what was measured."""

    spec: ResultSpec
    status: ResultStatus | None = None
