"""Logs to try the audit heart on: keys, entries, trees and exports, made anew from a seed each time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PrivateKey

from attestation.audit import GENESIS_HASH, AuditEntry, AuditEvent, canonical_bytes, chain, leaf_hash_of
from attestation.audit.checkpoint import Checkpoint, signed_message
from attestation.audit.export import TimeStamp, format_header, format_line
from attestation.audit.merkle import HASH_BYTES, TILE_HEIGHT, TILE_WIDTH, Frontier, tile_root
from attestation.audit.note import KeyType, NoteSignature, VerifierKey, signature_line, signed_note
from attestation.audit.tiles import Tile

AT = datetime(2026, 11, 21, 3, 42, tzinfo=UTC)
TIME = 1_795_232_520
ORIGIN = "log.example/attestation"
EVENT = AuditEvent(
    operator_cn="alice",
    operator_sub="https://id.example/realms/itl#sub-1",
    action="approve",
    machine_id="7a0e3c1e-6a43-4c5b-9d0a-000000000001",
    prev_state="pending_approval",
    new_state="registered",
    detail='{"role":"worker-app","note":"é😀"}',
    source_ip="192.0.2.1",
)


class Key:
    """A private key that signs checkpoints.

    Args:
        name: Name of the key.
        kind: Its type.
        seed: The private key, repeated to 32 bytes.
    """

    def __init__(self, name: str, kind: KeyType, seed: int = 1) -> None:
        secret = bytes([seed]) * 32
        self._key: Ed25519PrivateKey | MLDSA44PrivateKey = (
            MLDSA44PrivateKey.from_seed_bytes(secret)
            if kind is KeyType.ML_DSA_44
            else Ed25519PrivateKey.from_private_bytes(secret)
        )
        self.public = VerifierKey(name=name, type=kind, key=self._key.public_key().public_bytes_raw())

    def sign(self, checkpoint: Checkpoint, time: int = TIME) -> NoteSignature:
        """Return the line of a signature over *checkpoint*."""
        stated = time if self.public.type.timed else None
        return signature_line(
            self.public, self._key.sign(signed_message(self.public, checkpoint, stated)), stated
        )


LOG_KEYS = (Key(ORIGIN, KeyType.ED25519), Key(ORIGIN, KeyType.ML_DSA_44))
LOG_VKEYS = tuple(key.public for key in LOG_KEYS)
WITNESSES = (
    Key("witness.example/one", KeyType.ED25519_COSIGNATURE, 2),
    Key("witness.example/two", KeyType.ML_DSA_44, 3),
)
WITNESS_VKEYS = tuple(key.public for key in WITNESSES)


def signed(checkpoint: Checkpoint, keys: Sequence[Key] = LOG_KEYS) -> str:
    """Return *checkpoint* as a note signed with *keys*."""
    return signed_note(str(checkpoint), [key.sign(checkpoint) for key in keys])


@lru_cache(maxsize=8)
def entries(length: int, mark: str = "step") -> tuple[AuditEntry, ...]:
    """Return a good chain."""
    made: list[AuditEntry] = []
    last = GENESIS_HASH
    for i in range(length):
        entry = chain(replace(EVENT, detail=f"{mark} {i}"), at=AT + timedelta(seconds=i), prev_hash=last)
        made.append(entry)
        last = entry.entry_hash
    return tuple(made)


def frontier(log: Sequence[AuditEntry]) -> Frontier:
    """Return the right edge of the tree over *log*."""
    edge = Frontier()
    for entry in log:
        edge.append(leaf_hash_of(entry))
    return edge


def checkpoint(log: Sequence[AuditEntry], size: int | None = None, origin: str = ORIGIN) -> Checkpoint:
    """Return the checkpoint of the first *size* entries, of all by default."""
    part = log if size is None else log[:size]
    return Checkpoint(origin=origin, size=len(part), root=frontier(part).root())


def export(
    log: Sequence[AuditEntry],
    sizes: Sequence[int] = (),
    keys: Sequence[Key] = (*LOG_KEYS, *WITNESSES),
    timestamps: Sequence[TimeStamp] = (),
) -> list[bytes]:
    """Return the lines of an export, with checkpoints at *sizes* and at the end."""
    header = format_header(
        origin=ORIGIN,
        size=len(log),
        vkeys=[key.public for key in keys],
        checkpoints=[signed(checkpoint(log, size), keys) for size in (*sizes, len(log))],
        timestamps=timestamps,
    )
    return [header, *(format_entry(i, entry) for i, entry in enumerate(log, 1))]


def format_entry(entry_id: int, entry: AuditEntry) -> bytes:
    """Return the line of *entry*."""
    return format_line(entry_id, entry.entry_hash, canonical_bytes(entry))


def tiles_of(size: int) -> Iterator[Tile]:
    """Return the tiles of hashes of a tree of *size* leaves, level by level from the left, the last one partial."""
    level, nodes = 0, size
    while nodes:
        for number in range(-(-nodes // TILE_WIDTH)):
            yield Tile(level=level, number=number, width=min(TILE_WIDTH, nodes - number * TILE_WIDTH))
        level, nodes = level + 1, nodes >> TILE_HEIGHT


def parse_hashes(data: bytes) -> list[bytes]:
    """Read a tile of hashes."""
    return [data[at : at + HASH_BYTES] for at in range(0, len(data), HASH_BYTES)]


@dataclass
class MemoryTree:
    """A `TileReader` over leaves in memory; refuses to be asked for what is not complete."""

    levels: list[list[bytes]]

    @classmethod
    def over(cls, leaves: Sequence[bytes]) -> MemoryTree:
        """Return the tree over the hashes of *leaves*."""
        levels = [list(leaves)]
        while len(levels[-1]) >= TILE_WIDTH:
            row = levels[-1]
            whole = len(row) // TILE_WIDTH * TILE_WIDTH
            levels.append([tile_root(row[at : at + TILE_WIDTH]) for at in range(0, whole, TILE_WIDTH)])
        return cls(levels)

    def hashes(self, level: int, start: int, count: int) -> Sequence[bytes]:
        """Return *count* hashes of *level* from *start*."""
        found = self.levels[level][start : start + count]
        assert len(found) == count
        return found


def bundle(log: Sequence[AuditEntry]) -> list[bytes]:
    """Return the canonical bytes of *log*."""
    return [canonical_bytes(entry) for entry in log]
