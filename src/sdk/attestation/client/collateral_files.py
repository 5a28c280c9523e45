"""Collateral on its way to a service: pieces out of an archive, and as many at a time as one request carries."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Final

from attestation.endorsements.collateral import MAX_ITEM_BYTES
from attestation.errors import CollateralInvalid

Piece = tuple[str, bytes]

MANIFEST: Final = "manifest.json"
AT_ONCE: Final = 20
MAX_PIECES: Final = 200
MAX_ARCHIVE_BYTES: Final = 8 << 20
"""Of an archive as it comes, and of all that is in it."""


def read_archive(data: bytes) -> list[Piece]:
    """Return the pieces in a zip of the folder that `attestation collateral export` wrote.

    A folder around them is left out: pieces are called as they are below the manifest, if there is one.

    Raises:
        CollateralInvalid: It is no such archive, or too large.
    """
    if len(data) > MAX_ARCHIVE_BYTES:
        raise CollateralInvalid(f"an archive of {len(data)} bytes, at most {MAX_ARCHIVE_BYTES} allowed")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = [each for each in archive.infolist() if not each.is_dir()]
            if not 0 < len(files) <= MAX_PIECES + 1:
                raise CollateralInvalid(f"an archive of {len(files)} files, 1 to {MAX_PIECES} allowed")
            top = min(
                (f.filename.removesuffix(MANIFEST) for f in files if f.filename.endswith(MANIFEST)),
                default="",
            )
            pieces, left = [], MAX_ARCHIVE_BYTES
            for each in files:
                # Read up to the limit, whatever its head says: a few bytes may unfold to any size.
                with archive.open(each) as file:
                    piece = file.read(min(MAX_ITEM_BYTES, left) + 1)
                left -= len(piece)
                if len(piece) > MAX_ITEM_BYTES or left < 0:
                    raise CollateralInvalid(
                        f"{each.filename[:80]!r} is too large, or all of them together are"
                    )
                name = each.filename.removeprefix(top)
                if name != MANIFEST:
                    pieces.append((name, piece))
    except (
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,
        RuntimeError,
        ValueError,
        EOFError,
        OSError,
    ) as e:
        raise CollateralInvalid(f"no zip archive that can be read: {type(e).__name__}") from e
    if not pieces:
        raise CollateralInvalid("an archive without collateral")
    return pieces


def batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Yield the pieces a few at a time, never more than a request may carry."""
    some: list[Piece] = []
    size = 0
    for name, data in pieces:
        if some and (len(some) == AT_ONCE or size + len(data) > MAX_ITEM_BYTES // 2):
            yield some
            some, size = [], 0
        some.append((name, data))
        size += len(data)
    if some:
        yield some
