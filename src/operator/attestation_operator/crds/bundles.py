"""`security.ugallu.io/v1alpha1`: AttestationBundle, as a model (CONFIDENTIAL.md §2.6)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from attestation.runs import SealPhase, SealStage
from attestation_operator.crds.parts import (
    IMMUTABLE,
    URL,
    Bytes,
    Condition,
    Digest,
    Instant,
    MediaType,
    NamedRef,
    ObjectReference,
    Part,
    Size,
    Text,
    listed,
)

SignatureMode = Literal["service-key", "ed25519-dev", "fulcio-keyless", "openbao-transit", "dual"]
Hash = Annotated[Bytes, Field(max_length=64)]
RekorHash = Annotated[str, Field(max_length=128)]
Index = Annotated[int, Field(ge=0, json_schema_extra={"format": "int64"})]
MAX_PATH = 64
"""Hashes of a proof: the tree has fewer than 2^64 leaves."""


class BundleSpec(Part):
    """What is sealed. It cannot be changed."""

    model_config = ConfigDict(json_schema_extra=IMMUTABLE)

    attested_for: ObjectReference = Field(description="What the bundle is for: a SecurityEvent")
    parent_bundle_ref: NamedRef | None = Field(default=None, description="The bundle that it follows")


class BundleSignature(Part):
    """Who signed the statement."""

    mode: SignatureMode = Field(description="service-key is ours")
    key_id: Annotated[str, Field(max_length=256)] | None = Field(default=None, description="Of the key")


class LogEntry(Part):
    """Where the digest of the statement stands in the transparency log of the service (RFC 6962), with its proof."""

    origin: Annotated[str, Field(max_length=253)] | None = Field(default=None, description="Of the log")
    index: Index | None = Field(default=None, description="Of the entry, from 0")
    tree_size: Index | None = Field(default=None, description="Of the tree that the proof leads to")
    root_hash: Hash | None = Field(default=None, description="Of that tree")
    hashes: Annotated[tuple[Hash, ...], Field(max_length=MAX_PATH)] = Field(
        default=(), description="From the entry to the root"
    )
    checkpoint: Annotated[str, Field(max_length=16_384)] | None = Field(
        default=None, description="Signed by the log (C2SP tlog-checkpoint)"
    )


class RekorProof(Part):
    """That an entry stands in Rekor."""

    tree_size: Index = Field(description="Of the tree that the proof leads to")
    log_index: Index = Field(description="Of the entry")
    root_hash: RekorHash | None = Field(default=None, description="Of that tree, hex")
    hashes: Annotated[tuple[RekorHash, ...], Field(max_length=MAX_PATH)] = Field(
        default=(), description="From the entry to the root, hex"
    )


class RekorEntry(Part):
    """Where the envelope stands in a Rekor, where one is used beside our log."""

    log_index: Index = Field(description="Of the entry")
    uuid: Annotated[str, Field(min_length=1, max_length=128)] = Field(description="Of the entry")
    inclusion_proof: RekorProof | None = Field(default=None, description="That it is there")


class WormRef(Part):
    """Where the envelope is kept, write-once."""

    media_type: MediaType | None = Field(default=None, description="Of the file")
    url: URL | None = Field(default=None, description="Of the file")
    sha256: Digest | None = Field(default=None, description="Of the file")
    size: Size | None = Field(default=None, description="Of the file")


class BundleFailure(Part):
    """What kept a stage from its end; it is tried again."""

    stage: SealStage = Field(description="Which one")
    reason: Annotated[str, Field(max_length=64)] | None = Field(default=None, description="For programs")
    detail: Text | None = Field(default=None, description="For people")
    timestamp: Instant = Field(description="When")


class BundleStatus(Part):
    """How far the seal is."""

    phase: SealPhase | None = Field(default=None, description="Sealed: signed, logged and archived")
    statement_digest: Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$", max_length=71)] | None = Field(
        default=None, description="Of the in-toto statement"
    )
    signature: BundleSignature | None = Field(default=None, description="Over the statement (DSSE)")
    log_entry: LogEntry | None = Field(default=None, description="In the log of the service")
    rekor_entry: RekorEntry | None = Field(default=None, description="In a Rekor, where one is used")
    worm_ref: WormRef | None = Field(default=None, description="In the archive")
    signed_at: Instant | None = Field(default=None, description="When it was signed")
    sealed_at: Instant | None = Field(default=None, description="When it was sealed")
    failures: Annotated[tuple[BundleFailure, ...], Field(max_length=32)] = Field(
        default=(), description="What failed before"
    )
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = Field(
        default=(), description="Signed, Logged, Archived", json_schema_extra=listed("type")
    )


class Bundle(Part):
    """The seal over an event, its result, its policy and its evidence; it proves them when they are gone."""

    spec: BundleSpec
    status: BundleStatus | None = None
