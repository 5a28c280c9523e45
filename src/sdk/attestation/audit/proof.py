"""The proof that one entry is in the signed log, in one file that anybody can verify without the service.

    {"id":k,"entry":{…},"leaf":base64,"index":k-1,"size":N,"hashes":[base64…],"checkpoint":"signed note","signers":[…]}

`leaf` is the entry byte for byte, which is what is hashed; `hashes` are the audit path, lowest first (RFC 6962
§2.1.1); `checkpoint` covers N entries. `entry` and `signers` are for people: a reader takes neither from the file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from attestation.audit import checkpoint
from attestation.audit.checkpoint import Checkpoint, Signer, UnverifiedCheckpoint
from attestation.audit.export import Pinned
from attestation.audit.merkle import leaf_hash, verify_inclusion
from attestation.audit.note import MAX_NOTE_BYTES, UnverifiedNote
from attestation.errors import MalformedEvidence, MalformedNote, ProofRejected
from attestation.wire import b64decode, b64encode, named_once

MEDIA_TYPE: Final = "application/json"
MAX_PROOF_BYTES: Final = 1 << 20
"""An entry twice, at most 64 hashes and one note are well below."""

MAX_HASHES: Final = 64
MAX_LEAF_BYTES: Final = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A checkpoint of the log; signers is empty where nobody was pinned."""

    checkpoint: Checkpoint
    note: UnverifiedNote
    signers: tuple[Signer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inclusion:
    """An entry that is in the log of a checkpoint; only `prove` makes one.

    Args:
        entry_id: Its id.
        entry: Its members.
        data: Its canonical bytes, which were hashed.
        hashes: The audit path, lowest first.
        head: The checkpoint.
    """

    entry_id: int
    entry: dict[str, Any]
    data: bytes
    hashes: tuple[bytes, ...]
    head: Head

    def document(self) -> dict[str, object]:
        """Return all that anybody needs to verify it again."""
        return {
            "id": self.entry_id,
            "entry": self.entry,
            "leaf": b64encode(self.data),
            "index": self.entry_id - 1,
            "size": self.head.checkpoint.size,
            "hashes": [b64encode(h) for h in self.hashes],
            "checkpoint": str(self.head.note),
            "signers": [signer.key.name for signer in self.head.signers],
        }


def read_head(note: bytes, pinned: Pinned | None) -> Head:
    """Read the checkpoint *note*, and verify who signed it where somebody is *pinned*.

    Raises:
        MalformedNote: No checkpoint.
        NoteRejected: Not signed by those who must.
    """
    unverified = checkpoint.parse(note)
    return Head(checkpoint=unverified.checkpoint, note=unverified.note, signers=_signers(unverified, pinned))


def prove(entry_id: int, data: bytes, hashes: Sequence[bytes], head: Head) -> Inclusion:
    """Verify that *data* is entry *entry_id* of the log of *head*.

    Raises:
        MalformedNote: *data* is no entry.
        ProofRejected: It does not follow from *hashes*.
    """
    path = tuple(hashes)
    # The leaf is computed from what is shown, so that nothing else can be proven than what is read.
    verify_inclusion(entry_id - 1, head.checkpoint.size, leaf_hash(data), path, head.checkpoint.root)
    return Inclusion(entry_id=entry_id, entry=members(data), data=data, hashes=path, head=head)


def read_proof(file: bytes, pinned: Pinned | None) -> Inclusion:
    """Verify the proof in *file*, which `Inclusion.document` wrote.

    Args:
        file: The document.
        pinned: Whom to believe; with None the proof only fits itself, and `Head.signers` is empty.

    Raises:
        MalformedNote: It is no such document.
        NoteRejected: Its checkpoint is not signed by those who must.
        ProofRejected: The entry is not in the log of that checkpoint, or the document says something else.
    """
    if len(file) > MAX_PROOF_BYTES:
        raise MalformedNote(f"a proof of {len(file)} bytes is too long")
    said = _object(file, "the proof")
    number, leaf, hashes, note = (said.get(name) for name in ("id", "leaf", "hashes", "checkpoint"))
    if not (
        type(number) is int
        and isinstance(leaf, str)
        and isinstance(note, str)
        and isinstance(hashes, list)
        and len(hashes) <= MAX_HASHES
        and all(isinstance(each, str) for each in hashes)
    ):
        raise MalformedNote("a proof has the members id, leaf, hashes and checkpoint")
    head = read_head(note.encode("utf-8", "surrogatepass")[: MAX_NOTE_BYTES + 1], pinned)
    try:
        data = b64decode(leaf, "leaf", max_bytes=MAX_LEAF_BYTES)
        path = [b64decode(each, "hash", max_bytes=32) for each in hashes]
    except MalformedEvidence as e:
        raise MalformedNote(str(e)) from e
    proven = prove(number, data, path, head)
    # Somebody reads `entry` with their eyes: it must not tell of another entry than the one that is proven.
    if said.get("entry") != proven.entry:
        raise ProofRejected(f"the entry that is shown is not the one that is proven, entry {number}")
    return proven


def members(data: bytes) -> dict[str, Any]:
    """Return what the canonical bytes of an entry say.

    Raises:
        MalformedNote: They are no JSON object.
    """
    return _object(data, "an entry of the log")


def _signers(unverified: UnverifiedCheckpoint, pinned: Pinned | None) -> tuple[Signer, ...]:
    if pinned is None:
        return ()
    return checkpoint.verify(
        unverified, log_keys=pinned.log_keys, witnesses=pinned.witnesses, quorum=pinned.quorum
    ).signers


def _object(data: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(data, object_pairs_hook=named_once)
    except (ValueError, RecursionError) as e:
        raise MalformedNote(f"{what} is not JSON") from e
    if not isinstance(found, dict):
        raise MalformedNote(f"{what} is not a JSON object")
    return found
