"""What is signed: an in-toto Statement v1 about an event, the result that it tells of, the policy and the evidence.

https://github.com/in-toto/attestation/tree/main/spec/v1: `subject` are resource descriptors {name, mediaType,
digest.sha256}. A statement is written as RFC 8785 has it; its digest is the SHA-256 of those bytes.

| Subject | Bytes |
|---|---|
| `SecurityEvent/<name>@v1alpha1` | the `spec` of the SecurityEvent, canonical |
| `Result/<namespace>/<name>` | the `spec` of the ConfidentialAttestationResult, canonical |
| `policy` | all that the policy asks (`attestation.reference.identifier`), whose SHA-384 is the policy's id |
| `evidence/<n>` | what the node posted, from 1, in its order |
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from attestation.clock import rfc3339
from attestation.reference.identifier import named
from attestation.sealing.members import optional_text, text
from attestation.wire import jcs

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "https://ugallu.io/attestation/security-event/v1"
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
VERSION: Final = "v1alpha1"
"""Of the kinds whose specs are sealed."""

SIGNING: Final = "service-key"
"""Which kind of key signs (`signature.mode` of an AttestationBundle)."""

JSON: Final = "application/json"
POLICY: Final = "policy"
ACTION: Final = "run_sealed"
"""What the entry of the audit log is called that holds a statement's digest."""

MAX_SUBJECTS: Final = 32
MAX_CONTENT_BYTES: Final = 16 << 20
"""Longest subject; a boot event log is well below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One thing that the statement is about, with its bytes."""

    name: str
    media_type: str
    content: bytes

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes, hex."""
        return hashlib.sha256(self.content).hexdigest()

    def descriptor(self) -> dict[str, Any]:
        """Return its resource descriptor."""
        return {"name": self.name, "mediaType": self.media_type, "digest": {"sha256": self.sha256}}


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedObject:
    """A Kubernetes object whose `spec` is sealed; *namespace* is None for one of the cluster."""

    name: str
    uid: str
    spec: Mapping[str, Any]
    namespace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attestor:
    """Who states it: the service, and when it signed."""

    name: str
    version: str
    instance: str
    attested_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A statement with its subjects.

    Args:
        data: Its canonical bytes, which are signed.
        subjects: In their order.
    """

    data: bytes
    subjects: tuple[Subject, ...]

    @property
    def digest(self) -> str:
        """`sha256:` and 64 hex."""
        return digest_of(self.data)


def digest_of(data: bytes) -> str:
    """Return the digest of a statement whose bytes are *data*: `sha256:` and 64 hex."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def event_subject(name: str) -> str:
    """Return how the subject of the SecurityEvent *name* is called."""
    return f"SecurityEvent/{name}@{VERSION}"


def policy_subject(data: bytes) -> Subject:
    """Return the subject of the policy whose `reference.identifier.canonical` is *data*."""
    return Subject(name=POLICY, media_type=JSON, content=data)


def make_statement(
    *,
    event: SealedObject,
    result: SealedObject,
    policy: bytes,
    evidence: Sequence[tuple[str, bytes]],
    attestor: Attestor,
) -> Statement:
    """Return the statement about a run.

    Args:
        event: The SecurityEvent that tells its verdict.
        result: Its ConfidentialAttestationResult.
        policy: `reference.identifier.canonical` of what was asked.
        evidence: Media type and bytes of each blob, in the order in which the node posted them.
        attestor: Who states it.

    Raises:
        ValueError: A spec has no canonical form.
        MalformedEvidence: A spec lacks what the predicate tells of it.
    """
    subjects = (
        Subject(name=event_subject(event.name), media_type=JSON, content=jcs(event.spec)),
        Subject(name=f"Result/{result.namespace}/{result.name}", media_type=JSON, content=jcs(result.spec)),
        policy_subject(policy),
        *(
            Subject(name=f"evidence/{number}", media_type=media_type, content=data)
            for number, (media_type, data) in enumerate(evidence, 1)
        ),
    )
    predicate = {
        "incident": {"securityEventUID": event.uid, **incident_of(event.spec)},
        "attestor": {
            "name": attestor.name,
            "version": attestor.version,
            "instance": attestor.instance,
            "attestedAt": rfc3339(attestor.attested_at),
        },
        "tooling": {"signingPredicate": SIGNING},
        "result": outcome_of(result.spec, policy),
    }
    data = jcs(
        {
            "_type": STATEMENT_TYPE,
            "predicateType": PREDICATE_TYPE,
            "predicate": predicate,
            "subject": [subject.descriptor() for subject in subjects],
        }
    )
    return Statement(data=data, subjects=subjects)


def incident_of(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the predicate tells of the `spec` of an event.

    Raises:
        MalformedEvidence: It is missing there.
    """
    return {
        **{name: text(event, name) for name in ("class", "type", "severity", "detectedAt")},
        "clusterIdentity": {
            name: text(event, "clusterIdentity", name) for name in ("clusterID", "clusterName")
        },
    }


def outcome_of(result: Mapping[str, Any], policy: bytes) -> dict[str, str]:
    """Return what the predicate tells of the `spec` of a result under *policy*; what there is not is left out.

    Raises:
        MalformedEvidence: It is missing there.
    """
    token = optional_text(result, "attestationResult")
    found = {
        "verdict": text(result, "verdict"),
        "runUID": text(result, "derivedFromRun", "uid"),
        "machineID": optional_text(result, "machineID"),
        # Of the bytes that are sealed: what stands in the spec is compared with it.
        "policyID": named(policy),
        "earSha256": None if token is None else hashlib.sha256(token.encode()).hexdigest(),
    }
    return {name: said for name, said in found.items() if said is not None}


def entry_detail(*, statement: str, key_id: str, bundle_uid: str, run_uid: str) -> str:
    """Return the `detail` of the audit entry that binds a statement and the key that signed it to the log.

    Args:
        statement: `Statement.digest`.
        key_id: Thumbprint of the key: with it the log vouches for the key too.
        bundle_uid: Of the AttestationBundle.
        run_uid: Of the run.
    """
    return jcs({"bundle": bundle_uid, "key": key_id, "run": run_uid, "statement": statement}).decode()
