"""Walking a log from its first entry: chain and tree together, in constant memory, against known roots.

The chain names the entry that does not fit. Whoever rewrites the log from one entry on and computes every hash
anew has a chain that fits; the roots of checkpoints, signed before, say between which two sizes it was done.
"""

# Algorithms for: audit-hash
from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from attestation.audit.entry import GENESIS_HASH
from attestation.audit.merkle import Frontier
from attestation.errors import LogBroken


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRoot:
    """A root that the log must have at a size.

    Args:
        size: Number of entries.
        root: Root of their tree, 32 bytes.
        source: Where it is known from, for the message: `a checkpoint given by you`.
    """

    size: int
    root: bytes
    source: str


class LogWalk:
    """Takes the entries of a log in order, any number at a time; holds some sixty hashes.

    Args:
        roots: What is known, in any order.

    After an error it is of no more use.
    """

    __slots__ = ("_frontier", "_good", "_roots", "last_hash", "size")

    def __init__(self, roots: Iterable[KnownRoot]) -> None:
        self.size = 0
        self.last_hash = GENESIS_HASH
        self._frontier = Frontier()
        self._good = 0
        # The next one is the last of the list.
        self._roots = sorted(roots, key=lambda known: known.size, reverse=True)
        self._check_roots()

    def feed(self, entries: Iterable[tuple[int, str, str, bytes]]) -> None:
        """Take *entries*: id, prev_hash, entry_hash and canonical bytes of each.

        Raises:
            LogBroken: Names the entry that does not fit, or the range in which the log was rewritten.
        """
        append, sha256 = self._frontier.append, hashlib.sha256
        size, last = self.size, self.last_hash
        next_root = self._roots[-1].size if self._roots else -1
        for entry_id, prev_hash, entry_hash, data in entries:
            # 1. Ids have no gap. They are the places in the tree, and a missing one is missing in sight.
            if entry_id != size + 1:
                raise _out_of_order(size, entry_id)
            # 2. It hashes to what it says. Otherwise its content could be changed in place.
            if sha256(data).hexdigest() != entry_hash:
                raise LogBroken(
                    f"entry {entry_id} was changed: it does not have the entry_hash that stands beside it",
                    entry_id=entry_id,
                )
            # 3. It names the entry before it. Otherwise entries could be removed, inserted or moved.
            if prev_hash != last:
                raise _does_not_follow(entry_id)
            append(sha256(b"\0" + data).digest())
            size, last = entry_id, entry_hash
            if size == next_root:
                self.size, self.last_hash = size, last
                # 4. The tree is the one that was signed. Otherwise all could be rewritten, hashes included.
                self._check_roots()
                next_root = self._roots[-1].size if self._roots else -1
        self.size, self.last_hash = size, last

    def finish(self) -> bytes:
        """Return the root over all entries.

        Raises:
            LogBroken: A known root covers more entries than there are: the end is missing.
        """
        if self._roots:
            first, most = self.size + 1, self._roots[0]
            missing = f"entry {first} is" if most.size == first else f"entries {first} to {most.size} are"
            raise LogBroken(
                f"{missing} missing: the log ends with entry {self.size}, {most.source} covers {most.size}",
                entry_id=first,
            )
        return self._frontier.root()

    def _check_roots(self) -> None:
        """Compare the root with those known at this size."""
        while self._roots and self._roots[-1].size == self.size:
            known = self._roots.pop()
            if self._frontier.root() != known.root:
                raise _rewritten(self._good, known)
        self._good = self.size


def _rewritten(good: int, known: KnownRoot) -> LogBroken:
    """Say between which sizes the log is another than the one that was signed."""
    first = good + 1
    fits = f", that of size {good} fits" if good else ""
    if first >= known.size:
        what = f"entry {known.size} was rewritten together with its hash"
    else:
        what = (
            f"among the entries {first} to {known.size} at least one was rewritten, and all hashes after it"
        )
    return LogBroken(f"{what}: {known.source} of size {known.size} has another root{fits}", entry_id=first)


def _out_of_order(size: int, entry_id: int) -> LogBroken:
    expected = size + 1
    if entry_id > expected:
        gone = (
            f"entry {expected} is"
            if entry_id == expected + 1
            else f"entries {expected} to {entry_id - 1} are"
        )
        return LogBroken(f"{gone} missing: after entry {size} comes entry {entry_id}", entry_id=expected)
    return LogBroken(
        f"entry {entry_id} stands where entry {expected} belongs: repeated, inserted or moved",
        entry_id=entry_id,
    )


def _does_not_follow(entry_id: int) -> LogBroken:
    return LogBroken(
        f"entry {entry_id} does not follow the entry before it: its prev_hash is another; "
        f"here an entry was removed, inserted, moved or rewritten",
        entry_id=entry_id,
    )
