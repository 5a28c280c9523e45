"""The Merkle tree over the audit log: RFC 6962 §2.1 makes it, RFC 9162 §2.1.3.2 and §2.1.4.2 verify it.

Leaf *i*, counted from 0, is the audit entry with id *i* + 1. Every hash is a SHA-256 of 32 bytes:
of a leaf SHA-256(0x00 ‖ canonical bytes), of a node SHA-256(0x01 ‖ left ‖ right), of the empty tree SHA-256("").

Stored hashes stand in levels of tiles (C2SP tlog-tiles): a node of level L is the root of a complete subtree of
256**L leaves. What lies between two levels is computed again from at most 256 hashes.
"""

# Algorithms for: audit-hash
from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final, Protocol

from attestation.errors import ProofRejected, ProofUnavailable

HASH_BYTES: Final = 32
TILE_HEIGHT: Final = 8
TILE_WIDTH: Final = 256
MAX_SIZE: Final = 2**63 - 1
"""Most leaves that a tree may have: ids are integers of 64 bits with a sign."""

MAX_PROOF_HASHES: Final = 63
"""No proof about a tree of at most `MAX_SIZE` leaves is longer (C2SP tlog-witness has the same limit)."""

_sha256 = hashlib.sha256

EMPTY_ROOT: Final = _sha256(b"").digest()


class TileReader(Protocol):
    """Where the hashes of a tree are kept."""

    def hashes(self, level: int, start: int, count: int) -> Sequence[bytes]:
        """Return *count* hashes of level *level* from position *start*.

        A node of level L covers 256**L leaves and is complete; only such nodes are asked for.
        """
        ...


def leaf_hash(data: bytes) -> bytes:
    """Return the hash of a leaf: SHA-256(0x00 ‖ *data*), 32 bytes."""
    return _sha256(b"\0" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Return the hash of the node above two nodes: SHA-256(0x01 ‖ *left* ‖ *right*), 32 bytes."""
    return _sha256(b"\1" + left + right).digest()


def tile_root(hashes: Sequence[bytes]) -> bytes:
    """Return the root of a complete subtree over *hashes*: 1, 2, 4 … of them, of one height, left to right.

    Over the 256 hashes of a full tile it is one hash of the next level.
    """
    if not hashes or len(hashes) & (len(hashes) - 1):
        raise ValueError(f"{len(hashes)} hashes are no complete subtree")
    row = hashes
    while len(row) > 1:
        row = [_sha256(b"\1" + row[i] + row[i + 1]).digest() for i in range(0, len(row), 2)]
    return row[0]


class Frontier:
    """The right edge of a growing tree: one hash per set bit of its size, so memory does not grow with it."""

    __slots__ = ("_edge", "size")

    def __init__(self) -> None:
        self.size = 0
        # Roots of the complete subtrees, largest first.
        self._edge: list[bytes] = []

    def append(self, leaf: bytes) -> None:
        """Add the leaf whose hash is *leaf*."""
        edge = self._edge
        size = self.size
        # Each trailing one of the size is a subtree as high as what was just made: both become one.
        while size & 1:
            leaf = _sha256(b"\1" + edge.pop() + leaf).digest()
            size >>= 1
        edge.append(leaf)
        self.size += 1

    def root(self) -> bytes:
        """Return the root of the tree as it is now."""
        return _join(self._edge)


def root(reader: TileReader, size: int) -> bytes:
    """Return the root of the tree of the first *size* leaves (RFC 6962 §2.1, MTH)."""
    return _subtree(reader, 0, size)


def inclusion_proof(reader: TileReader, index: int, size: int) -> list[bytes]:
    """Return the audit path of leaf *index* in the tree of *size* leaves (RFC 6962 §2.1.1), lowest hash first.

    Raises:
        ProofUnavailable: There is no such leaf in a tree of that size.
    """
    if not 0 <= index < size <= MAX_SIZE:
        raise ProofUnavailable(f"there is no leaf {index} in a tree of {size}")
    path = []
    start, stop = 0, size
    while stop - start > 1:
        middle = start + _split(stop - start)
        if index < middle:
            path.append(_subtree(reader, middle, stop))
            stop = middle
        else:
            path.append(_subtree(reader, start, middle))
            start = middle
    return path[::-1]


def consistency_proof(reader: TileReader, old: int, new: int) -> list[bytes]:
    """Return the proof that the tree of *old* leaves is the beginning of that of *new* (RFC 6962 §2.1.2).

    It is empty where *old* is 0 or equals *new*: there is nothing to prove with hashes.

    Raises:
        ProofUnavailable: *old* is greater than *new*.
    """
    if not 0 <= old <= new <= MAX_SIZE:
        raise ProofUnavailable(f"a tree of {old} leaves is not the beginning of one of {new}")
    path: list[bytes] = []
    if old in (0, new):
        return path
    start, stop = 0, new
    while old != stop:
        middle = start + _split(stop - start)
        if old <= middle:
            path.append(_subtree(reader, middle, stop))
            stop = middle
        else:
            path.append(_subtree(reader, start, middle))
            start = middle
    # The verifier knows the old root; any other subtree that ends where the old tree ends must be told.
    if start:
        path.append(_subtree(reader, start, stop))
    return path[::-1]


def verify_inclusion(index: int, size: int, leaf: bytes, proof: Sequence[bytes], root: bytes) -> None:
    """Verify that the leaf with hash *leaf* is number *index* of the tree *root* of *size* leaves.

    The steps are those of RFC 9162 §2.1.3.2.

    Raises:
        ProofRejected: It does not follow from *proof*.
    """
    # 1. There is such a leaf.
    if not 0 <= index < size <= MAX_SIZE:
        raise ProofRejected(f"there is no leaf {index} in a tree of {size}")
    # 2.-4. From the leaf to the root; each hash stands left or right of what is known, as the numbers demand.
    fn, sn, r = index, size - 1, leaf
    for p in proof:
        if sn == 0:
            raise ProofRejected("the proof of inclusion is longer than the tree is high")
        if fn & 1 or fn == sn:
            r = node_hash(p, r)
            while not fn & 1 and fn:
                fn >>= 1
                sn >>= 1
        else:
            r = node_hash(r, p)
        fn >>= 1
        sn >>= 1
    # 5. It ends at the top. Without this, an inner node could pass for a leaf.
    if sn:
        raise ProofRejected("the proof of inclusion is shorter than the tree is high")
    if not hmac.compare_digest(r, root):
        raise ProofRejected(f"the proof does not lead from leaf {index} to the root of the tree of {size}")


def verify_consistency(old: int, new: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]) -> None:
    """Verify that the tree *old_root* of *old* leaves is the beginning of the tree *new_root* of *new* leaves.

    The steps are those of RFC 9162 §2.1.4.2; an empty tree and a tree of the same size need no hashes.

    Raises:
        ProofRejected: It does not follow from *proof*.
    """
    if not 0 <= old <= new <= MAX_SIZE:
        raise ProofRejected(f"a tree of {old} leaves is not the beginning of one of {new}")
    if old in (0, new):
        if proof:
            raise ProofRejected("a proof of consistency was sent where there is nothing to prove")
        if not hmac.compare_digest(old_root, new_root if old else EMPTY_ROOT):
            raise ProofRejected(f"another root at the same size {old}")
        return
    # 1.-2. Where the old tree is complete, its root is the first hash of the path and is not sent.
    path = list(proof) if old & (old - 1) else [old_root, *proof]
    if not path:
        raise ProofRejected("the proof of consistency is empty")
    # 3.-5. Start at the last subtree that both trees have.
    fn, sn = old - 1, new - 1
    while fn & 1:
        fn >>= 1
        sn >>= 1
    fr = sr = path[0]
    # 6. What stands left belongs to both trees, what stands right only to the new one.
    for c in path[1:]:
        if sn == 0:
            raise ProofRejected("the proof of consistency is longer than the tree is high")
        if fn & 1 or fn == sn:
            fr = node_hash(c, fr)
            sr = node_hash(c, sr)
            while not fn & 1 and fn:
                fn >>= 1
                sn >>= 1
        else:
            sr = node_hash(sr, c)
        fn >>= 1
        sn >>= 1
    # 7. The same hashes make both roots.
    if sn:
        raise ProofRejected("the proof of consistency is shorter than the tree is high")
    if not (hmac.compare_digest(fr, old_root) and hmac.compare_digest(sr, new_root)):
        raise ProofRejected(f"the tree of {new} leaves does not begin with that tree of {old}")


def _split(size: int) -> int:
    """Return the largest power of two below *size*, which is at least 2."""
    return 1 << ((size - 1).bit_length() - 1)


def _subtree(reader: TileReader, start: int, stop: int) -> bytes:
    """Return the hash over the leaves *start* to *stop* - 1, a subtree of some tree of at least *stop* leaves."""
    edge = []
    while start < stop:
        height = (stop - start).bit_length() - 1
        level, above = divmod(height, TILE_HEIGHT)
        edge.append(tile_root(reader.hashes(level, start >> (TILE_HEIGHT * level), 1 << above)))
        start += 1 << height
    return _join(edge)


def _join(edge: Sequence[bytes]) -> bytes:
    """Return the root over complete subtrees, largest first."""
    if not edge:
        return EMPTY_ROOT
    r = edge[-1]
    for left in edge[-2::-1]:
        r = node_hash(left, r)
    return r
