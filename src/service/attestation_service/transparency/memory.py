"""What the log's keys remember, in a file beside them: their database, and the last checkpoint that they signed.

A database cannot be asked whether it is the newest one, or the right one. So the keys remember it: what they are
about to sign is written here, durably and before, by any of the workers, and what does not continue it is never
signed (docs/adr/0058).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from attestation.audit.checkpoint import Checkpoint, parse_text
from attestation.errors import AttestationError, LogBroken, MalformedNote
from attestation.keys import parse_key_uri
from attestation.keys.uri import FileRef
from attestation_service.settings import Settings
from attestation_service.transparency.kept import KeptFile

FILE: Final = "audit-memory.json"
"""Beside the log's Ed25519 key, or in ITL_STATE_DIR."""

FORMAT: Final = "itl-audit-memory-v1"
_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


class MemoryUnusable(AttestationError):
    """What the log's keys remember cannot be read or written."""

    code = "audit-memory-unusable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the keys remember.

    Args:
        database: Identity of their database, 32 lower-case hex.
        last: The last checkpoint that was signed, or was about to be.
        ended: Last checkpoints of logs that an accepted database did not continue; their names are used up.
    """

    database: str
    last: Checkpoint
    ended: tuple[Checkpoint, ...] = ()


def parse(data: bytes) -> Memory:
    """Read a memory.

    Raises:
        MemoryUnusable: It is none.
    """
    try:
        return _of_members(json.loads(data))
    except (ValueError, TypeError, AttributeError, RecursionError, MalformedNote) as e:
        raise MemoryUnusable(f"what the audit log's keys remember cannot be read: {str(e)[:100]}") from e


def _of_members(found: Any) -> Memory:
    if found.keys() != {"format", "database", "last", "ended"} or found["format"] != FORMAT:
        raise ValueError("its members")
    if not _ID.fullmatch(found["database"]):
        raise ValueError("its database")
    ended = tuple(parse_text(text) for text in found["ended"])
    return Memory(database=found["database"], last=parse_text(found["last"]), ended=ended)


def serialise(memory: Memory) -> bytes:
    """Write *memory* as `parse` reads it."""
    members = {
        "format": FORMAT,
        "database": memory.database,
        "last": str(memory.last),
        "ended": [str(each) for each in memory.ended],
    }
    return json.dumps(members, indent=1).encode("ascii") + b"\n"


class MemoryFile(KeptFile):
    """The file; every worker has one of these. Blocks: not on the event loop.

    Args:
        path: Where it lies.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, MemoryUnusable)

    @classmethod
    def of(cls, settings: Settings) -> MemoryFile:
        """Return the file: beside the log's key, or where the settings say.

        Raises:
            KeyUnusable: The URI of the key cannot be read.
        """
        if settings.state_dir is not None:
            return cls(settings.state_dir / FILE)
        ref = parse_key_uri(settings.audit_ed25519_uri)
        directory = ref.path.parent if isinstance(ref, FileRef) else settings.enrollment_ca_dir
        return cls(directory / FILE)

    def read(self) -> Memory | None:
        """Return what is remembered; None where there is no file.

        Raises:
            MemoryUnusable: It cannot be read.
        """
        content = self.content()
        return None if content is None else parse(content)

    def write(self, memory: Memory) -> None:
        """Remember *memory*, durably: on disk when this returns. The caller holds the lock.

        Raises:
            MemoryUnusable: It cannot be written.
        """
        self.replace(serialise(memory))

    def demand(self) -> Memory:
        """Return what is remembered, by a process that wrote or saw it before.

        Raises:
            LogBroken: It is gone.
            MemoryUnusable: It cannot be read.
        """
        found = self.read()
        if found is None:
            raise LogBroken(f"{self.path}, which remembers what was signed, is gone")
        return found

    def advance(self, seen: Memory, to: Checkpoint) -> bool:
        """Remember that *to* is about to be signed; False, and nothing, where *seen* is not what is remembered now.

        Raises:
            LogBroken: The memory is gone.
            MemoryUnusable: It cannot be read or written.
        """
        with self.locked():
            now = self.demand()
            if now != seen:
                return False
            if to != now.last:
                self.write(Memory(database=now.database, last=to, ended=now.ended))
            return True
