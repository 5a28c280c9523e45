"""The Merkle tree: known roots, proofs of every leaf and every pair of sizes, and no other proof."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest

from attestation.audit import merkle
from attestation.audit.merkle import (
    EMPTY_ROOT,
    MAX_PROOF_HASHES,
    MAX_SIZE,
    TILE_WIDTH,
    Frontier,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    node_hash,
    tile_root,
    verify_consistency,
    verify_inclusion,
)
from attestation.errors import ProofRejected, ProofUnavailable
from tests.unit.audit.log_kit import MemoryTree

# The vectors of the Certificate Transparency projects (certificate-transparency-go, merkle/testonly).
KNOWN_LEAVES = (
    *("", "00", "10", "2021", "3031", "40414243", "5051525354555657"),
    "606162636465666768696a6b6c6d6e6f",
)
KNOWN_ROOTS = (
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)
SIZES = (*range(20), 127, 128, 255, 256, 257, 511, 512, 513, 767, 768, 1025, 1300)
LEAVES = [leaf_hash(number.to_bytes(4)) for number in range(SIZES[-1])]
TREE = MemoryTree.over(LEAVES)


def plain_root(leaves: Sequence[bytes]) -> bytes:
    """Return MTH as RFC 6962 §2.1 writes it."""
    if len(leaves) < 2:
        return leaves[0] if leaves else hashlib.sha256().digest()
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return hashlib.sha256(b"\x01" + plain_root(leaves[:k]) + plain_root(leaves[k:])).digest()


ROOTS = {size: plain_root(LEAVES[:size]) for size in SIZES}


def test_known_roots() -> None:
    """The roots that every Certificate Transparency implementation agrees about."""
    frontier = Frontier()
    assert frontier.root().hex() == KNOWN_ROOTS[0] == EMPTY_ROOT.hex()
    for size, (leaf, expected) in enumerate(zip(KNOWN_LEAVES, KNOWN_ROOTS[1:], strict=True), 1):
        frontier.append(leaf_hash(bytes.fromhex(leaf)))
        assert (frontier.size, frontier.root().hex()) == (size, expected)


def test_three_ways_to_a_root_are_one() -> None:
    """The recursion of the RFC, the right edge that grows, the stored levels: at every size the same root."""
    frontier = Frontier()
    for size in range(SIZES[-1] + 1):
        if size in ROOTS:
            assert frontier.root() == merkle.root(TREE, size) == ROOTS[size]
        if size < SIZES[-1]:
            frontier.append(LEAVES[size])


def test_a_frontier_does_not_grow() -> None:
    """One hash per set bit of the size, so a log of any length is walked in constant memory."""
    frontier = Frontier()
    for leaf in LEAVES:
        frontier.append(leaf)
        assert len(frontier._edge) == frontier.size.bit_count()


@pytest.mark.parametrize("count", [0, 3, 5, 255])
def test_only_a_complete_subtree_has_a_tile_root(count: int) -> None:
    """Otherwise a node of a higher level could stand for fewer leaves than it says."""
    with pytest.raises(ValueError, match="complete subtree"):
        tile_root(LEAVES[:count])
    assert tile_root(LEAVES[:TILE_WIDTH]) == ROOTS[256]
    assert tile_root(LEAVES[:1]) == LEAVES[0]


@pytest.mark.parametrize("size", SIZES[1:])
def test_every_leaf_is_proven(size: int) -> None:
    """Also at sizes that are no power of two, and across the border of a tile."""
    for index in {*range(min(size, 20)), size // 2, *range(max(0, size - 3), size)}:
        proof = inclusion_proof(TREE, index, size)
        assert len(proof) <= MAX_PROOF_HASHES
        verify_inclusion(index, size, LEAVES[index], proof, ROOTS[size])


@pytest.mark.parametrize("new", SIZES)
def test_every_beginning_is_proven(new: int) -> None:
    """Each smaller size, itself and the empty log."""
    for old in (size for size in SIZES if size <= new):
        verify_consistency(old, new, ROOTS[old], ROOTS[new], consistency_proof(TREE, old, new))


@pytest.mark.parametrize(("index", "size"), [(0, 0), (5, 5), (-1, 5), (0, MAX_SIZE + 1)])
def test_no_proof_of_what_is_not_there(index: int, size: int) -> None:
    """A place outside the tree is refused by who proves and by who verifies."""
    with pytest.raises(ProofUnavailable):
        inclusion_proof(TREE, index, size)
    with pytest.raises(ProofRejected, match="no leaf"):
        verify_inclusion(index, size, LEAVES[0], [], LEAVES[0])


@pytest.mark.parametrize(("old", "new"), [(6, 5), (-1, 5), (0, MAX_SIZE + 1)])
def test_a_longer_log_is_no_beginning(old: int, new: int) -> None:
    """Refused by who proves and by who verifies."""
    with pytest.raises(ProofUnavailable):
        consistency_proof(TREE, old, new)
    with pytest.raises(ProofRejected, match="not the beginning"):
        verify_consistency(old, new, EMPTY_ROOT, EMPTY_ROOT, [])


@pytest.mark.parametrize(("index", "size"), [(0, 1), (0, 5), (4, 5), (6, 7), (5, 8), (256, 257), (300, 1300)])
def test_no_other_inclusion_proof_is_accepted(index: int, size: int) -> None:
    """A hash too many, too few, changed, swapped; another leaf, place, size or root."""
    good = inclusion_proof(TREE, index, size)
    leaf, known = LEAVES[index], ROOTS.get(size) or plain_root(LEAVES[:size])
    wrong: list[list[bytes]] = [[*good, LEAVES[0]], [LEAVES[0], *good], [*good, *good, LEAVES[0]]]
    for at in range(len(good)):
        wrong += [good[:at] + good[at + 1 :], [*good[:at], bytes(32), *good[at + 1 :]]]
        if at:
            wrong.append([*good[: at - 1], good[at], good[at - 1], *good[at + 1 :]])
    for proof in wrong:
        with pytest.raises(ProofRejected):
            verify_inclusion(index, size, leaf, proof, known)
    with pytest.raises(ProofRejected, match="longer than the tree"):
        verify_inclusion(index, size, leaf, [*good, LEAVES[0]], known)
    with pytest.raises(ProofRejected):
        verify_inclusion(index, size, LEAVES[index + 1], good, known)
    with pytest.raises(ProofRejected):
        verify_inclusion(index, size, leaf, good, LEAVES[-1])
    for other in (index - 1, index + 1):
        with pytest.raises(ProofRejected):
            verify_inclusion(other, size, leaf, good, known)


def test_an_inner_node_is_no_leaf() -> None:
    """A path cut short at an inner node would prove a leaf that nobody logged."""
    inner = node_hash(LEAVES[0], LEAVES[1])
    proof = inclusion_proof(TREE, 0, 8)[1:]
    with pytest.raises(ProofRejected, match="shorter"):
        verify_inclusion(0, 8, inner, proof, ROOTS[8])
    verify_inclusion(
        0, 4, inner, proof, ROOTS[8]
    )  # as the first of four it would fit: the size must be signed


@pytest.mark.parametrize(
    ("old", "new"), [(1, 2), (1, 8), (3, 7), (4, 7), (6, 8), (7, 8), (256, 1300), (300, 513)]
)
def test_no_other_consistency_proof_is_accepted(old: int, new: int) -> None:
    """A hash too many, too few, changed; another root on either side; another size."""
    good = consistency_proof(TREE, old, new)
    a, b = plain_root(LEAVES[:old]), plain_root(LEAVES[:new])
    wrong: list[list[bytes]] = [[], [*good, LEAVES[0]], [LEAVES[0], *good], [*good, *good, LEAVES[0]]]
    for at in range(len(good)):
        wrong += [good[:at] + good[at + 1 :], [*good[:at], bytes(32), *good[at + 1 :]]]
    for proof in wrong:
        with pytest.raises(ProofRejected):
            verify_consistency(old, new, a, b, proof)
    with pytest.raises(ProofRejected, match="longer than the tree"):
        verify_consistency(old, new, a, b, [*good, LEAVES[0]])
    for x, y in ((LEAVES[5], b), (a, LEAVES[5]), (b, a)):
        with pytest.raises(ProofRejected):
            verify_consistency(old, new, x, y, good)
    with pytest.raises(ProofRejected):
        verify_consistency(old, 2 * new, a, b, good)


def test_where_nothing_is_to_prove() -> None:
    """From nothing, and to the same size: no hashes, and the roots must be what they must be."""
    verify_consistency(0, 5, EMPTY_ROOT, ROOTS[5], [])
    verify_consistency(0, 0, EMPTY_ROOT, EMPTY_ROOT, [])
    for old, a in ((0, EMPTY_ROOT), (5, ROOTS[5])):
        with pytest.raises(ProofRejected, match="nothing to prove"):
            verify_consistency(old, 5, a, ROOTS[5], [LEAVES[0]])
    with pytest.raises(ProofRejected, match="another root"):
        verify_consistency(0, 5, ROOTS[5], ROOTS[5], [])
    with pytest.raises(ProofRejected, match="another root"):
        verify_consistency(5, 5, ROOTS[4], ROOTS[5], [])
