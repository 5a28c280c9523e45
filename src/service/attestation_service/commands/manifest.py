"""What a backup says of itself: `manifest.json`, which is written last and read first."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from attestation.clock import parse_rfc3339

MANIFEST: Final = "manifest.json"
DATABASE: Final = "database.sqlite"
FORMAT: Final = "itl-backup-v1"

_HEX: Final = re.compile(r"[0-9a-f]*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What is in a backup.

    Args:
        made_at: When, RFC 3339.
        revision: Of the schema.
        database: Identity of the database, 32 lower-case hex.
        entries: Of its audit log.
        root: Of the log's tree, lower-case hex.
        files: SHA-256 of each file, lower-case hex, by its path in the folder.
    """

    made_at: str
    revision: str
    database: str
    entries: int
    root: str
    files: Mapping[str, str]


def serialise(manifest: Manifest) -> bytes:
    """Write *manifest* as `parse` reads it."""
    return json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1).encode("ascii") + b"\n"


def parse(data: bytes) -> Manifest:
    """Read a manifest.

    Raises:
        ValueError: It is none.
    """
    try:
        return _of_members(json.loads(data))
    except (ValueError, TypeError, AttributeError, RecursionError) as e:
        raise ValueError(f"its {MANIFEST} cannot be read: {str(e)[:100]}") from e


def _of_members(found: Any) -> Manifest:
    if found.pop("format", None) != FORMAT or found.keys() != set(Manifest.__slots__):
        raise ValueError("its members")
    made = Manifest(**found)
    texts = (made.made_at, made.revision, made.database, made.root, *made.files, *made.files.values())
    if not all(isinstance(each, str) for each in texts) or type(made.entries) is not int:
        raise ValueError("its types")
    if not all(_HEX.fullmatch(each) for each in (made.database, made.root, *made.files.values())):
        raise ValueError("its digests")
    parse_rfc3339(made.made_at)
    # They become paths: none leads out of the folder.
    if DATABASE not in made.files or not all(map(_inside, made.files)):
        raise ValueError("its files")
    return made


def _inside(name: str) -> bool:
    path = PurePosixPath(name)
    return (
        str(path) == name
        and "\0" not in name
        and not path.is_absolute()
        and ".." not in path.parts
        and name != "."
    )
