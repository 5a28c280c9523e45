"""The Merkle tree over the audit log and its checkpoints in the database (DELIVERY-AND-OPERATORS §19.2).

The tree grows in the unit of the entry that it grows by. A tile's root is kept once its 256 nodes are there, so
any proof reads a few tiles, however long the log is.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import bindparam, func, insert, select
from sqlalchemy.sql import ClauseElement

from attestation.audit.merkle import TILE_WIDTH, tile_root
from attestation.clock import from_micros, to_micros
from attestation.errors import LogBroken
from attestation.store.codec import codec
from attestation.store.sql import Executor, Insert, Prepared
from attestation.store.tables import (
    AuditCheckpointRow,
    AuditCountersignatureRow,
    AuditNodeRow,
    AuditRow,
    table_of,
)

_NODES = table_of(AuditNodeRow)
_CHECKPOINTS = table_of(AuditCheckpointRow)
_COUNTERSIGNATURES = table_of(AuditCountersignatureRow)
_LOG = table_of(AuditRow)


class CountersignatureKind(StrEnum):
    """What somebody else said of a checkpoint."""

    COSIGNATURE = "cosignature"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Countersignature:
    """What somebody else said of a checkpoint.

    Args:
        kind: Of what kind it is.
        signer: Key name of the witness, or URL of the time stamping authority.
        value: A cosignature's line in the note, ASCII without LF; a time stamp's DER TimeStampResp.
        created_at: When we stored it.
    """

    kind: CountersignatureKind
    signer: str
    value: bytes
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCheckpoint:
    """A checkpoint as we signed it.

    Args:
        size: Entries covered.
        root: 32 bytes.
        note: The signed note with our own signatures.
        created_at: When.
    """

    size: int
    root: bytes
    note: str
    created_at: datetime


_checkpoint = codec(StoredCheckpoint, _CHECKPOINTS.c).decode
_ADD_NODE = Prepared(
    insert(_NODES).values(level=bindparam("level"), position=bindparam("position"), hash=bindparam("hash"))
)
_NODES_FROM = Prepared(
    select(_NODES.c.hash)
    .where(
        _NODES.c.level == bindparam("level"),
        _NODES.c.position >= bindparam("start"),
        _NODES.c.position < bindparam("stop"),
    )
    .order_by(_NODES.c.position)
)
_SIZE = Prepared(select(func.coalesce(func.max(_LOG.c.id), 0)))
_NEWEST = Prepared(select(_CHECKPOINTS).order_by(_CHECKPOINTS.c.size.desc()).limit(1))
_AFTER = Prepared(
    select(_CHECKPOINTS)
    .where(_CHECKPOINTS.c.size > bindparam("after"), _CHECKPOINTS.c.size <= bindparam("up_to"))
    .order_by(_CHECKPOINTS.c.size)
    .limit(bindparam("rows"))
)
_AT_MOST = Prepared(
    select(_CHECKPOINTS)
    .where(_CHECKPOINTS.c.size <= bindparam("size"))
    .order_by(_CHECKPOINTS.c.size.desc())
    .limit(1)
)
_COSIGNED = Prepared(
    select(_CHECKPOINTS)
    .where(
        _CHECKPOINTS.c.size.in_(
            select(_COUNTERSIGNATURES.c.size)
            .where(
                _COUNTERSIGNATURES.c.size <= bindparam("up_to"),
                _COUNTERSIGNATURES.c.kind == bindparam("kind"),
            )
            .distinct()
            .order_by(_COUNTERSIGNATURES.c.size.desc())
            .limit(bindparam("rows"))
        )
    )
    .order_by(_CHECKPOINTS.c.size)
)


def _add_checkpoint(insert: Insert) -> ClauseElement:
    return (  # type: ignore[no-any-return]  # the dialect's own insert
        insert(_CHECKPOINTS)
        .values({name: bindparam(name) for name in ("size", "root", "note", "created_at")})
        .on_conflict_do_nothing()
    )


def _add_countersignature(insert: Insert) -> ClauseElement:
    return (  # type: ignore[no-any-return]  # the dialect's own insert
        insert(_COUNTERSIGNATURES)
        .values({name: bindparam(name) for name in ("size", "kind", "signer", "value", "created_at")})
        .on_conflict_do_nothing()
    )


_ADD_CHECKPOINT = Prepared(_add_checkpoint)
_ADD_COUNTERSIGNATURE = Prepared(_add_countersignature)
_COUNTERSIGNATURES_OF = Prepared(
    select(_COUNTERSIGNATURES)
    .where(_COUNTERSIGNATURES.c.size == bindparam("size"))
    .order_by(_COUNTERSIGNATURES.c.kind, _COUNTERSIGNATURES.c.signer)
)


class AuditTree:
    """The tree and its checkpoints, inside one unit of work. It is what proofs read: a `TileReader`."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def grow(self, position: int, leaf: bytes) -> None:
        """Add the leaf of the entry with id *position* + 1, and each node that it completes."""
        run = self._sql.do
        run(_ADD_NODE, level=0, position=position, hash=leaf)
        level = 0
        while position % TILE_WIDTH == TILE_WIDTH - 1:
            position //= TILE_WIDTH
            tile = self.nodes(level, position * TILE_WIDTH, TILE_WIDTH)
            if len(tile) < TILE_WIDTH:
                return  # somebody removed one: whoever verifies or signs finds it; no act fails for it
            level += 1
            run(_ADD_NODE, level=level, position=position, hash=tile_root(tile))

    def size(self) -> int:
        """Return how many entries the tree covers."""
        row = self._sql.row(_SIZE)
        assert row is not None
        return int(row[0])

    def nodes(self, level: int, start: int, count: int) -> list[bytes]:
        """Return the nodes of tile level *level* from *start* on: *count*, or as many as there are."""
        return [row[0] for row in self._sql.rows(_NODES_FROM, level=level, start=start, stop=start + count)]

    def hashes(self, level: int, start: int, count: int) -> list[bytes]:
        """Return *count* nodes of tile level *level* from *start* on, which the tree must have.

        Raises:
            LogBroken: It has not all of them: somebody removed one.
        """
        found = self.nodes(level, start, count)
        if len(found) != count:
            raise LogBroken(f"a node of level {level} is missing from {start} to {start + count - 1}")
        return found

    def add_checkpoint(self, checkpoint: StoredCheckpoint) -> bool:
        """Store *checkpoint* unless there is a larger one, or one of that size; return whether it was stored."""
        newest = self.newest_checkpoint()
        if newest is not None and newest.size >= checkpoint.size:
            return False
        self._sql.do(
            _ADD_CHECKPOINT,
            size=checkpoint.size,
            root=checkpoint.root,
            note=checkpoint.note,
            created_at=to_micros(checkpoint.created_at),
        )
        return True

    def newest_checkpoint(self) -> StoredCheckpoint | None:
        """Return the checkpoint of the largest tree."""
        row = self._sql.row(_NEWEST)
        return None if row is None else _checkpoint(row)

    def checkpoint_at_most(self, size: int) -> StoredCheckpoint | None:
        """Return the checkpoint of the largest tree of at most *size* entries."""
        row = self._sql.row(_AT_MOST, size=size)
        return None if row is None else _checkpoint(row)

    def cosigned(self, up_to: int, limit: int) -> list[StoredCheckpoint]:
        """Return the *limit* largest checkpoints of at most *up_to* entries that a witness cosigned, smallest first."""
        kind = CountersignatureKind.COSIGNATURE
        return [_checkpoint(row) for row in self._sql.rows(_COSIGNED, up_to=up_to, kind=kind, rows=limit)]

    def checkpoints(self, after: int, up_to: int, limit: int) -> list[StoredCheckpoint]:
        """Return at most *limit* checkpoints of more than *after* and at most *up_to* entries, smallest first."""
        rows = self._sql.rows(_AFTER, after=after, up_to=up_to, rows=limit)
        return [_checkpoint(row) for row in rows]

    def countersign(self, size: int, countersignature: Countersignature) -> bool:
        """Store what somebody said of the checkpoint of *size*; return False if they had said it before."""
        return (
            self._sql.run(
                _ADD_COUNTERSIGNATURE,
                size=size,
                kind=countersignature.kind,
                signer=countersignature.signer,
                value=countersignature.value,
                created_at=to_micros(countersignature.created_at),
            )
            == 1
        )

    def countersignatures(self, size: int) -> list[Countersignature]:
        """Return what others said of the checkpoint of *size*, cosignatures first."""
        return [
            Countersignature(
                kind=CountersignatureKind(row[1]), signer=row[2], value=row[3], created_at=from_micros(row[4])
            )
            for row in self._sql.rows(_COUNTERSIGNATURES_OF, size=size)
        ]
