"""Properties of the transparency log: what was made verifies, and nothing else does."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from attestation.audit import AuditEntry, canonical_bytes, checkpoint, entry_hash, leaf_hash_of
from attestation.audit.export import LogVerifier, Pinned
from attestation.audit.merkle import (
    Frontier,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    root,
    verify_consistency,
    verify_inclusion,
)
from attestation.audit.note import parse_vkey
from attestation.audit.tiles import Tile, parse_path
from attestation.errors import AttestationError, MalformedNote, ProofRejected
from attestation.wire import canonical_json
from tests.unit.audit.log_kit import (
    LOG_KEYS,
    LOG_VKEYS,
    WITNESS_VKEYS,
    WITNESSES,
    MemoryTree,
    entries,
    export,
    signed,
)
from tests.unit.audit.log_kit import checkpoint as checkpoint_of

MOST = 1500
LEAVES = [leaf_hash(number.to_bytes(4)) for number in range(MOST)]
TREE = MemoryTree.over(LEAVES)
SIZES = st.integers(1, MOST)
LOG = entries(20)
NOTE = signed(checkpoint_of(LOG), (*LOG_KEYS, *WITNESSES)).encode()
EXPORT = b"".join(export(LOG, (5, 11), LOG_KEYS))
PINNED = Pinned(log_keys=LOG_VKEYS, witnesses=(), quorum=0)
KEPT = [checkpoint.parse(signed(checkpoint_of(LOG, size)).encode()) for size in range(1, 21)]

MEMBERS = [f.name for f in fields(AuditEntry) if f.name not in ("format", "entry_hash")]
ANY = st.none() | st.text(st.characters(), max_size=40) | st.text(max_size=20)
STRANGE = st.none() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)


def flipped(data: bytes, where: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[where % len(data)] ^= 1 << bit
    return bytes(changed)


@given(st.fixed_dictionaries(dict.fromkeys(MEMBERS, ANY)), st.integers())
def test_the_fast_form_is_the_canonical_form(members: dict[str, str | None], number: int) -> None:
    """Byte for byte, for every text, null and number; so no log ever needs to be hashed anew."""
    entry = AuditEntry(**members, format=number, entry_hash="")  # type: ignore[arg-type]  # nulls on purpose
    assert canonical_bytes(entry) == canonical_json({**members, "format": number})


@given(st.fixed_dictionaries(dict.fromkeys([*MEMBERS, "format"], STRANGE)))
def test_whatever_stands_in_a_column_has_one_form(members: dict[str, object]) -> None:
    """A row that somebody changed may hold anything; it is hashed as it is, and fails as a change does."""
    entry = AuditEntry(**members, entry_hash="")  # type: ignore[arg-type]  # wrong on purpose
    assert canonical_bytes(entry) == canonical_json(members)
    assert len(entry_hash(entry)) == 64


@given(SIZES, st.data())
def test_every_proof_verifies_and_no_changed_one(size: int, data: st.DataObject) -> None:
    """Any leaf in a tree of any size; then one bit of leaf, root or proof, or another place."""
    index = data.draw(st.integers(0, size - 1))
    proof, top = inclusion_proof(TREE, index, size), root(TREE, size)
    verify_inclusion(index, size, LEAVES[index], proof, top)
    parts = [LEAVES[index], top, *proof]
    which, where, bit = data.draw(
        st.tuples(st.integers(0, len(parts) - 1), st.integers(0, 31), st.integers(0, 7))
    )
    parts[which] = flipped(parts[which], where, bit)
    with pytest.raises(ProofRejected):
        verify_inclusion(index, size, parts[0], parts[2:], parts[1])
    other = data.draw(st.integers(0, size - 1))
    assume(other != index)
    with pytest.raises(ProofRejected):
        verify_inclusion(other, size, LEAVES[index], proof, top)


@given(SIZES, st.data())
def test_every_growth_verifies_and_no_changed_one(new: int, data: st.DataObject) -> None:
    """Any two sizes; then one bit of a root or of the proof."""
    old = data.draw(st.integers(1, new))
    proof, before, after = consistency_proof(TREE, old, new), root(TREE, old), root(TREE, new)
    verify_consistency(old, new, before, after, proof)
    parts = [before, after, *proof]
    which, where, bit = data.draw(
        st.tuples(st.integers(0, len(parts) - 1), st.integers(0, 31), st.integers(0, 7))
    )
    parts[which] = flipped(parts[which], where, bit)
    with pytest.raises(ProofRejected):
        verify_consistency(old, new, parts[0], parts[1], parts[2:])


@given(st.integers(0, MOST), st.integers(0, MOST), st.binary(min_size=32, max_size=32))
def test_no_hashes_prove_another_history(old: int, new: int, top: bytes) -> None:
    """A root that nobody computed has no proof, whichever honest hashes are tried."""
    assume(0 < old < new)
    with pytest.raises(ProofRejected):
        verify_consistency(old, new, root(TREE, old), top, consistency_proof(TREE, old, new))


@given(SIZES)
def test_a_frontier_is_the_tree(size: int) -> None:
    """Grown leaf by leaf, the same root as over the stored levels."""
    frontier = Frontier()
    for leaf in LEAVES[:size]:
        frontier.append(leaf)
    assert frontier.root() == root(TREE, size)


@given(st.integers(min_value=0), st.integers(0, 7))
def test_no_flipped_bit_of_a_checkpoint_is_accepted(where: int, bit: int) -> None:
    """Text, names, ids and signatures of four keys: each bit matters to somebody who demands all four."""
    with pytest.raises(AttestationError):
        checkpoint.verify(
            checkpoint.parse(flipped(NOTE, where, bit)), log_keys=LOG_VKEYS, witnesses=WITNESS_VKEYS, quorum=2
        )


@given(st.sampled_from([*LOG_VKEYS, *WITNESS_VKEYS]), st.integers(min_value=0), st.integers(0, 7))
def test_no_flipped_bit_of_a_vkey_is_accepted(key: object, where: int, bit: int) -> None:
    """The id covers name, type and key, so a key that was mistyped is never pinned."""
    with pytest.raises(MalformedNote):
        parse_vkey(flipped(str(key).encode(), where, bit).decode("latin-1"))


def verify(data: bytes) -> None:
    """Verify an export with the log's keys, and a checkpoint of every size."""
    verifier = LogVerifier(pinned=PINNED, earlier=KEPT)
    verifier.feed(data)
    verifier.finish()


HINT = (EXPORT.index(b'"vkeys"') + 7, EXPORT.index(b'"checkpoints"') - 1)


@pytest.mark.threat("T46")
@settings(max_examples=300)
@given(st.integers(0, len(EXPORT) - 1), st.integers(0, 7))
@example(0, 0)
@example(len(EXPORT) - 1, 0)
def test_no_flipped_bit_of_an_export_is_accepted(where: int, bit: int) -> None:
    """But in the list of keys, which nobody believes."""
    if HINT[0] <= where < HINT[1]:
        assert json.loads(EXPORT.split(b"\n")[0])["vkeys"]
        return
    with pytest.raises(AttestationError):
        verify(flipped(EXPORT, where, bit))


@given(st.integers(0, 2**55), st.integers(1, 256), st.none() | st.integers(0, 7))
def test_a_tile_has_one_path(number: int, width: int, level: int | None) -> None:
    """Read as written, for every tile that a tree can have."""
    tile = Tile(level=level, number=number, width=width)
    try:
        assert parse_path(str(tile)) == tile
    except AttestationError:
        assert not tile.within(2**63 - 1)


@given(st.lists(st.text(max_size=10), min_size=1, max_size=12))
def test_every_log_that_was_made_verifies(details: list[str]) -> None:
    """Whatever its entries say: made, exported, read in pieces of any size."""
    log = entries(len(details), "".join(details))
    verifier = LogVerifier(pinned=PINNED, earlier=())
    data = b"".join(export(log, keys=LOG_KEYS))
    for start in range(0, len(data), 501):
        verifier.feed(data[start : start + 501])
    assert verifier.finish().entries == len(log)
    assert leaf_hash_of(log[0]) == leaf_hash(canonical_bytes(log[0]))
