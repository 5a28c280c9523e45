"""Two independent implementations believe what our log makes, refuse what was changed, and we believe theirs."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from attestation.audit import leaf_hash_of
from attestation.audit.checkpoint import Checkpoint, parse, verify, verify_signatures
from attestation.audit.merkle import (
    TILE_WIDTH,
    consistency_proof,
    inclusion_proof,
    verify_consistency,
    verify_inclusion,
)
from attestation.audit.note import KeyType, parse_vkey
from attestation.audit.tiles import Tile, format_bundle, format_hashes, parse_bundle
from attestation.errors import AttestationError
from tests.fixtures import judges
from tests.unit.audit.log_kit import (
    LOG_KEYS,
    LOG_VKEYS,
    ORIGIN,
    TIME,
    WITNESS_VKEYS,
    WITNESSES,
    Key,
    MemoryTree,
    bundle,
    checkpoint,
    entries,
    parse_hashes,
    signed,
    tiles_of,
)

SIZE = 600
SIZES = (1, 2, 255, 256, 257, 511, 512, 599, 600)
LOG = entries(SIZE)
DATA = bundle(LOG)
LEAVES = [leaf_hash_of(entry) for entry in LOG]
TREE = MemoryTree.over(LEAVES)
EVERYBODY = (*LOG_KEYS, *WITNESSES)


@pytest.fixture(scope="module")
def scales() -> Any:
    """tlog-scales."""
    judges.install()
    for name in ("backend", "reader", "signing", "tlog", "writer"):
        importlib.import_module(f"tlog_scales.{name}")
    return importlib.import_module("tlog_scales")


@pytest.fixture(scope="module")
def aics() -> Any:
    """aics-tlog."""
    judges.install()
    return importlib.import_module("aics_tlog")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our log as files, as the read API serves it."""
    directory = tmp_path_factory.mktemp("published")
    (directory / "checkpoint").write_text(signed(checkpoint(LOG), EVERYBODY), encoding="utf-8")
    for tile in tiles_of(SIZE):
        assert tile.level is not None
        write(directory, tile, format_hashes(TREE.hashes(tile.level, tile.start, tile.width)))
        if tile.level == 0:
            entries_tile = Tile(level=None, number=tile.number, width=tile.width)
            write(directory, entries_tile, format_bundle(DATA[tile.start : tile.start + tile.width]))
    return directory


def write(directory: Path, tile: Tile, data: bytes) -> None:
    """Write *tile* where its path says."""
    path = directory / str(tile)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


# ---------------------------------------------------------------- tlog-scales


@pytest.mark.parametrize("key", EVERYBODY, ids=lambda key: key.public.type.name)
def test_scales_believes_our_signatures(scales: Any, key: Key) -> None:
    """Ed25519, Ed25519 cosignature and ML-DSA-44, each under the vkey as we write it; and none that was changed."""
    note = signed(checkpoint(LOG), EVERYBODY)
    theirs = scales.tlog.Checkpoint.from_text(note)
    vkey = scales.signing.Vkey.from_string(str(key.public))
    assert (vkey.key_id.to_bytes(4), vkey.serialize()) == (key.public.key_id, str(key.public))
    assert (theirs.origin, theirs.size, theirs.root_hash) == (ORIGIN, SIZE, checkpoint(LOG).root)
    theirs.verify(vkey)
    assert theirs.serialize() == note
    other = scales.tlog.Checkpoint.from_text(note.replace(f"\n{SIZE}\n", f"\n{SIZE - 1}\n"))
    with pytest.raises(InvalidSignature):
        other.verify(vkey)


def test_we_believe_the_signatures_of_scales(scales: Any) -> None:
    """Their plain Ed25519 and their ML-DSA-44, which is the cosignature of tlog-cosignature."""
    signers = [
        scales.signing.PlainEd25519Signer(ORIGIN, bytes(range(32))),
        scales.signing.MLDSA44CosignatureSigner(ORIGIN, bytes(range(32))),
    ]
    note = scales.tlog.Checkpoint.make_signed(ORIGIN, SIZE, checkpoint(LOG).root, signers).serialize()
    keys = [parse_vkey(signer.vkey.serialize()) for signer in signers]
    proven = verify(parse(note.encode()), log_keys=keys, witnesses=(), quorum=0)
    assert proven.checkpoint == checkpoint(LOG)
    assert [signer.key.type for signer in proven.signers] == [KeyType.ED25519, KeyType.ML_DSA_44]
    with pytest.raises(AttestationError):
        verify(parse(note.replace(f"\n{SIZE}\n", "\n5\n").encode()), log_keys=keys, witnesses=(), quorum=0)


@pytest.mark.parametrize("size", SIZES)
def test_scales_believes_our_proofs(scales: Any, size: int) -> None:
    """Inclusion and consistency; and refuses one with a changed hash."""
    root = checkpoint(LOG, size).root
    for index in {0, size // 2, size - 1}:
        proof = inclusion_proof(TREE, index, size)
        scales.tlog.InclusionProof(index, size, proof).check(LEAVES[index], root)
        if proof:
            with pytest.raises(scales.tlog.InclusionProofInvalid):
                scales.tlog.InclusionProof(index, size, [bytes(32), *proof[1:]]).check(LEAVES[index], root)
    for old in (n for n in SIZES if n <= size):
        proof = consistency_proof(TREE, old, size)
        scales.tlog.ConsistencyProof(old, size, proof).check(checkpoint(LOG, old).root, root)
        if proof:
            with pytest.raises(scales.tlog.ConsistencyProofInvalid):
                scales.tlog.ConsistencyProof(old, size, [bytes(32), *proof[1:]]).check(
                    checkpoint(LOG, old).root, root
                )


def test_scales_reads_our_tiles(scales: Any, published: Path) -> None:
    """Root, every entry and proofs out of the files that we publish; its proofs are ours."""
    reader = scales.reader.TilesReader(scales.backend.LocalBackend(published))
    head = reader.get_checkpoint()
    assert reader.calculate_root_hash() == head.root_hash == checkpoint(LOG).root
    assert [reader.get_entry(index) for index in range(SIZE)] == DATA
    for index in (0, 255, 256, 599):
        theirs = reader.get_inclusion_proof(index, SIZE).node_hashes
        assert theirs == inclusion_proof(TREE, index, SIZE)
        verify_inclusion(index, SIZE, LEAVES[index], theirs, head.root_hash)
    for old in SIZES:
        theirs = reader.get_consistency_proof(old, SIZE).node_hashes
        assert theirs == consistency_proof(TREE, old, SIZE)
        verify_consistency(old, SIZE, checkpoint(LOG, old).root, head.root_hash, theirs)


def test_we_read_the_tiles_of_scales(scales: Any, tmp_path: Path) -> None:
    """Their writer, our names and parsers: file by file the same bytes."""
    writer = scales.writer.TilesWriter.create(tmp_path / "log", ORIGIN)
    for data in DATA:
        writer.add_leaf(data)
    writer.commit([scales.signing.PlainEd25519Signer(ORIGIN, bytes(32))], gc=False)
    levels: list[list[bytes]] = [[], []]
    for tile in tiles_of(SIZE):
        assert tile.level is not None
        levels[tile.level] += parse_hashes((tmp_path / "log" / str(tile)).read_bytes())
    assert levels == TREE.levels
    found = []
    for start in range(0, SIZE, TILE_WIDTH):
        tile = Tile(level=None, number=start // TILE_WIDTH, width=min(TILE_WIDTH, SIZE - start))
        found += parse_bundle((tmp_path / "log" / str(tile)).read_bytes(), tile.width)
    assert found == DATA
    assert parse((tmp_path / "log" / "checkpoint").read_bytes()).checkpoint == checkpoint(LOG)


# ---------------------------------------------------------------- aics-tlog


@pytest.mark.threat("T47")
def test_aics_believes_our_checkpoint(aics: Any) -> None:
    """The log's Ed25519 signature, a quorum of Ed25519 cosignatures; and no note that was changed."""
    second = Key("witness.example/three", KeyType.ED25519_COSIGNATURE, 4)
    note = signed(checkpoint(LOG), (*EVERYBODY, second))
    log_key = aics.parse_vkey(str(LOG_VKEYS[0]))
    witnesses = [aics.parse_vkey(str(key.public)) for key in (WITNESSES[0], second)]
    result = aics.verify_checkpoint(aics.parse_note(note), log_key, witnesses, 2, expected_origin=ORIGIN)
    assert (result.ok, result.error or "") == (True, "")
    for changed in (
        note.replace(f"\n{SIZE}\n", f"\n{SIZE - 1}\n"),
        signed(checkpoint(LOG), (*LOG_KEYS, second)),
    ):
        assert not aics.verify_checkpoint(aics.parse_note(changed), log_key, witnesses, 2).ok


def test_we_believe_the_signatures_of_aics(aics: Any) -> None:
    """Their signed checkpoint with their cosignature."""
    log, witness = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    head = checkpoint(LOG)
    note = aics.sign_checkpoint(aics.Checkpoint(ORIGIN, head.size, head.root), log, ORIGIN)
    _, line = aics.sign_cosignature(witness, "witness.example/aics", TIME, ORIGIN, head.size, head.root)
    text = aics.Note(note.text, (*note.signatures, line)).serialise()
    keys = [
        parse_vkey(aics.format_vkey(aics.vkey_from_ed25519(ORIGIN, log.public_key()))),
        parse_vkey(aics.format_vkey(aics.cosignature_vkey("witness.example/aics", witness.public_key()))),
    ]
    proven = verify(parse(text.encode()), log_keys=keys[:1], witnesses=keys[1:], quorum=1)
    assert [signer.time for signer in proven.signers] == [None, TIME]
    with pytest.raises(AttestationError):
        verify_signatures(parse(text.replace(f"\n{SIZE}\n", "\n5\n").encode()), keys)


@pytest.mark.parametrize("size", SIZES)
def test_aics_believes_our_proofs(aics: Any, size: int) -> None:
    """And makes the same ones."""
    root = checkpoint(LOG, size).root
    theirs = aics.MerkleTree(DATA[:size])
    assert theirs.root() == root
    for index in {0, size // 2, size - 1}:
        proof = inclusion_proof(TREE, index, size)
        assert proof == theirs.inclusion_proof(index)
        assert aics.verify_leaf_inclusion(DATA[index], index, size, proof, root)
        assert not aics.verify_leaf_inclusion(DATA[index] + b" ", index, size, proof, root)
    for old in (n for n in SIZES if n <= size):
        proof = consistency_proof(TREE, old, size)
        assert proof == theirs.consistency_proof(old, size)
        assert aics.verify_consistency(old, size, checkpoint(LOG, old).root, root, proof)
        assert not aics.verify_consistency(old, size, bytes(32), root, proof)


def test_aics_audits_our_whole_log(aics: Any, published: Path, tmp_path: Path) -> None:
    """Every tile and every entry; a changed byte anywhere is found."""
    report = aics.audit_tiles(aics.FileSystemTileReader(published), SIZE, checkpoint(LOG).root)
    assert (report.size, report.tiles, report.bundles) == (SIZE, len(list(tiles_of(SIZE))), 3)
    files = {
        path.relative_to(published): path.read_bytes() for path in published.rglob("*") if path.is_file()
    }
    for name, data in files.items():
        if name.name == "checkpoint":
            continue
        for other, content in files.items():
            path = tmp_path / other
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(
                bytes([*content[:40], content[40] ^ 1, *content[41:]]) if other == name else content
            )
        with pytest.raises((ValueError, FileNotFoundError)):
            aics.audit_tiles(aics.FileSystemTileReader(tmp_path), SIZE, checkpoint(LOG).root)
        assert data


def test_a_checkpoint_of_another_origin_is_nobodys(aics: Any, scales: Any) -> None:
    """All three agree that a log's key signs for that log."""
    foreign = Checkpoint(origin="other.example", size=SIZE, root=checkpoint(LOG).root)
    note = signed(foreign, EVERYBODY)
    with pytest.raises(AttestationError):
        verify(parse(note.encode()), log_keys=LOG_VKEYS, witnesses=WITNESS_VKEYS, quorum=1)
    log_key = aics.parse_vkey(str(LOG_VKEYS[0]))
    assert not aics.verify_checkpoint(aics.parse_note(note), log_key, expected_origin=ORIGIN).ok
    vkey = scales.signing.Vkey.from_string(str(LOG_VKEYS[1]))
    with pytest.raises(InvalidSignature):
        scales.tlog.Checkpoint.from_text(note.replace("other.example", ORIGIN)).verify(vkey)
