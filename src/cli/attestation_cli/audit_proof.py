"""Proofs about the audit log: asked of the service, believed for their hashes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attestation.audit import checkpoint
from attestation.audit.checkpoint import Checkpoint, SignedCheckpoint, Signer, UnverifiedCheckpoint
from attestation.audit.export import Pinned
from attestation.audit.merkle import TILE_WIDTH, leaf_hash, verify_consistency, verify_inclusion
from attestation.audit.note import UnverifiedNote
from attestation.audit.tiles import parse_bundle
from attestation.errors import AlreadyExists, MalformedNote, ProofRejected, ProofUnavailable, RequestInvalid
from attestation.wire import b64decode, b64encode

if TYPE_CHECKING:
    from attestation.client import OperatorClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A checkpoint of the service; signers is empty where nobody was pinned."""

    checkpoint: Checkpoint
    note: UnverifiedNote
    signers: tuple[Signer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inclusion:
    """An entry that is in the log of a checkpoint; only `inclusion` makes one.

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
    signers = () if pinned is None else _verified(unverified, pinned, pinned.quorum).signers
    return Head(checkpoint=unverified.checkpoint, note=unverified.note, signers=signers)


def grew(client: OperatorClient, old: UnverifiedCheckpoint, head: Head, pinned: Pinned | None) -> int:
    """Return the size of *old* once it is proven that the log of *head* begins with it.

    Raises:
        NoteRejected: *old* was not signed by the log.
        ProofRejected: It is another log, or one that was rewritten.
    """
    if pinned is not None:
        _verified(old, pinned, 0)
    size, new = old.checkpoint.size, head.checkpoint
    # The service is not asked for what cannot be; a log that lost entries is the worst that it could answer.
    if size > new.size:
        raise ProofRejected(
            f"the log has {new.size} entries, your checkpoint covers {size}: its end is missing"
        )
    hashes = client.audit_consistency(size, new.size).hashes if 0 < size < new.size else []
    verify_consistency(size, new.size, old.checkpoint.root, new.root, _decoded(hashes))
    return size


def inclusion(client: OperatorClient, entry_id: int, pinned: Pinned | None) -> Inclusion:
    """Fetch entry *entry_id* and prove that it is in the newest signed log.

    Raises:
        ProofUnavailable: The newest checkpoint does not cover it yet.
        NoteRejected: The checkpoint was not signed by those who must.
        ProofRejected: The entry is not the one that was signed.
    """
    head = read_head(client.audit_checkpoint(), pinned)
    index, size = entry_id - 1, head.checkpoint.size
    if index >= size:
        raise ProofUnavailable(f"the newest checkpoint covers {size} entries, not yet entry {entry_id}")
    number, place = divmod(index, TILE_WIDTH)
    width = min(TILE_WIDTH, size - number * TILE_WIDTH)
    data = parse_bundle(client.audit_entries(number, width), width)[place]
    hashes = _decoded(client.audit_inclusion(index, size).hashes)
    # The leaf is computed from what we show, so that nothing else can be proven than what is read.
    verify_inclusion(index, size, leaf_hash(data), hashes, head.checkpoint.root)
    return Inclusion(entry_id=entry_id, entry=_members(data), data=data, hashes=hashes, head=head)


def keep(path: Path, note: bytes) -> None:
    """Write *note* into the new file *path*.

    Raises:
        AlreadyExists: There is such a file; an older checkpoint is worth more than a newer one.
        RequestInvalid: It cannot be written.
    """
    try:
        with path.open("xb") as file:
            file.write(note)
    except FileExistsError as e:
        raise AlreadyExists(f"{path} exists; an older checkpoint is evidence, choose another name") from e
    except OSError as e:
        raise RequestInvalid(f"{path} cannot be written: {e.strerror}") from e


def put(path: Path, data: bytes) -> None:
    """Write *data* into *path* at once; a link of that name is replaced and not followed.

    Raises:
        OSError: It cannot be written.
    """
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    with beside.open("xb") as file:
        file.write(data)
    beside.replace(path)


def _verified(signed: UnverifiedCheckpoint, pinned: Pinned, quorum: int) -> SignedCheckpoint:
    return checkpoint.verify(signed, log_keys=pinned.log_keys, witnesses=pinned.witnesses, quorum=quorum)


def _decoded(hashes: list[str]) -> tuple[bytes, ...]:
    return tuple(b64decode(text, "proof", max_bytes=32) for text in hashes)


def _members(data: bytes) -> dict[str, Any]:
    try:
        members = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise MalformedNote("an entry of the log is not JSON") from e
    if not isinstance(members, dict):
        raise MalformedNote("an entry of the log is not a JSON object")
    return members
