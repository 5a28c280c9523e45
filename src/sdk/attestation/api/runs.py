"""Attestation runs of Kubernetes nodes: what a cluster's controller and the agents on its nodes ask (CONFIDENTIAL §3).

The controller opens a run and reads what became of it; the agent of the node fetches the challenge and posts evidence.
Neither can write a verdict: the service judges. Who asks is a bound ServiceAccount token; an agent's must name the
node of the run (`kubernetes.io.node`), by name and by UID.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AwareDatetime, Field, model_validator

from attestation.api.base import Base64, ChallengeId, ClusterId, MachineId, Wire
from attestation.api.node import EvidenceItem
from attestation.api.node_csr import ObjectName, ObjectUID
from attestation.runs import Backend, CheckSource, PolicySource, SealPhase, SealStage, Verdict

__all__ = [
    "DeviceUnavailable",
    "RunAttempt",
    "RunBlob",
    "RunBundle",
    "RunChallenge",
    "RunChallengeShown",
    "RunCheck",
    "RunDetail",
    "RunEvidence",
    "RunIdentity",
    "RunMeasurement",
    "RunOpen",
    "RunOpened",
    "RunResult",
    "RunSeal",
    "RunTcb",
    "SealArchive",
    "SealFailure",
    "SealLogEntry",
    "SealedObject",
]

AttemptState = Literal["open", "judged", "expired"]
DeviceCode = Literal[
    "device-absent", "device-denied", "device-busy", "device-no-provider", "device-malformed", "device-failed"
]
CheckOutcome = Literal["pass", "fail", "skipped", "unavailable"]

MAX_ITEMS = 16
MAX_CHECKS: Final = 512
"""What a Result in Kubernetes holds; two are left to the controller, which says why there is no evidence."""
MAX_MEASUREMENTS: Final = 64
MAX_ADVISORIES: Final = 256
MAX_NOTES: Final = 1024
CallerNonce = Annotated[str, Field(min_length=16, max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="SHA-256, hex")]
Words = Annotated[str, Field(max_length=1024)]


class RunOpen(Wire):
    """`PUT /api/v1/runs/{uid}`: what a controller says of a run. The same run may be said again."""

    cluster_id: ClusterId
    namespace: ObjectName
    name: ObjectName
    node_name: ObjectName
    node_uid: ObjectUID
    backend: Backend
    nonce: CallerNonce | None = None
    policy: dict[str, Any] | None = Field(
        default=None, description="An AttestationPolicySpec as Kubernetes has it; null with source `none`"
    )
    policy_source: PolicySource
    policy_name: ObjectName | None = Field(
        default=None, description="Of the AttestationPolicy, with source `ref`"
    )
    deadline: AwareDatetime = Field(description="By the controller's clock")
    asked_at: AwareDatetime | None = Field(
        default=None,
        description="Now, by the same clock: what is left until the deadline follows from it. Another one at each "
        "request; null where the clocks do not differ",
    )

    @model_validator(mode="after")
    def _policy_is_there(self) -> RunOpen:
        if (self.policy is None) != (self.policy_source == "none"):
            raise ValueError("policy: it is null exactly where policy_source is none")
        if (self.policy_name is not None) != (self.policy_source == "ref"):
            raise ValueError("policy_name: it is there exactly where policy_source is ref")
        return self


class RunChallengeShown(Wire):
    """The challenge of an attempt, as `status.challenge` holds it once it was answered or has ended."""

    id: ChallengeId
    random: Base64 = Field(description="32 bytes; with the run's UID and the caller's nonce it gives `nonce`")
    nonce: Base64 = Field(description="32 bytes, `report_data.run_nonce`")
    expires_at: datetime


class RunOpened(Wire):
    """Answer of `PUT /api/v1/runs/{uid}`. The challenge itself is told to the agent of the node alone."""

    attempt: Annotated[int, Field(ge=1)]
    challenge_id: ChallengeId
    expires_at: datetime
    policy_id: str = Field(description="`ni:///sha-384;…` of what is asked (§12.3)")


class RunChallenge(RunChallengeShown):
    """`GET /api/v1/runs/{uid}/challenge`, for the agent of the run's node: what hardware is to sign."""

    attempt: Annotated[int, Field(ge=1)]
    backend: Backend
    pcr_bank: Annotated[str, Field(pattern=r"^sha(1|256|384|512)$")] | None = Field(
        default=None, description="Of a quote; null for another backend"
    )
    pcrs: tuple[Annotated[int, Field(ge=0, le=23)], ...] = Field(default=(), description="Ascending")
    event_log: bool = Field(default=False, description="The boot event log is to come with the quote")


class DeviceUnavailable(Wire):
    """Why the agent has no evidence (§5, C13)."""

    code: DeviceCode
    detail: Words


class RunEvidence(Wire):
    """`POST /api/v1/runs/{uid}/evidence`: evidence, or why there is none.

    Items are those of an attestation (CONFIDENTIAL §7.1). A TPM's is `application/vnd.itl.tpm-quote` with the members
    `pcr_quote`, `pcr_signature`, `pcr_values` and, where it was asked for, `event_log`: as PROTOCOL §4 has them, the
    values as base64 of their JSON object.
    """

    challenge_id: ChallengeId
    evidence: Annotated[tuple[EvidenceItem, ...], Field(max_length=MAX_ITEMS)] = ()
    unavailable: DeviceUnavailable | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> RunEvidence:
        if bool(self.evidence) == (self.unavailable is not None):
            raise ValueError("either evidence or unavailable")
        return self


class RunBlob(Wire):
    """One item of evidence, as it was posted; its bytes are the JSON (RFC 8785) of its `value`."""

    media_type: Annotated[str, Field(max_length=128)]
    sha256: Digest
    size: Annotated[int, Field(ge=0)]
    url: Annotated[str, Field(max_length=2048)] = Field(
        description="Where it is kept: the sealed bundle of the run, one of whose lines has its bytes"
    )


class RunMeasurement(Wire):
    """One measured register."""

    slot: Annotated[str, Field(max_length=32, description="PCR index, or `MEASUREMENT`, `MRTD`, `RTMR0`…")]
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{2,128}$")]


class RunCheck(Wire):
    """One check."""

    id: Annotated[str, Field(max_length=128)]
    outcome: CheckOutcome
    code: Annotated[str, Field(max_length=64)] | None = None
    expected: Words | None = None
    actual: Words | None = None
    source: CheckSource | None = Field(default=None, description="Who says what is expected")


class RunTcb(Wire):
    """What collateral says of the platform."""

    status: str | None = None
    date: str | None = None
    evaluation_data_number: int | None = None
    advisory_ids: tuple[str, ...] = ()


class RunIdentity(Wire):
    """Which run it was that was judged, as it was when it was: what a row says later is compared with this."""

    cluster_id: ClusterId
    uid: ObjectUID
    namespace: ObjectName
    name: ObjectName
    node_name: ObjectName
    node_uid: ObjectUID
    backend: Backend
    nonce: CallerNonce | None = None
    deadline: datetime


class RunResult(Wire):
    """What the service found. Nothing of it came from the node but what hardware signed."""

    run: RunIdentity
    verdict: Verdict
    rejected: str | None = Field(
        default=None,
        description="Code of the error where the evidence proves nothing, as `malformed-evidence`",
    )
    unavailable: DeviceUnavailable | None = None
    judged_at: datetime
    machine_id: MachineId | None = None
    policy_id: str
    policy_source: PolicySource
    mode: Literal["enforce", "report"]
    quote: Base64 | None = Field(default=None, description="As hardware made it")
    signature: Base64 | None = Field(default=None, description="null where it is inside of the quote")
    evidence: tuple[RunBlob, ...] = ()
    measurements: tuple[RunMeasurement, ...] = ()
    checks: tuple[RunCheck, ...] = ()
    tcb: RunTcb | None = None
    attestation_result: str | None = Field(default=None, description="EAR, a signed JWT")
    notes: Words | None = Field(
        default=None, description="For people: what kept it from `verified`, and what was noticed besides"
    )

    def written(self) -> dict[str, Any]:
        """Return it as members of a Result's `spec`: what the controller writes, and what the service has sealed.

        Of more than an API server takes in a list the first are told, and in the notes that there are more: the run
        would have no Result, and no end. Checks that passed go first.
        """
        tcb = self.tcb
        checks = _most(self.checks)
        cut = [
            f"{len(told)} of {len(found)} {name}"
            for name, told, found in (
                ("checks", checks, self.checks),
                ("measurements", self.measurements[:MAX_MEASUREMENTS], self.measurements),
                ("advisories", *((tcb.advisory_ids[:MAX_ADVISORIES], tcb.advisory_ids) if tcb else ((), ()))),
            )
            if len(told) < len(found)
        ]
        notes = "; ".join([f"told here: {', '.join(cut)}", *([self.notes] if self.notes else ())])[:MAX_NOTES]
        return _present(
            verdict=self.verdict,
            machineID=self.machine_id,
            quote=self.quote,
            signature=self.signature,
            evidence=[
                {"mediaType": each.media_type, "sha256": each.sha256, "size": each.size, "url": each.url}
                for each in self.evidence
            ],
            measurements=[
                {"slot": each.slot, "digest": each.digest} for each in self.measurements[:MAX_MEASUREMENTS]
            ],
            checks=[each.model_dump(exclude_none=True) for each in checks],
            tcb=None
            if tcb is None
            else _present(
                status=tcb.status,
                date=tcb.date,
                evaluationDataNumber=tcb.evaluation_data_number,
                advisoryIDs=list(tcb.advisory_ids[:MAX_ADVISORIES]),
            ),
            attestationResult=self.attestation_result,
            verifierNotes=notes if cut else self.notes,
        )


def _most(checks: Sequence[RunCheck]) -> list[RunCheck]:
    """Return as many as a Result holds, in their order; where there are more, those that did not pass before others."""
    by_weight = sorted(range(len(checks)), key=lambda i: checks[i].outcome == "pass")
    return [checks[i] for i in sorted(by_weight[: MAX_CHECKS - 2])]


def _present(**members: Any) -> dict[str, Any]:
    """Return what is there: Kubernetes keeps neither null nor, of ours, an empty list."""
    return {name: value for name, value in members.items() if value is not None and value != []}


class RunAttempt(Wire):
    """One attempt of a run."""

    attempt: Annotated[int, Field(ge=1)]
    state: AttemptState
    challenge_id: ChallengeId
    expires_at: datetime
    challenge: RunChallengeShown | None = Field(
        default=None, description="null while it is open: it is the node's alone until then"
    )
    result: RunResult | None = None

    @model_validator(mode="after")
    def _judged_has_a_result(self) -> RunAttempt:
        if (self.state == "judged") != (self.result is not None):
            raise ValueError("result: it is there exactly where the attempt was judged")
        return self


class RunDetail(Wire):
    """`GET /api/v1/runs/{uid}`."""

    uid: ObjectUID
    cluster_id: ClusterId
    namespace: ObjectName
    name: ObjectName
    node_name: ObjectName
    node_uid: ObjectUID
    backend: Backend
    policy_id: str
    policy_source: PolicySource
    deadline: datetime
    attempts: Annotated[tuple[RunAttempt, ...], Field(min_length=1)]


class SealedObject(Wire):
    """A Kubernetes object whose `spec` the seal covers, as the controller wrote it."""

    namespace: ObjectName | None = None
    name: ObjectName
    uid: ObjectUID
    spec: dict[str, Any]


class RunSeal(Wire):
    """`PUT /api/v1/runs/{uid}/bundle`: have event, result, policy and evidence sealed. The same may be said again."""

    bundle_name: ObjectName
    bundle_uid: ObjectUID
    event: SealedObject
    result: SealedObject


class SealFailure(Wire):
    """What kept a stage from its end; it is tried again."""

    stage: SealStage
    reason: Annotated[str, Field(max_length=64)]
    detail: Words | None = None
    timestamp: datetime


class SealLogEntry(Wire):
    """Where the digest of the statement stands in the transparency log (RFC 6962), and the proof that it does."""

    origin: str
    index: Annotated[int, Field(ge=0)]
    tree_size: Annotated[int, Field(ge=1)]
    root_hash: Base64
    hashes: tuple[Base64, ...]
    checkpoint: str


class SealArchive(Wire):
    """Where the envelope is kept, write-once."""

    media_type: str
    url: Annotated[str, Field(max_length=2048)]
    sha256: Digest
    size: Annotated[int, Field(ge=0)]


class RunBundle(Wire):
    """Answer of `PUT /api/v1/runs/{uid}/bundle`: how far the seal is. Asked again until it is `Sealed`."""

    phase: SealPhase
    statement_digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    key_id: str | None = None
    signed_at: datetime | None = None
    log_entry: SealLogEntry | None = None
    archive: SealArchive | None = None
    sealed_at: datetime | None = None
    failures: tuple[SealFailure, ...] = ()
