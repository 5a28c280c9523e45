"""Tiles: one path for each, one content for each path."""

from __future__ import annotations

import pytest

from attestation.audit import merkle
from attestation.audit.merkle import MAX_SIZE, leaf_hash
from attestation.audit.tiles import (
    Tile,
    format_bundle,
    format_hashes,
    parse_bundle,
    parse_path,
)
from attestation.errors import MalformedEvidence
from tests.unit.audit.log_kit import MemoryTree, parse_hashes, tiles_of


@pytest.mark.parametrize(
    ("path", "level", "number", "width"),
    [
        ("tile/0/000", 0, 0, 256),
        ("tile/0/000.p/1", 0, 0, 1),
        ("tile/entries/067.p/255", None, 67, 255),
        ("tile/3/x001/x234/067", 3, 1_234_067, 256),
        ("tile/1/x001/000", 1, 1000, 256),
        ("tile/7/000.p/127", 7, 0, 127),
    ],
)
def test_a_path_is_read_as_it_is_written(path: str, level: int | None, number: int, width: int) -> None:
    """The examples of the specification and the borders."""
    tile = Tile(level=level, number=number, width=width)
    assert str(tile) == path
    assert parse_path(path) == tile


@pytest.mark.parametrize(
    "path",
    [
        "", "tile", "tile/", "tile/0", "tile/0/", "tile/0/0", "tile/0/00", "tile/0/0000", "tile/00/000",
        "tile/-1/000", "tile/8/000", "tile/9/000", "tile/0/x000/000", "tile/0/x000/x001/000", "tile/0/001/000",
        "tile/0/x001", "tile/0/000.p", "tile/0/000.p/", "tile/0/000.p/0", "tile/0/000.p/01", "tile/0/000.p/256",
        "tile/0/000.p/999", "tile/0/000/", "tile/0/000\n", "/tile/0/000", "tile/data/000", "tile/entries/000.p/-1",
        "tile/0/٠٠٠", "tile/7/000", "tile/0/x999/x999/x999/x999/x999/x999/999", "tile/0/" + "x001/" * 9 + "000",
    ],
)  # fmt: skip
def test_no_other_path(path: str) -> None:
    """A second way of writing would be a second file; no tile is larger than any tree."""
    with pytest.raises(MalformedEvidence):
        parse_path(path)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 512, 1000, 65_536, 65_537])
def test_the_tiles_of_a_tree(size: int) -> None:
    """They have each hash once, and a tree has exactly those."""
    tiles = list(tiles_of(size))
    assert len({str(tile) for tile in tiles}) == len(tiles)
    for level in range(4):
        assert sum(tile.width for tile in tiles if tile.level == level) == size // 256**level
    for tile in tiles:
        assert tile.within(size)
        assert tile.within(MAX_SIZE)
        last = tile.start + 256 >= size // 256 ** (tile.level or 0)
        assert Tile(level=tile.level, number=tile.number + 1, width=1).within(size) != last
        assert Tile(level=tile.level, number=tile.number, width=tile.width + 1).within(size) != last


def test_a_tree_is_rebuilt_from_its_tiles() -> None:
    """Who fetches tiles computes the root without asking for more."""
    size = 700
    tree = MemoryTree.over([leaf_hash(i.to_bytes(2)) for i in range(size)])
    levels: list[list[bytes]] = [[], []]
    for tile in tiles_of(size):
        assert tile.level is not None
        data = format_hashes(tree.hashes(tile.level, tile.start, tile.width))
        levels[tile.level] += parse_hashes(data)
    assert merkle.root(MemoryTree(levels), size) == merkle.root(tree, size)


def test_bundles() -> None:
    """Entries with their lengths before them; nothing short, nothing left."""
    entries = [b"", b"a", b"x" * 65_535]
    data = format_bundle(entries)
    assert data[:5] == b"\0\0\0\1a"
    assert parse_bundle(data, 3) == entries
    for bad, width in ((data[:-1], 3), (data + b"\0", 3), (data, 2), (data, 4), (b"\0", 1)):
        with pytest.raises(MalformedEvidence):
            parse_bundle(bad, width)
