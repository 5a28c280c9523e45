"""The tree that grows with the audit log is RFC 6962's, whatever happens on the way."""

from __future__ import annotations

import contextlib
from datetime import timedelta

import pytest

from attestation.audit import AuditEvent, leaf_hash_of
from attestation.audit.merkle import (
    Frontier,
    consistency_proof,
    inclusion_proof,
    root,
    tile_root,
    verify_consistency,
    verify_inclusion,
)
from attestation.errors import LogBroken
from attestation.store import (
    Countersignature,
    CountersignatureKind,
    Store,
    StoredCheckpoint,
    Tx,
)
from tests.contract.store_samples import NOW, by_hand


def append(tx: Tx, number: int) -> None:
    """Append an entry told apart by its number."""
    tx.audit.append(AuditEvent(operator_cn="anna", action="x", detail=str(number)), NOW)


def grow(store: Store, to: int) -> None:
    """Append entries until there are *to*, many in one unit."""

    def some(tx: Tx) -> int:
        have = tx.audit.tree.size()
        for number in range(have, min(to, have + 4096)):
            append(tx, number)
        return tx.audit.tree.size()

    while store.write_sync(some) < to:
        pass


def frontier_of(store: Store, size: int) -> Frontier:
    """Return the tree over the first *size* entries, computed from the entries alone."""
    frontier = Frontier()
    while frontier.size < size:
        limit = min(4096, size - frontier.size)
        for _, entry in store.read_sync(lambda tx, n=limit: tx.audit.entries(frontier.size, n)):  # type: ignore[misc]
            frontier.append(leaf_hash_of(entry))
    return frontier


@pytest.mark.parametrize("size", [0, 1, 2, 255, 256, 257, 511, 512, 513, 1000])
def test_the_tree_is_that_of_the_entries(store: Store, size: int) -> None:
    """At and around the ends of tiles."""
    grow(store, size)
    assert store.read_sync(lambda tx: root(tx.audit.tree, size)) == frontier_of(store, size).root()


def test_a_tree_of_three_levels(store: Store) -> None:
    """At 65535, 65536 and 65537 entries; proofs over both ends of the new level verify."""
    roots = {}
    for size in (65_535, 65_536, 65_537):
        grow(store, size)
        roots[size] = store.read_sync(lambda tx, n=size: root(tx.audit.tree, n))  # type: ignore[misc]
    frontier = Frontier()
    for _, entry in store.read_sync(lambda tx: tx.audit.entries(0, 70_000)):
        frontier.append(leaf_hash_of(entry))
        if frontier.size in roots:
            assert frontier.root() == roots[frontier.size]

    def proofs(tx: Tx) -> None:
        tree = tx.audit.tree
        assert len(tree.nodes(1, 0, 999)) == 256
        assert tree.nodes(2, 0, 9) == [tile_root(tree.hashes(1, 0, 256))]
        for index in (0, 255, 256, 65_535, 65_536):
            path = inclusion_proof(tree, index, 65_537)
            verify_inclusion(index, 65_537, tree.hashes(0, index, 1)[0], path, roots[65_537])
        for old in (65_535, 65_536):
            verify_consistency(old, 65_537, roots[old], roots[65_537], consistency_proof(tree, old, 65_537))

    store.read_sync(proofs)


@pytest.mark.parametrize("before", [0, 3, 254, 255, 256])
def test_a_unit_that_was_rolled_back_leaves_no_trace(store: Store, before: int) -> None:
    """Neither in the ids nor in the tree, also where it had completed a tile."""
    grow(store, before)

    def fails(tx: Tx) -> None:
        for n in range(3):
            append(tx, -n)
        raise LookupError

    with contextlib.suppress(LookupError):
        store.write_sync(fails)
    grow(store, before + 2)
    ids = [row_id for row_id, _ in store.read_sync(lambda tx: tx.audit.entries(0, 999))]
    assert ids == list(range(1, before + 3))
    size = before + 2
    assert store.read_sync(lambda tx: tx.audit.tree.nodes(0, size, 9)) == []
    assert store.read_sync(lambda tx: root(tx.audit.tree, size)) == frontier_of(store, size).root()


def test_a_node_that_somebody_removed_is_missed(store: Store, store_url: str) -> None:
    """Whoever reads the tree for a proof is told; appending goes on, and makes no root of an incomplete tile."""
    grow(store, 255)
    drop = "DROP TRIGGER audit_nodes_refuses_"
    drop += "delete" if store_url.startswith("sqlite") else "change ON audit_nodes"
    by_hand(store_url, drop, "DELETE FROM audit_nodes WHERE position >= 128")
    grow(store, 300)
    assert store.read_sync(lambda tx: tx.audit.tree.nodes(1, 0, 9)) == []
    for size in (200, 300):
        with pytest.raises(LogBroken, match="missing"):
            store.read_sync(lambda tx, n=size: root(tx.audit.tree, n))  # type: ignore[misc]
    assert len(store.read_sync(lambda tx: root(tx.audit.tree, 128))) == 32


def checkpoint(size: int, note: str = "note") -> StoredCheckpoint:
    """Return a checkpoint as the store keeps it; what it says is not the store's business."""
    return StoredCheckpoint(size=size, root=bytes(32), note=f"{note} {size}", created_at=NOW)


@pytest.mark.threat("T43")
def test_checkpoints_only_grow(store: Store) -> None:
    """A second one of a size, or of a smaller tree, loses quietly; the first stays as it was."""
    add = [(5, "a", True), (5, "b", False), (3, "c", False), (9, "d", True)]
    for size, note, kept in add:
        made = checkpoint(size, note)
        assert store.write_sync(lambda tx, c=made: tx.audit.tree.add_checkpoint(c)) is kept  # type: ignore[misc]
    assert store.read_sync(lambda tx: tx.audit.tree.newest_checkpoint()) == checkpoint(9, "d")
    for (after, up_to, limit), sizes in {
        (-1, 99, 9): [5, 9],
        (5, 99, 9): [9],
        (-1, 8, 9): [5],
        (0, 99, 1): [5],
    }.items():
        found = store.read_sync(lambda tx, a=after, u=up_to, n=limit: tx.audit.tree.checkpoints(a, u, n))  # type: ignore[misc]
        assert [one.size for one in found] == sizes
    for most, size_of_it in ((4, None), (5, 5), (8, 5), (9, 9), (99, 9)):
        one = store.read_sync(lambda tx, n=most: tx.audit.tree.checkpoint_at_most(n))  # type: ignore[misc]
        assert (one.size if one else None) == size_of_it


def test_others_speak_once_about_a_checkpoint(store: Store) -> None:
    """What they said first stays; witnesses and authorities may have the same name."""
    store.write_sync(lambda tx: tx.audit.tree.add_checkpoint(checkpoint(5)))

    def said(kind: str, signer: str, value: bytes) -> Countersignature:
        return Countersignature(
            kind=CountersignatureKind(kind), signer=signer, value=value, created_at=NOW + timedelta(seconds=1)
        )

    first, other, stamp = (
        said("cosignature", "w1", b"1"),
        said("cosignature", "w2", b"2"),
        said("timestamp", "w1", b"3"),
    )
    again = said("cosignature", "w1", b"x")
    for countersignature, kept in ((stamp, True), (other, True), (first, True), (again, False)):
        assert store.write_sync(lambda tx, c=countersignature: tx.audit.tree.countersign(5, c)) is kept  # type: ignore[misc]
    assert store.read_sync(lambda tx: tx.audit.tree.countersignatures(5)) == [first, other, stamp]
    assert store.read_sync(lambda tx: tx.audit.tree.countersignatures(6)) == []


def test_the_newest_that_witnesses_saw(store: Store) -> None:
    """Cosigned, not stamped; each once, however many cosigned it."""
    for size in (3, 5, 7, 9):
        store.write_sync(lambda tx, n=size: tx.audit.tree.add_checkpoint(checkpoint(n)))  # type: ignore[misc]
    for size, kind, signer in (
        (3, "cosignature", "w1"),
        (5, "cosignature", "w1"),
        (5, "cosignature", "w2"),
        (7, "cosignature", "w1"),
        (9, "timestamp", "t"),
    ):
        made = Countersignature(
            kind=CountersignatureKind(kind), signer=signer, value=b"x", created_at=NOW + timedelta(seconds=1)
        )
        store.write_sync(lambda tx, n=size, c=made: tx.audit.tree.countersign(n, c))  # type: ignore[misc]
    for (up_to, limit), sizes in {(99, 9): [3, 5, 7], (99, 2): [5, 7], (6, 1): [5], (2, 9): []}.items():
        found = store.read_sync(lambda tx, u=up_to, n=limit: tx.audit.tree.cosigned(u, n))  # type: ignore[misc]
        assert [one.size for one in found] == sizes
