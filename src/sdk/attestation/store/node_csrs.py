"""Kubernetes certificate requests of nodes: what was asked of them first, and what was decided, once for each."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import bindparam, delete, insert, select, update

from attestation.clock import from_micros, to_micros
from attestation.errors import ChallengeExpired, ChallengeUnknown, ChallengeUsed
from attestation.store.codec import binds, codec
from attestation.store.pages import Page, before_id, checked_limit, page_of
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import NodeChallengeRow, NodeCSRRow, table_of

_A = table_of(NodeChallengeRow)
_T = table_of(NodeCSRRow)
_C = _T.c

NodeDecision = Literal["approve", "deny", "not-recognised"]
"""The last is never kept."""
QuoteWord = Literal["required", "accepted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChallenge:
    """What a machine that wants a Kubernetes certificate must answer.

    Args:
        challenge_id: 16 random bytes, 32 lower-case hex.
        machine_id: Whom it was given to.
        ek_fingerprint: EK of that machine, 96 hex.
        nonce: 32 bytes.
        pcr_selection: PCRs that a quote is to cover, JSON.
        event_log: `required` or `accepted`.
        quote: Whether the cluster wants one: `required` or `accepted`.
        policy_ref: `name@version` of the policy it was issued under.
        issued_at: Instant of issue.
        expires_at: From this instant on it cannot be redeemed.
        used_at: When it was redeemed, or None.
    """

    challenge_id: str
    machine_id: str
    ek_fingerprint: str
    nonce: bytes
    pcr_selection: str
    event_log: QuoteWord
    quote: QuoteWord
    policy_ref: str
    issued_at: datetime
    expires_at: datetime
    used_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCSR:
    """What was decided of one request.

    Args:
        result_id: 16 random bytes, 32 lower-case hex.
        cluster_id: In which cluster it was made.
        csr_uid: Its `metadata.uid`; unique in the cluster.
        csr_name: Its name.
        signer_name: Whom it was addressed to.
        content_sha256: SHA-256 over everything that it says, hex: another one under this UID is none of ours.
        decision: What was decided.
        reason: Word of the condition.
        message: Words of the condition.
        tier: What is known of where the key lives, 1 to 4, where it was approved.
        machine_id: Whose it is, where the machine's AK said so; else None.
        node_name: Name of the node, where it was approved.
        assurance: Word of the machine's assurance then, or None.
        ak_name: Name of the AK that said so, or None.
        at: When.
        serial: Of the certificate that our CA issued for it, 40 lower-case hex, or None.
    """

    result_id: str
    cluster_id: str
    csr_uid: str
    csr_name: str
    signer_name: str
    content_sha256: str
    decision: NodeDecision
    reason: str
    message: str
    tier: int | None = None
    machine_id: str | None = None
    node_name: str | None = None
    assurance: str | None = None
    ak_name: bytes | None = None
    at: datetime
    serial: str | None = None


_CHALLENGE = codec(NodeChallenge, _A.c)
_ISSUE = Prepared(insert(_A).values(binds(_A.c)))
_CHALLENGE_OF = Prepared(select(_A).where(_A.c.challenge_id == bindparam("challenge_id")))
_REDEEM = Prepared(
    update(_A)
    .where(
        _A.c.challenge_id == bindparam("of_challenge"),
        _A.c.machine_id == bindparam("of_machine"),
        _A.c.used_at.is_(None),
        _A.c.expires_at > bindparam("at"),
    )
    .values(used_at=bindparam("at"))
)

_ROW = codec(NodeCSR, _C, besides=("id",))
_ADD = Prepared(lambda insert: insert(_T).values(binds(_C, "id")).on_conflict_do_nothing())
_GET = Prepared(select(_T).where(_C.cluster_id == bindparam("of_cluster"), _C.csr_uid == bindparam("of_uid")))
_SIGNED = Prepared(
    update(_T)
    .where(_C.result_id == bindparam("of_result"), _C.serial.is_(None))
    .values(serial=bindparam("with_serial"))
)
_FIRST = Prepared(
    select(_C.at)
    .where(
        _C.machine_id == bindparam("of_machine"),
        _C.cluster_id == bindparam("of_cluster"),
        _C.decision == "approve",
    )
    .order_by(_C.at)
    .limit(1)
)
_APPROVED = Prepared(
    select(_C.id)
    .where(
        _C.machine_id == bindparam("of_machine"),
        _C.at >= bindparam("since"),
        _C.decision == "approve",
        _C.signer_name != bindparam("besides_signer"),
    )
    .limit(1)
)
_PAGE = Prepared(
    select(_T).where(_C.id < bindparam("before")).order_by(_C.id.desc()).limit(bindparam("rows"))
)
_PAGE_OF = Prepared(
    select(_T)
    .where(_C.id < bindparam("before"), _C.machine_id == bindparam("of_machine"))
    .order_by(_C.id.desc())
    .limit(bindparam("rows"))
)
_STRANGERS = Prepared(
    delete(_T).where(
        _C.id.in_(
            select(_C.id)
            .where(_C.at < bindparam("before"), _C.decision != "approve")
            .limit(bindparam("rows"))
        )
    )
)
_OLD = Prepared(
    delete(_T).where(_C.id.in_(select(_C.id).where(_C.at < bindparam("before")).limit(bindparam("rows"))))
)


class NodeCSRs:
    """Requests of nodes and the challenges before them, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def issue(self, challenge: NodeChallenge) -> None:
        """Store a new challenge."""
        self._sql.do(_ISSUE, **_CHALLENGE.encode(challenge))

    def challenge(self, challenge_id: str) -> NodeChallenge | None:
        """Return the challenge of that id, used or not, or None."""
        return _CHALLENGE.one(self._sql.row(_CHALLENGE_OF, challenge_id=challenge_id))

    def redeem(self, challenge_id: str, machine_id: str, at: datetime) -> None:
        """Spend a challenge: one atomic statement, so of any number of racers exactly one returns.

        Raises:
            ChallengeUnknown: No such challenge, or not for this machine.
            ChallengeUsed: Somebody redeemed it before.
            ChallengeExpired: Not redeemed in time.
        """
        if self._sql.one(_REDEEM, of_challenge=challenge_id, of_machine=machine_id, at=to_micros(at)):
            return
        found = self.challenge(challenge_id)
        if found is None or found.machine_id != machine_id:
            raise ChallengeUnknown("no such challenge for this machine")
        if found.used_at is not None:
            raise ChallengeUsed("the challenge was redeemed before")
        raise ChallengeExpired("the challenge was not answered in time")

    def add(self, decided: NodeCSR) -> bool:
        """Write down what was decided; False where something was decided of this request before, and then stays."""
        return self._sql.run(_ADD, **_ROW.encode(decided)) == 1

    def get(self, cluster_id: str, csr_uid: str) -> NodeCSR | None:
        """Return what was decided of a request, or None."""
        row = self._sql.row(_GET, of_cluster=cluster_id, of_uid=csr_uid)
        return None if row is None else _ROW.decode(row)

    def signed(self, result_id: str, serial: str) -> bool:
        """Write down which certificate was issued for a request; False where there is one."""
        return self._sql.run(_SIGNED, of_result=result_id, with_serial=serial) == 1

    def first_approved(self, cluster_id: str, machine_id: str) -> datetime | None:
        """Return when a request of a machine was approved first in a cluster, of those that are kept; or None."""
        row = self._sql.row(_FIRST, of_machine=machine_id, of_cluster=cluster_id)
        return None if row is None else from_micros(row[0])

    def was_approved(self, machine_id: str, since: datetime, *, besides: str = "") -> bool:
        """Return True if a request of this machine was approved at *since* or later, not for the signer *besides*."""
        asked = {"of_machine": machine_id, "since": to_micros(since), "besides_signer": besides}
        return self._sql.row(_APPROVED, **asked) is not None

    def page(self, machine_id: str | None, cursor: str | None, limit: int) -> Page[NodeCSR]:
        """Return decisions, newest first; of one machine, or all.

        Raises:
            RequestInvalid: A cursor or limit that cannot be.
        """
        kind = "node-csrs"
        asked = {"before": before_id(kind, cursor), "rows": checked_limit(limit) + 1}
        rows = (
            self._sql.rows(_PAGE, **asked)
            if machine_id is None
            else self._sql.rows(_PAGE_OF, of_machine=machine_id, **asked)
        )
        return page_of(kind, rows, limit, _ROW.decode)

    def purge(self, refused_before: datetime, before: datetime, limit: int) -> int:
        """Delete up to *limit* rows of each kind: what was not approved *refused_before*, all *before*."""
        gone = self._sql.run(_STRANGERS, before=to_micros(refused_before), rows=limit)
        return gone + self._sql.run(_OLD, before=to_micros(before), rows=limit)
