"""A tree of files that stands in memory: what a layer is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePosixPath

from attestation.errors import RequestInvalid


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """Content, and whether it is a program; nothing else of a file is kept."""

    data: bytes
    executable: bool = False


@dataclass(slots=True)
class Tree:
    """Files by their place, relative and with `/`; folders are those that they stand in, and the empty ones named."""

    files: dict[str, File] = field(default_factory=dict)
    empty: set[str] = field(default_factory=set)

    def add(self, place: str, file: File) -> None:
        """Put a file where none is.

        Raises:
            RequestInvalid: The place leads out of the tree, or something else stands there.
        """
        path = PurePosixPath(place)
        if path.is_absolute() or ".." in path.parts or str(path) != place or not path.parts:
            raise RequestInvalid(f"{place!r} is no place in the image")
        if self.files.setdefault(place, file) != file:
            raise RequestInvalid(f"two files of the image want to be {place}")

    def folders(self) -> list[str]:
        """Return all folders, each after the one that it stands in."""
        found = set(self.empty)
        for place in (*self.files, *self.empty):
            found |= {str(parent) for parent in PurePosixPath(place).parents}
        return sorted(found - {"."})

    def below(self, folder: str) -> Tree:
        """Return this tree, standing in *folder*."""
        return Tree(
            {f"{folder}/{place}": file for place, file in self.files.items()},
            {f"{folder}/{place}" for place in self.empty},
        )

    @property
    def size_bytes(self) -> int:
        """What the files hold, together."""
        return sum(len(file.data) for file in self.files.values())
