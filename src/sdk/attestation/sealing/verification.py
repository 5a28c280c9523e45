"""Believing a sealed bundle: offline, under the keys of the audit log, however long ago it was made."""

# Algorithms for: service-key
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from attestation.audit import checkpoint
from attestation.audit.checkpoint import LOG_TYPES, Signer
from attestation.audit.merkle import leaf_hash, verify_inclusion
from attestation.audit.note import VerifierKey
from attestation.audit.proof import members
from attestation.clock import parse_rfc3339
from attestation.errors import MalformedEvidence, NoteRejected, SealRejected
from attestation.sealing.file import UnverifiedSeal
from attestation.sealing.keys import ServiceKey, in_one_spelling
from attestation.sealing.members import canonical_object, text
from attestation.sealing.statement import (
    ACTION,
    PAYLOAD_TYPE,
    POLICY,
    PREDICATE_TYPE,
    SIGNING,
    STATEMENT_TYPE,
    Subject,
    digest_of,
    entry_detail,
    event_subject,
    incident_of,
    outcome_of,
)
from attestation.wire import pae


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedClaims:
    """What a bundle proves; only `verify` builds one.

    Args:
        digest: Of the statement, `sha256:…`.
        predicate: What the statement says.
        event: `spec` of the SecurityEvent.
        event_name: Its name.
        result: `spec` of the ConfidentialAttestationResult.
        result_name: Its namespace and name, `<ns>/<name>`.
        policy: All that was asked.
        evidence: What the node posted.
        subjects: All that was sealed: event, result, policy, evidence.
        bundle_uid: Of the AttestationBundle.
        attested_at: When the service signed, by its own word.
        logged_at: When the log took it in, by the log's word; it existed when the checkpoint was made.
        logged_by: Who had it sealed: the controller's ServiceAccount.
        key_id: The key that signed.
        key_is_pinned: The reader knew that key; else the log alone vouches for it.
        origin: Name of the log.
        index: Of the entry, from 0.
        signers: Who signed the checkpoint.
    """

    digest: str
    predicate: Mapping[str, Any]
    event: Mapping[str, Any]
    event_name: str
    result: Mapping[str, Any]
    result_name: str
    policy: Mapping[str, Any]
    evidence: tuple[Subject, ...]
    subjects: tuple[Subject, ...]
    bundle_uid: str
    attested_at: datetime
    logged_at: datetime
    logged_by: str
    key_id: str
    key_is_pinned: bool
    origin: str
    index: int
    signers: tuple[Signer, ...]


def verify(
    seal: UnverifiedSeal,
    *,
    log_keys: Iterable[VerifierKey],
    service_keys: Sequence[ServiceKey] | None,
) -> SealedClaims:
    """Verify *seal*.

    Args:
        seal: Result of `parse`.
        log_keys: Pinned keys of the audit log, as its operator gave them.
        service_keys: Pinned keys of the service; None where the reader has none, and the log's entry, which names the
            key, is to vouch for it.

    Raises:
        SealRejected: A part does not belong to what was signed and logged, or the key is not pinned.
        NoteRejected: The checkpoint is not signed by the log.
        ProofRejected: The entry is not in the log of that checkpoint.
        MalformedEvidence: What is signed cannot be read.
    """
    # 1. The log signed this checkpoint, and nobody else's line stands under it, which no key here could judge.
    signers = _checkpoint(seal, tuple(log_keys))
    # 2. The entry is in that log: the leaf is computed from what is shown, so nothing else can be proven than is read.
    log = seal.log
    verify_inclusion(log.index, log.tree_size, leaf_hash(log.entry), log.hashes, log.root)
    # 3. The entry is about this statement and this key. Otherwise any entry of the log would do for any statement.
    digest = digest_of(seal.statement)
    entry, bundle_uid, run_uid = _entry(log.entry, digest, seal.key.key_id)
    # 4. That key is the reader's, where the reader has any. Otherwise a log that was taken over vouches for all.
    pinned = service_keys is not None and seal.key.key_id in {key.key_id for key in service_keys}
    if service_keys is not None and not pinned:
        raise SealRejected(f"sealed by the key {seal.key.key_id}, which is not pinned")
    # 5. The key in the file signed exactly these bytes.
    _signature(seal)
    # 6. The subjects are what the statement names, all of them, in its order, byte for byte.
    statement = canonical_object(seal.statement, "the statement")
    if (statement.get("_type"), statement.get("predicateType")) != (STATEMENT_TYPE, PREDICATE_TYPE):
        raise SealRejected("the statement is of another type")
    if statement.get("subject") != [subject.descriptor() for subject in seal.subjects]:
        raise SealRejected("the lines of the file are not the subjects of the statement")
    # 7. What the predicate tells is what the sealed specs say: people read the one and think of the other.
    return _claims(seal, statement, digest, entry, bundle_uid, run_uid, signers, key_is_pinned=pinned)


def _checkpoint(seal: UnverifiedSeal, log_keys: tuple[VerifierKey, ...]) -> tuple[Signer, ...]:
    unverified = checkpoint.parse(seal.log.checkpoint.encode("utf-8", "surrogatepass"))
    said = unverified.checkpoint
    if (said.origin, said.size, said.root) != (seal.log.origin, seal.log.tree_size, seal.log.root):
        raise SealRejected("the checkpoint is not that of the proof")
    signers = checkpoint.verify(unverified, log_keys=log_keys, witnesses=(), quorum=0).signers
    lines = [(line.name, line.key_id) for line in unverified.note.signatures]
    known = {(each.key.name, each.key.key_id): LOG_TYPES.index(each.key.type) for each in signers}
    if strangers := [name for name, key_id in lines if (name, key_id) not in known]:
        raise NoteRejected(f"the checkpoint has a signature of {strangers[0]} that no pinned key made")
    # Twice, or in another order, it would be another file that says the same.
    if lines != sorted(known, key=known.__getitem__):
        raise NoteRejected(
            "the signatures of the checkpoint are not each there once, in the order of the log"
        )
    return signers


def _entry(data: bytes, digest: str, key_id: str) -> tuple[dict[str, Any], str, str]:
    """Return the members of the entry, and which bundle and run it names."""
    entry = members(data)
    detail = text(entry, "detail")
    said = canonical_object(detail.encode("utf-8", "surrogatepass"), "the entry's detail")
    bundle_uid, run_uid = text(said, "bundle"), text(said, "run")
    expected = entry_detail(statement=digest, key_id=key_id, bundle_uid=bundle_uid, run_uid=run_uid)
    if (text(entry, "action"), detail) != (ACTION, expected):
        raise SealRejected("the entry of the log is about something else than this statement and its key")
    return entry, bundle_uid, run_uid


def _named(result: Mapping[str, Any]) -> list[tuple[object, object]]:
    """Return media type and SHA-256 of the evidence that the `spec` of a result names."""
    listed = result.get("evidence") or []
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise MalformedEvidence("evidence of the result is no list of objects")
    return [(each.get("mediaType"), each.get("sha256")) for each in listed]


def _instant(said: str) -> datetime:
    try:
        return parse_rfc3339(said)
    except ValueError as e:
        raise MalformedEvidence(f"{said[:40]!r} is no instant") from e


def _signature(seal: UnverifiedSeal) -> None:
    if seal.key_id != seal.key.key_id:
        raise SealRejected("the envelope names another key than the file has")
    try:
        seal.key.public.verify(seal.signature, pae(PAYLOAD_TYPE, seal.statement), ec.ECDSA(hashes.SHA384()))
        one = in_one_spelling(seal.signature)
    except (InvalidSignature, ValueError) as e:
        raise SealRejected(f"the signature of {seal.key_id} does not verify") from e
    if one != seal.signature:
        raise SealRejected(f"the signature of {seal.key_id} is not the one that the file was written with")


def _claims(
    seal: UnverifiedSeal,
    statement: dict[str, Any],
    digest: str,
    entry: dict[str, Any],
    bundle_uid: str,
    run_uid: str,
    signers: tuple[Signer, ...],
    *,
    key_is_pinned: bool,
) -> SealedClaims:
    predicate = statement.get("predicate")
    if not isinstance(predicate, dict):
        raise SealRejected("the statement has no predicate")
    event, result, policy, *evidence = seal.subjects
    event_spec = canonical_object(event.content, "the event")
    result_spec = canonical_object(result.content, "the result")
    event_name = event.name.removeprefix("SecurityEvent/").rpartition("@")[0]
    expected = {
        "incident": {
            "securityEventUID": text(predicate, "incident", "securityEventUID"),
            **incident_of(event_spec),
        },
        "attestor": predicate.get("attestor"),
        "tooling": {"signingPredicate": SIGNING},
        "result": outcome_of(result_spec, policy.content),
    }
    if (
        predicate != expected
        or event.name != event_subject(event_name)
        or not result.name.startswith("Result/")
        or policy.name != POLICY
        or [each.name for each in evidence] != [f"evidence/{n}" for n in range(1, len(evidence) + 1)]
    ):
        raise SealRejected("the statement does not tell what its subjects say")
    outcome = outcome_of(result_spec, policy.content)
    if (run_uid, result_spec.get("policyID")) != (outcome["runUID"], outcome["policyID"]):
        raise SealRejected("the result is of another run or policy than was sealed")
    if _named(result_spec) != [(each.media_type, each.sha256) for each in evidence]:
        raise SealRejected("the result rests on other evidence than was sealed")
    return SealedClaims(
        digest=digest,
        predicate=predicate,
        event=event_spec,
        event_name=event_name,
        result=result_spec,
        result_name=result.name.removeprefix("Result/"),
        policy=canonical_object(policy.content, "the policy"),
        evidence=tuple(evidence),
        subjects=seal.subjects,
        bundle_uid=bundle_uid,
        attested_at=_instant(text(predicate, "attestor", "attestedAt")),
        logged_at=_instant(text(entry, "timestamp")),
        logged_by=text(entry, "operator_cn"),
        key_id=seal.key.key_id,
        key_is_pinned=key_is_pinned,
        origin=seal.log.origin,
        index=seal.log.index,
        signers=signers,
    )
