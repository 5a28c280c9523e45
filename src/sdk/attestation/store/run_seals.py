"""Seals of attestation runs: how far each is, and what its file is made of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, or_, select, update

from attestation.clock import to_micros
from attestation.runs import SealPhase
from attestation.store.codec import binds, codec
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import RunSealRow, table_of

_T = table_of(RunSealRow)
_C = _T.c


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeal:
    """The seal of a run.

    Args:
        run_id: Of the run.
        cluster_id: Of the run.
        run_uid: Of the run.
        bundle_uid: `metadata.uid` of the AttestationBundle; unique in the cluster.
        challenge_id: Of the attempt that is sealed.
        content_sha256: SHA-256 over what the controller said, hex.
        request: What it said: event and result, JSON.
        asked_by: Who, as the audit names them.
        asked_sub: Their subject, likewise.
        phase: How far it is.
        statement: What is signed, from `Signed` on.
        signature: DER, likewise.
        key: The key that signed, JWK, likewise.
        signed_at: When, likewise.
        entry: Canonical bytes of the audit entry, likewise.
        entry_index: Its place in the log, from 0, likewise.
        log: The proof that it is there, JSON, from `Logged` on.
        archive: Where the file is kept, JSON, from `Sealed` on.
        sealed_at: Since when, likewise.
        failures: What kept it from a phase, JSON, the newest last.
        tries: How often the next step failed.
        next_at: When it is tried again; None where nothing is left to do.
    """

    run_id: str
    cluster_id: str
    run_uid: str
    bundle_uid: str
    challenge_id: str
    content_sha256: str
    request: str
    asked_by: str
    asked_sub: str | None
    phase: SealPhase
    statement: bytes | None = None
    signature: bytes | None = None
    key: str | None = None
    signed_at: datetime | None = None
    entry: bytes | None = None
    entry_index: int | None = None
    log: str | None = None
    archive: str | None = None
    sealed_at: datetime | None = None
    failures: str = "[]"
    tries: int = 0
    next_at: datetime | None = None


_CODEC = codec(RunSeal, _C)
_ADD = Prepared(lambda insert: insert(_T).values(binds(_C)).on_conflict_do_nothing())
_GET = Prepared(select(_T).where(_C.run_id == bindparam("of_run")))
_OF_UID = Prepared(select(_T).where(_C.run_uid == bindparam("of_uid")).order_by(_C.cluster_id))
_GO_ON = Prepared(
    update(_T)
    .where(_C.run_id == bindparam("of_run"), _C.phase == bindparam("from_phase"))
    .values(binds(_C, "run_id"))
)
_DUE = Prepared(
    select(_C.run_id)
    .where(
        _C.next_at <= bindparam("at"),
        # Until a checkpoint covers its entry there is nothing to do about one that is signed.
        or_(_C.phase != "Signed", _C.entry_index < bindparam("covered")),
    )
    .order_by(_C.next_at, _C.run_id)
    .limit(bindparam("rows"))
)


class RunSeals:
    """The seals, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def add(self, seal: RunSeal) -> bool:
        """Write down what is to be sealed; False where the run has a seal, or another run this bundle."""
        return self._sql.run(_ADD, **_CODEC.encode(seal)) == 1

    def get(self, run_id: str) -> RunSeal | None:
        """Return the seal of a run, or None."""
        return _CODEC.one(self._sql.row(_GET, of_run=run_id))

    def of_uid(self, run_uid: str) -> list[RunSeal]:
        """Return the seals of runs of that UID, of any cluster."""
        return [_CODEC.decode(row) for row in self._sql.rows(_OF_UID, of_uid=run_uid)]

    def go_on(self, seal: RunSeal, *, was: SealPhase) -> bool:
        """Write *seal* in the place of what was in the phase *was*; False where somebody was faster."""
        said = _CODEC.encode(seal)
        run_id = said.pop("run_id")
        return self._sql.run(_GO_ON, of_run=run_id, from_phase=was, **said) == 1

    def due(self, at: datetime, covered: int, limit: int) -> list[str]:
        """Return the runs whose seals can go on, those that wait longest first.

        Args:
            at: Now.
            covered: Entries that the newest checkpoint covers.
            limit: How many.
        """
        return [row[0] for row in self._sql.rows(_DUE, at=to_micros(at), covered=covered, rows=limit)]
