"""Walking the chain: in order, in constant memory, naming the first entry that does not fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from attestation.audit.entry import GENESIS_HASH, AuditEntry, entry_hash


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainWalk:
    """What a walk found.

    Args:
        valid: True if every entry fits the one before it and hashes to its own hash.
        entries: Number of entries that were good.
        root_hash: Hash of the last entry; None where invalid or empty.
        first_invalid_id: Row id of the first entry that does not fit.
        error: What is wrong with that entry.
    """

    valid: bool
    entries: int
    root_hash: str | None
    first_invalid_id: int | None
    error: str | None


class ChainVerifier:
    """Takes entries in the order of their ids, any number at a time.

    It holds one hash and one counter, so a log of any length is walked in constant memory, and a caller can
    read it in pages without keeping a transaction open.
    """

    def __init__(self) -> None:
        self._prev_hash = GENESIS_HASH
        self._entries = 0
        self._first_invalid_id: int | None = None
        self._error: str | None = None

    def feed(self, entries: Iterable[tuple[int, AuditEntry]]) -> bool:
        """Check *entries*, pairs of row id and entry; return False once the chain is broken."""
        if self._error is not None:
            return False
        for row_id, entry in entries:
            # 1. It names the entry before it. Otherwise entries could be removed, inserted or reordered.
            if entry.prev_hash != self._prev_hash:
                return self._broken(row_id, "prev_hash mismatch")
            # 2. It hashes to what it says. Otherwise its content could be changed in place.
            if entry_hash(entry) != entry.entry_hash:
                return self._broken(row_id, "entry_hash mismatch")
            self._prev_hash = entry.entry_hash
            self._entries += 1
        return True

    def walk(self) -> ChainWalk:
        """Return what was found so far."""
        valid = self._error is None
        return ChainWalk(
            valid=valid,
            entries=self._entries,
            root_hash=self._prev_hash if valid and self._entries else None,
            first_invalid_id=self._first_invalid_id,
            error=self._error,
        )

    def _broken(self, row_id: int, error: str) -> bool:
        self._first_invalid_id = row_id
        self._error = f"{error} at entry {row_id}"
        return False


def verify_chain(entries: Iterable[tuple[int, AuditEntry]]) -> ChainWalk:
    """Walk *entries*, pairs of row id and entry in ascending order of id."""
    verifier = ChainVerifier()
    verifier.feed(entries)
    return verifier.walk()
