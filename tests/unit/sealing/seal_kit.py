"""Sealed bundles to try: a run, what was found, and a log that has it, made anew from a seed each time."""

from __future__ import annotations

import hashlib
import json
import re
from base64 import urlsafe_b64encode
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from attestation.audit import AuditEntry, AuditEvent, canonical_bytes, chain, leaf_hash_of
from attestation.audit.merkle import inclusion_proof
from attestation.keys import FileSigner
from attestation.reference import IDENTITY_ONLY, identifier
from attestation.reference.identifier import canonical
from attestation.sealing import (
    ACTION,
    PAYLOAD_TYPE,
    Attestor,
    LogProof,
    SealedObject,
    Statement,
    entry_detail,
    make_statement,
    service_key,
    write,
)
from attestation.sealing.keys import public_members
from attestation.wire import jcs, pae
from tests.unit.audit.log_kit import AT, MemoryTree, checkpoint, entries, signed

RUN_UID = "0c1d2e3f-0000-4000-8000-000000000001"
BUNDLE_UID = "0c1d2e3f-0000-4000-8000-000000000009"
POLICY = canonical(IDENTITY_ONLY)
EVIDENCE = (
    ("application/vnd.itl.tpm-quote", b'{"pcr_quote":"/1RDR4AY","pcr_signature":"ABQ="}'),
    ("application/octet-stream", b"\0\1\2"),
)
TOKEN = "e30.e30.c2ln"
EVENT: dict[str, Any] = {
    "class": "Compliance",
    "type": "AttestationVerified",
    "severity": "info",
    "clusterIdentity": {"clusterID": "prod-1", "clusterName": "Köln"},
    "source": {"kind": "ConfidentialAttestationRun", "name": "nightly"},
    "detectedAt": "2026-11-21T03:42:00Z",
    "signals": {"verdict": "verified", "run.uid": RUN_UID},
}
RESULT: dict[str, Any] = {
    "derivedFromRun": {"name": "nightly", "uid": RUN_UID},
    "backend": "tpm",
    "nodeName": "cp-1",
    "nodeUID": "0c1d2e3f-0000-4000-8000-000000000002",
    "machineID": "7a0e3c1e-6a43-4c5b-9d0a-000000000001",
    "attempt": 1,
    "verdict": "verified",
    "policyID": identifier(IDENTITY_ONLY),
    "policySource": "ref",
    "attestationResult": TOKEN,
    "evidence": [
        {"mediaType": kind, "sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        for kind, data in EVIDENCE
    ],
    "measurements": [{"slot": "0", "digest": "ab" * 32}],
}
PRIVATE = ec.derive_private_key(0x5EA1, ec.SECP384R1())
SIGNER = FileSigner(PRIVATE.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
KEY = service_key(public_members(SIGNER.jwks()["keys"][0]))
ATTESTED_AT = datetime(2026, 11, 21, 4, tzinfo=UTC)
LEAVES_BEFORE = 4


def statement(
    event: dict[str, Any] = EVENT,
    result: dict[str, Any] = RESULT,
    policy: bytes = POLICY,
    evidence: tuple[tuple[str, bytes], ...] = EVIDENCE,
) -> Statement:
    """Return the statement about a run."""
    return make_statement(
        event=SealedObject(name="se-01", uid="0c1d2e3f-0000-4000-8000-000000000003", spec=event),
        result=SealedObject(
            name="nightly-result",
            namespace="default",
            uid="0c1d2e3f-0000-4000-8000-000000000004",
            spec=result,
        ),
        policy=policy,
        evidence=evidence,
        attestor=Attestor(
            name="itl-attestation-service",
            version="0.1.0",
            instance="https://attest.example",
            attested_at=ATTESTED_AT,
        ),
    )


def detail_of(said: Statement, **other: str) -> str:
    """Return the detail of the entry about *said*."""
    members = {
        "statement": said.digest,
        "key_id": KEY.key_id,
        "bundle_uid": BUNDLE_UID,
        "run_uid": RUN_UID,
        **other,
    }
    return entry_detail(**members)


def log_with(detail: str, action: str = ACTION, after: int = 1) -> tuple[AuditEntry, ...]:
    """Return a log with an entry of *detail* after four others, and *after* more behind it."""
    log = list(entries(LEAVES_BEFORE))
    for number in range(1 + after):
        told = AuditEvent(
            operator_cn="system:serviceaccount:attestation:controller",
            action=action if number == 0 else "approve",
            detail=detail if number == 0 else f"later {number}",
        )
        log.append(chain(told, at=AT, prev_hash=log[-1].entry_hash))
    return tuple(log)


def proof_in(log: tuple[AuditEntry, ...], note: str | None = None) -> LogProof:
    """Return the proof of the entry of `log_with` in *log*."""
    head = checkpoint(log)
    tree = MemoryTree.over([leaf_hash_of(entry) for entry in log])
    return LogProof(
        entry=canonical_bytes(log[LEAVES_BEFORE]),
        origin=head.origin,
        index=LEAVES_BEFORE,
        tree_size=head.size,
        root=head.root,
        hashes=tuple(inclusion_proof(tree, LEAVES_BEFORE, head.size)),
        checkpoint=note or signed(head),
    )


@lru_cache(maxsize=1)
def sealed() -> bytes:
    """Return a good file."""
    return sealed_as(statement())


def sealed_as(said: Statement, log: LogProof | None = None) -> bytes:
    """Return a file about *said*, signed and logged."""
    return write(
        said,
        signature=SIGNER.sign_dsse(said.data, payload_type=PAYLOAD_TYPE),
        key=KEY,
        log=log or proof_in(log_with(detail_of(said))),
    )


def restated(change: dict[str, Any], subjects: Statement | None = None) -> bytes:
    """Return a file whose statement has other members: as a service would sign and log it that meant to deceive."""
    base = subjects or statement()
    said = Statement(data=jcs({**json.loads(base.data), **change}), subjects=base.subjects)
    return sealed_as(said)


def other_signature(said: Statement) -> bytes:
    """Return the signature of another key over the right bytes."""
    other = ec.derive_private_key(0xBAD, ec.SECP384R1())
    return other.sign(pae(PAYLOAD_TYPE, said.data), ec.ECDSA(hashes.SHA384()))


def coordinates(key: ec.EllipticCurvePublicKey) -> tuple[str, str]:
    """Return x and y of *key* as a JWK has them."""
    numbers = key.public_numbers()
    x, y = (urlsafe_b64encode(each.to_bytes(48)).decode() for each in (numbers.x, numbers.y))
    return x, y


def places(file: bytes) -> set[int]:
    """Return where to change a byte of *file*."""
    found = set(range(len(file)))
    for run in re.finditer(rb"[A-Za-z0-9+/_=-]{64,}", file):
        found -= set(range(run.start() + 8, run.end() - 8)) - set(range(run.start(), run.end(), 11))
    assert len(found) > 2_000
    return found
