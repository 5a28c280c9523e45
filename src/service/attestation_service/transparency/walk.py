"""Whether the tree that we sign is the log that we list: entries, leaves and tiles, page by page."""

# Algorithms for: audit-hash
from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attestation.audit import GENESIS_HASH
from attestation.audit.merkle import TILE_WIDTH, Frontier, tile_root
from attestation.errors import LogBroken
from attestation.store import Tx

PAGE_ENTRIES = 2_048


@dataclass(frozen=True, slots=True)
class Page:
    """Some entries, and what the tree says of them.

    Args:
        entries: Id, prev_hash, entry_hash and canonical bytes of each, in the order of the ids.
        leaves: Hashes of level 0 in the places of these entries.
        tiles: Level, number, hashes of each tile that these entries complete, and its root one level above;
            None where that is missing.
    """

    entries: list[tuple[int, str, str, bytes]]
    leaves: list[bytes]
    tiles: list[tuple[int, int, Sequence[bytes], bytes | None]]


def page(tx: Tx, after: int, limit: int = PAGE_ENTRIES) -> Page:
    """Read the *limit* entries after the entry with id *after*, and their nodes."""
    entries = tx.audit.walk(after, limit)
    tree = tx.audit.tree
    tiles: list[tuple[int, int, Sequence[bytes], bytes | None]] = []
    level, start, stop = 0, after // TILE_WIDTH, (after + len(entries)) // TILE_WIDTH
    while start < stop:
        for number in range(start, stop):
            above = tree.nodes(level + 1, number, 1)
            tile = tree.nodes(level, number * TILE_WIDTH, TILE_WIDTH)
            tiles.append((level, number, tile, above[0] if above else None))
        level, start, stop = level + 1, start // TILE_WIDTH, stop // TILE_WIDTH
    return Page(entries, tree.nodes(0, after, len(entries)), tiles)


class Walk:
    """Takes pages in order; holds one hash and, where the whole log is walked, the edge of its tree.

    Args:
        after: Id of the entry behind which the walk begins; 0 for the whole log.
        last_hash: That entry's `entry_hash`.

    After an error it is of no more use.
    """

    __slots__ = ("_frontier", "_good", "last_hash", "size")

    def __init__(self, after: int = 0, last_hash: str = GENESIS_HASH) -> None:
        self.size = after
        self.last_hash = last_hash
        self._frontier = None if after else Frontier()
        self._good = 0

    def feed(self, found: Page, roots: Mapping[int, bytes] | None = None) -> None:
        """Check a page.

        Args:
            found: The next page.
            roots: Of a walk over the whole log: root that it must have, by size.

        Raises:
            LogBroken: Names the entry that does not fit, or the tile.
        """
        sha256 = hashlib.sha256
        frontier = self._frontier
        leaves = iter(found.leaves)
        for entry_id, prev_hash, entry_hash, data in found.entries:
            # 1. Ids have no gap: an entry that was removed is missing in sight.
            if entry_id != self.size + 1:
                raise LogBroken(
                    f"entry {self.size + 1} is missing: after entry {self.size} comes entry {entry_id}",
                    entry_id=self.size + 1,
                )
            # 2. It names the entry before it. Otherwise entries could be removed, inserted or reordered.
            if prev_hash != self.last_hash:
                raise LogBroken(f"prev_hash mismatch at entry {entry_id}", entry_id=entry_id)
            # 3. It hashes to what it says. Otherwise its content could be changed in place.
            if sha256(data).hexdigest() != entry_hash:
                raise LogBroken(f"entry_hash mismatch at entry {entry_id}", entry_id=entry_id)
            # 4. The tree has it. Otherwise what we sign would be another log than the one that we list.
            leaf = sha256(b"\0" + data).digest()
            if next(leaves, None) != leaf:
                raise LogBroken(f"the tree has another leaf for entry {entry_id}", entry_id=entry_id)
            self.size, self.last_hash = entry_id, entry_hash
            if frontier is not None:
                frontier.append(leaf)
                # 5. The tree is the one that was signed. Otherwise all could be rewritten, hashes included.
                if roots and entry_id in roots:
                    self.check(roots[entry_id])
        # 6. And what stands above the leaves follows from them.
        for level, number, tile, above in found.tiles:
            if len(tile) != TILE_WIDTH or tile_root(tile) != above:
                raise LogBroken(f"tile {number} of level {level} does not lead to its root", entry_id=None)

    def check(self, known: bytes) -> None:
        """Compare the root of a walk over the whole log with *known*, which was signed for this size.

        Raises:
            LogBroken: Names the range in which the log was rewritten.
        """
        if self.root() != known:
            first = self._good + 1
            which = f"entry {first}" if first >= self.size else f"one of the entries {first} to {self.size}"
            raise LogBroken(
                f"{which} was rewritten, with all hashes: the checkpoint of size {self.size} has another root",
                entry_id=first,
            )
        self._good = self.size

    def root(self) -> bytes:
        """Return the root over all entries so far, of a walk over the whole log."""
        assert self._frontier is not None
        return self._frontier.root()
