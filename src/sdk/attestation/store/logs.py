"""Measurement logs by their SHA-256: boot event logs of firmware and IMA lists, as machines sent them.

Many machines of one kind have the same log; it is kept once. Who may have one kept is the caller's rule;
what no result and no machine refers to any more is purged.
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from sqlalchemy import bindparam, select

from attestation.clock import to_micros
from attestation.errors import StoreUnavailable
from attestation.store.codec import binds
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import LogRow, table_of

LogKind = Literal["tcg", "ima"]

MAX_LOG_BYTES: Final = 16 << 20
"""Nothing longer is kept, and nothing longer is ever unpacked."""

_TOUCHED_US: Final = 3600 * 1_000_000
_T = table_of(LogRow)
_C = _T.c


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLog:
    """A log, ready to be kept; made by `pack`.

    Args:
        sha256: SHA-256 of the log as it came, hex.
        kind: `tcg` or `ima`.
        size_bytes: Its length as it came.
        content: zlib (RFC 1950) of it.
    """

    sha256: str
    kind: LogKind
    size_bytes: int
    content: bytes


def pack(kind: LogKind, log: bytes) -> PackedLog:
    """Compress *log*, at most `MAX_LOG_BYTES`, outside of any unit: it takes longer than writing it."""
    if len(log) > MAX_LOG_BYTES:
        raise ValueError(f"a log of more than {MAX_LOG_BYTES} bytes")
    return PackedLog(
        sha256=hashlib.sha256(log).hexdigest(),
        kind=kind,
        size_bytes=len(log),
        content=zlib.compress(log, level=1),
    )


def unpack(sha256: str, size_bytes: int, content: bytes) -> bytes:
    """Return what was packed; never more than the *size_bytes* that were written beside it.

    Raises:
        StoreUnavailable: The row is not what we wrote.
    """
    unpacker = zlib.decompressobj()
    try:
        # One byte more than promised is enough to see that the promise was wrong; 0 would mean no limit.
        log = unpacker.decompress(content, min(size_bytes, MAX_LOG_BYTES) + 1)
    except zlib.error as e:
        raise StoreUnavailable(f"measurement log {sha256}: {e}") from e
    # What names it is the digest of its bytes: whoever changes the database cannot make another log of it.
    if len(log) != size_bytes or hashlib.sha256(log).hexdigest() != sha256:
        raise StoreUnavailable(f"measurement log {sha256} is not what was stored")
    return log


_PUT = Prepared(
    lambda insert: (
        insert(_T)
        .values(binds(_C))
        .on_conflict_do_update(
            index_elements=[_C.sha256],
            set_={"last_used_at": bindparam("last_used_at")},
            where=_C.last_used_at < bindparam("untouched_since"),
        )
    )
)
_GET = Prepared(select(_C.size_bytes, _C.content).where(_C.sha256 == bindparam("sha256")))


class Logs:
    """The measurement logs, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def put(self, log: PackedLog, at: datetime) -> None:
        """Keep *log*; where it is kept already, note at most once an hour that it is in use."""
        now = to_micros(at)
        self._sql.do(
            _PUT,
            sha256=log.sha256,
            kind=log.kind,
            size_bytes=log.size_bytes,
            content=log.content,
            first_seen_at=now,
            last_used_at=now,
            untouched_since=now - _TOUCHED_US,
        )

    def get(self, sha256: str) -> bytes | None:
        """Return the log with this SHA-256, as it came; None where it is not kept.

        Raises:
            StoreUnavailable: The row is not what we wrote.
        """
        row = self._sql.row(_GET, sha256=sha256)
        return None if row is None else unpack(sha256, row[0], row[1])
