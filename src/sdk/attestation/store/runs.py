"""Attestation runs of Kubernetes nodes: what was asked of a node, attempt by attempt, and what its answers were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, delete, insert, select, update

from attestation.clock import to_micros
from attestation.errors import ChallengeExpired, ChallengeUsed
from attestation.runs import Backend, PolicySource
from attestation.store.codec import binds, codec
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import RunAttemptRow, RunBlobRow, RunRow, RunSealRow, table_of

_R = table_of(RunRow)
_A = table_of(RunAttemptRow)
_B = table_of(RunBlobRow)
_S = table_of(RunSealRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run, as it was opened; nothing of it changes.

    Args:
        run_id: 16 random bytes, 32 lower-case hex: its name here.
        cluster_id: In which cluster.
        run_uid: `metadata.uid` of its object; unique in the cluster.
        namespace: Of its object.
        name: Of its object.
        node_name: Name of the node.
        node_uid: `metadata.uid` of the node.
        backend: By which hardware.
        nonce: The caller's, or None.
        policy: An AttestationPolicySpec, canonical JSON; None where there is none.
        policy_source: Where it came from.
        policy_name: Of the AttestationPolicy, with source `ref`.
        policy_id: `ni:///sha-384;…` of what is asked.
        content_sha256: SHA-256 over everything that its controller said, hex.
        opened_at: When.
        deadline: From then on nothing is asked any more.
    """

    run_id: str
    cluster_id: str
    run_uid: str
    namespace: str
    name: str
    node_name: str
    node_uid: str
    backend: Backend
    nonce: str | None
    policy: str | None
    policy_source: PolicySource
    policy_name: str | None
    policy_id: str
    content_sha256: str
    opened_at: datetime
    deadline: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAttempt:
    """One attempt of a run.

    Args:
        challenge_id: 16 random bytes, 32 lower-case hex.
        run_id: Of the run.
        attempt: From 1.
        random: 32 bytes; nobody but the node is told them before the attempt has ended.
        issued_at: When.
        expires_at: From this instant on it cannot be answered.
        used_at: When it was answered, or None.
        verdict: What was found, where it was answered.
        machine_id: Whose evidence it was judged as, or None.
        result: All that was found, JSON, where it was answered.
    """

    challenge_id: str
    run_id: str
    attempt: int
    random: bytes
    issued_at: datetime
    expires_at: datetime
    used_at: datetime | None = None
    verdict: str | None = None
    machine_id: str | None = None
    result: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBlob:
    """One item of evidence.

    Args:
        challenge_id: Of the attempt.
        position: From 0.
        run_id: Of the run.
        media_type: Of the item.
        sha256: Of `content`, hex.
        content: Its value, canonical JSON.
    """

    challenge_id: str
    position: int
    run_id: str
    media_type: str
    sha256: str
    content: bytes


_RUN = codec(Run, _R.c)
_ATTEMPT = codec(RunAttempt, _A.c)
_BLOB = codec(RunBlob, _B.c)
_ADD = Prepared(lambda insert: insert(_R).values(binds(_R.c)).on_conflict_do_nothing())
_GET = Prepared(
    select(_R).where(_R.c.cluster_id == bindparam("of_cluster"), _R.c.run_uid == bindparam("of_uid"))
)
_ISSUE = Prepared(lambda insert: insert(_A).values(binds(_A.c)).on_conflict_do_nothing())
_ATTEMPTS = Prepared(select(_A).where(_A.c.run_id == bindparam("of_run")).order_by(_A.c.attempt))
_REDEEM = Prepared(
    update(_A)
    .where(
        _A.c.challenge_id == bindparam("of_challenge"),
        _A.c.used_at.is_(None),
        _A.c.expires_at > bindparam("at"),
    )
    .values(
        used_at=bindparam("at"),
        verdict=bindparam("found"),
        machine_id=bindparam("of_machine"),
        result=bindparam("with_result"),
    )
)
_USED = Prepared(select(_A.c.used_at).where(_A.c.challenge_id == bindparam("of_challenge")))
_KEEP = Prepared(insert(_B).values(binds(_B.c)))
_BLOBS = Prepared(select(_B).where(_B.c.challenge_id == bindparam("of_challenge")).order_by(_B.c.position))
_OLD = (
    select(_R.c.run_id)
    .where(
        _R.c.deadline < bindparam("before"),
        # What is to be sealed is kept until it is: the evidence goes into the file.
        _R.c.run_id.not_in(select(_S.c.run_id).where(_S.c.next_at.is_not(None))),
    )
    .order_by(_R.c.deadline, _R.c.run_id)
    .limit(bindparam("rows"))
)
_PURGE = tuple(Prepared(delete(table).where(table.c.run_id.in_(_OLD))) for table in (_B, _A, _S, _R))
"""What hangs on a run first: each batch is chosen by the rows of the runs themselves."""


class Runs:
    """The runs, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def add(self, run: Run) -> bool:
        """Write down that a run was opened; False where one is under its UID, which then stays."""
        return self._sql.run(_ADD, **_RUN.encode(run)) == 1

    def get(self, cluster_id: str, run_uid: str) -> Run | None:
        """Return the run of that UID in a cluster, or None."""
        return _RUN.one(self._sql.row(_GET, of_cluster=cluster_id, of_uid=run_uid))

    def issue(self, attempt: RunAttempt) -> bool:
        """Begin an attempt; False where another began it first, which then stays."""
        return self._sql.run(_ISSUE, **_ATTEMPT.encode(attempt)) == 1

    def attempts(self, run_id: str) -> list[RunAttempt]:
        """Return the attempts of a run, the first one first."""
        return [_ATTEMPT.decode(row) for row in self._sql.rows(_ATTEMPTS, of_run=run_id)]

    def conclude(
        self,
        challenge_id: str,
        at: datetime,
        *,
        verdict: str,
        machine_id: str | None,
        result: str,
        blobs: Sequence[RunBlob] = (),
    ) -> None:
        """Spend a challenge and write down what its answer was: of any number of racers exactly one returns.

        Raises:
            ChallengeUsed: Somebody answered it before.
            ChallengeExpired: It was not answered in time.
        """
        if self._sql.run(
            _REDEEM,
            of_challenge=challenge_id,
            at=to_micros(at),
            found=verdict,
            of_machine=machine_id,
            with_result=result,
        ):
            for blob in blobs:
                self._sql.do(_KEEP, **_BLOB.encode(blob))
            return
        used = self._sql.row(_USED, of_challenge=challenge_id)
        if used is not None and used[0] is not None:
            raise ChallengeUsed("the challenge was answered before")
        raise ChallengeExpired("the challenge was not answered in time")

    def blobs(self, challenge_id: str) -> list[RunBlob]:
        """Return the evidence of an attempt, in the order in which it was posted."""
        return [_BLOB.decode(row) for row in self._sql.rows(_BLOBS, of_challenge=challenge_id)]

    def purge(self, before: datetime, limit: int) -> int:
        """Delete up to *limit* runs whose deadline was before *before*, with all that hangs on them.

        What waits for its seal stays.
        """
        gone = 0
        for statement in _PURGE:
            gone = self._sql.run(statement, before=to_micros(before), rows=limit)
        return gone
