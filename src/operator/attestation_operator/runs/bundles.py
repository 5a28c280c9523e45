"""The AttestationBundle of a run (CONFIDENTIAL.md §2.6): what the service is asked to seal, and how far the seal is."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from attestation.api.runs import RunBundle, RunSeal, SealArchive, SealedObject, SealLogEntry
from attestation.clock import rfc3339
from attestation.runs import STAGES, SealPhase
from attestation_operator.conditions import said, with_conditions
from attestation_operator.objects import BUNDLE, SECURITY_EVENT, Key, Raw, Target
from attestation_operator.runs.events import ARCHIVED, ATTESTED

SEALED: Final[SealPhase] = "Sealed"
_AFTER: Final[Mapping[str, int]] = {phase: done for done, phase in enumerate((*STAGES, SEALED))}
"""Phase -> how many of the stages are done."""


def bundle_key(event: Key) -> Key:
    """Return where the bundle of a verdict's event is: `ab-` and the digits of the event."""
    return Key(kind=BUNDLE, name=f"ab-{event.name.removeprefix('se-')}")


def bundle_object(key: Key, event: Raw) -> dict[str, Any]:
    """Return the AttestationBundle for *event*."""
    return {
        "apiVersion": BUNDLE.api_version,
        "kind": BUNDLE.kind,
        "metadata": {"name": key.name},
        "spec": {"attestedFor": Target.of(SECURITY_EVENT, event).reference},
    }


def seal_request(bundle: Raw, event: Raw, result: Raw) -> RunSeal:
    """Return what the service is asked to seal: event and result as they are stored."""
    return RunSeal(
        bundle_name=bundle["metadata"]["name"],
        bundle_uid=bundle["metadata"]["uid"],
        event=_sealed(event),
        result=_sealed(result),
    )


def _sealed(raw: Raw) -> SealedObject:
    metadata = raw["metadata"]
    return SealedObject(
        namespace=metadata.get("namespace"),
        name=metadata["name"],
        uid=metadata["uid"],
        spec=dict(raw["spec"]),
    )


def bundle_status(there: Raw, sealed: RunBundle, *, at: datetime) -> dict[str, Any] | None:
    """Return the members of `status` that say how far the seal is; None where they say it already."""
    status = there.get("status") or {}
    done = _AFTER.get(sealed.phase, 0)
    failed = {each.stage: each for each in sealed.failures}
    conditions = [
        said(stage, "Done")
        if number < done
        else said(stage, failed[stage].reason, failed[stage].detail or "", true=False)
        if stage in failed
        else said(stage, "Waiting", true=False)
        for number, stage in enumerate(STAGES.values())
    ]
    wanted = {
        "phase": sealed.phase,
        "statementDigest": sealed.statement_digest,
        "signature": {"mode": "service-key", "keyID": sealed.key_id} if sealed.key_id else None,
        "logEntry": None if sealed.log_entry is None else _entry(sealed.log_entry),
        "wormRef": None if sealed.archive is None else _archive(sealed.archive),
        "signedAt": None if sealed.signed_at is None else rfc3339(sealed.signed_at),
        "sealedAt": None if sealed.sealed_at is None else rfc3339(sealed.sealed_at),
        "failures": [
            {
                "stage": each.stage,
                "reason": each.reason,
                "timestamp": rfc3339(each.timestamp),
                **({"detail": each.detail} if each.detail else {}),
            }
            for each in sealed.failures
        ]
        or None,
        "conditions": with_conditions(status.get("conditions") or (), conditions, generation=None, at=at),
    }
    if all(status.get(key) == value for key, value in wanted.items()):
        return None
    return wanted


def _entry(entry: SealLogEntry) -> dict[str, Any]:
    return {
        "origin": entry.origin,
        "index": entry.index,
        "treeSize": entry.tree_size,
        "rootHash": entry.root_hash,
        "hashes": list(entry.hashes),
        "checkpoint": entry.checkpoint,
    }


def _archive(archive: SealArchive) -> dict[str, Any]:
    return {
        "mediaType": archive.media_type,
        "url": archive.url,
        "sha256": archive.sha256,
        "size": archive.size,
    }


def event_status(event: Raw, bundle: Raw, sealed: RunBundle) -> dict[str, Any] | None:
    """Return the members of an event's `status` that say what became of its seal; None where they say it already.

    Attested: the statement is signed and stands in the log, which proves it. Archived: its file is in the archive too.
    """
    if sealed.log_entry is None:
        return None
    wanted: dict[str, Any] = {
        "phase": ATTESTED,
        "attestationDigest": sealed.statement_digest,
        "attestationBundleRef": {"name": bundle["metadata"]["name"]},
    }
    if sealed.phase == SEALED and sealed.sealed_at is not None:
        wanted |= {"phase": ARCHIVED, "archivedAt": rfc3339(sealed.sealed_at)}
    there = event.get("status") or {}
    return None if all(there.get(key) == value for key, value in wanted.items()) else wanted
