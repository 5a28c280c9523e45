"""Tiles: the tree in files of fixed names (C2SP tlog-tiles).

    tile/<L>/<N>[.p/<W>]         up to 256 hashes of level L, 32 bytes each, from position 256·N
    tile/entries/<N>[.p/<W>]     the entries below the tile of level 0 with that number

N is written in groups of three digits, all but the last with `x`: 1234067 is `x001/x234/067`. A tile that is not
full says its width W, 1 to 255. An entry of a bundle is u16 length, big-endian, then the bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from attestation.audit.merkle import MAX_SIZE, TILE_HEIGHT, TILE_WIDTH
from attestation.errors import MalformedEvidence
from attestation.wire import Reader, sized

_PATH = re.compile(
    r"tile/(entries|[0-9])/((?:x[0-9]{3}/){0,6}[0-9]{3})(?:\.p/([1-9][0-9]{0,2}))?\Z", re.ASCII
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """Which tile.

    Args:
        level: Level of its hashes, 0 to 7; None for a bundle of entries.
        number: Its number from the left.
        width: How many hashes or entries it has, 1 to 256.
    """

    level: int | None
    number: int
    width: int

    @property
    def start(self) -> int:
        """Position of its first hash in its level."""
        return self.number * TILE_WIDTH

    def __str__(self) -> str:
        """Write the path, beginning with `tile/`."""
        digits = f"{self.number:03d}"
        digits = digits.zfill(-(-len(digits) // 3) * 3)
        groups = [digits[at : at + 3] for at in range(0, len(digits), 3)]
        number = "/".join([f"x{group}" for group in groups[:-1]] + groups[-1:])
        partial = "" if self.width == TILE_WIDTH else f".p/{self.width}"
        return f"tile/{'entries' if self.level is None else self.level}/{number}{partial}"

    def within(self, size: int) -> bool:
        """True if a tree of *size* leaves has all of this tile."""
        nodes = size >> (TILE_HEIGHT * (self.level or 0))
        return self.start + self.width <= nodes


def parse_path(path: str) -> Tile:
    """Read the path of a tile, beginning with `tile/`.

    Raises:
        MalformedEvidence: Not a path, or not the one way of writing it.
    """
    match = _PATH.match(path)
    if match is None:
        raise MalformedEvidence(f"not the path of a tile: {path[:60]!r}")
    level, number, width = match.groups()
    tile = Tile(
        level=None if level == "entries" else int(level),
        number=int(re.sub("[x/]", "", number)),
        width=TILE_WIDTH if width is None else int(width),
    )
    if str(tile) != path or tile.width > TILE_WIDTH:
        raise MalformedEvidence(f"not the path of a tile: {path[:60]!r}")
    # This ends the levels at 7 too: 256**8 leaves are more than a tree may have.
    if not tile.within(MAX_SIZE):
        raise MalformedEvidence(f"no tree is so large: {path[:60]!r}")
    return tile


def format_hashes(hashes: Sequence[bytes]) -> bytes:
    """Return the bytes of a tile of hashes."""
    return b"".join(hashes)


def format_bundle(entries: Sequence[bytes]) -> bytes:
    """Return a bundle of *entries*, the canonical bytes of each, at most 65 535."""
    return b"".join(map(sized, entries))


def parse_bundle(data: bytes, width: int) -> list[bytes]:
    """Read a bundle of *width* entries.

    Raises:
        MalformedEvidence: Too short, too long, or bytes are left over.
    """
    reader = Reader(data, "bundle of entries")
    entries = [reader.sized() for _ in range(width)]
    reader.end()
    return entries
