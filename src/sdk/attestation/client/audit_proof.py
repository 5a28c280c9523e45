"""Entries of the audit log, asked of the service and believed for their hashes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attestation.audit.entry import GENESIS_HASH, hash_of
from attestation.audit.merkle import TILE_WIDTH, verify_consistency
from attestation.audit.proof import Inclusion, members, prove, read_head
from attestation.audit.tiles import parse_bundle
from attestation.errors import ProofRejected, ProofUnavailable
from attestation.wire import b64decode

if TYPE_CHECKING:
    from attestation.audit.checkpoint import Checkpoint
    from attestation.audit.export import Pinned
    from attestation.client import OperatorClient


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
    hashes = [b64decode(h, "proof", max_bytes=32) for h in client.audit_inclusion(index, size).hashes]
    return prove(entry_id, data, hashes, head)


def grew(client: OperatorClient, old: Checkpoint, new: Checkpoint) -> None:
    """Return once it is proven that the log of *new* begins with that of *old*; the service gives hashes alone.

    Raises:
        ProofRejected: It is another log, or one that was rewritten.
        ProofUnavailable: The service's own log is shorter than *new* says.
    """
    if old.origin != new.origin:
        raise ProofRejected(f"one is a checkpoint of {old.origin}, the other of {new.origin}")
    # The service is not asked for what cannot be; a log that lost entries is the worst that it could answer.
    if old.size > new.size:
        raise ProofRejected(
            f"the log has {new.size} entries, your checkpoint covers {old.size}: its end is missing"
        )
    hashes = client.audit_consistency(old.size, new.size).hashes if 0 < old.size < new.size else []
    path = tuple(b64decode(text, "proof", max_bytes=32) for text in hashes)
    verify_consistency(old.size, new.size, old.root, new.root, path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An entry and its place in the chain, as the log has it.

    Args:
        entry_id: Its id.
        entry: Its members.
        entry_hash: SHA-256 of its canonical bytes, computed here.
        follows: It names the hash of the entry before it, computed here too; of the first, 64 zeros.
    """

    entry_id: int
    entry: dict[str, Any]
    entry_hash: str
    follows: bool


def place(client: OperatorClient, entry_id: int) -> Place:
    """Fetch entry *entry_id*, and compare it with the one before it.

    Raises:
        ProofUnavailable: The log has no such entry.
        MalformedNote: The service sends something else than entries.
    """
    number, at = divmod(entry_id - 1, TILE_WIDTH)
    found = parse_bundle(client.audit_entries(number, at + 1), at + 1)[-2:]
    if number and not at:
        found = [parse_bundle(client.audit_entries(number - 1, TILE_WIDTH), TILE_WIDTH)[-1], *found]
    entry = members(found[-1])
    before = GENESIS_HASH if len(found) == 1 else hash_of(found[0])
    return Place(
        entry_id=entry_id,
        entry=entry,
        entry_hash=hash_of(found[-1]),
        follows=entry.get("prev_hash") == before,
    )
