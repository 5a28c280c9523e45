"""The table of certificates that a host may hand to its guest beside a report (GHCB; CONFIDENTIAL.md §8.2)."""

from __future__ import annotations

import uuid
from typing import Final, NamedTuple

from attestation.errors import MalformedEvidence

MAX_TABLE_BYTES: Final = 32_768
_ENTRY_BYTES: Final = 24
_MOST_ENTRIES: Final = 16

VCEK: Final = uuid.UUID("63da758d-e664-4564-adc5-f4b93be8accd")
VLEK: Final = uuid.UUID("a8074bc2-a25a-483e-aae6-39c045a0b8a1")


class CertTable(NamedTuple):
    """What the table carries of signing keys, DER; what it says of intermediates and roots is not looked at."""

    vcek: bytes | None
    vlek: bytes | None


def parse_cert_table(data: bytes) -> CertTable:
    """Read the table, at most 32 KiB: entries {GUID 16 in text order, u32 offset, u32 length, LE}, ended by zeros.

    An empty table is none.

    Raises:
        MalformedEvidence: It is not ended, a GUID stands twice, or an entry points out of the table.
    """
    if len(data) > MAX_TABLE_BYTES:
        raise MalformedEvidence(f"certificate table of {len(data)} bytes, at most {MAX_TABLE_BYTES} allowed")
    found: dict[uuid.UUID, bytes] = {}
    for at in range(0, _MOST_ENTRIES * _ENTRY_BYTES, _ENTRY_BYTES):
        entry = data[at : at + _ENTRY_BYTES]
        if not any(entry) and len(entry) == (_ENTRY_BYTES if data else 0):
            return CertTable(found.get(VCEK), found.get(VLEK))
        if len(entry) < _ENTRY_BYTES:
            raise MalformedEvidence("certificate table: it has no end")
        name = uuid.UUID(bytes=entry[:16])
        offset, size = int.from_bytes(entry[16:20], "little"), int.from_bytes(entry[20:], "little")
        if name in found or offset + size > len(data):
            raise MalformedEvidence(f"certificate table: {name} stands twice or points out of it")
        found[name] = data[offset : offset + size]
    raise MalformedEvidence(f"certificate table: more than {_MOST_ENTRIES} entries")
