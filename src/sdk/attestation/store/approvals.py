"""The votes of dual control: cast at most once by one operator, counted while they live, kept afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final

from sqlalchemy import BindParameter, ColumnElement, and_, bindparam, func, select, text, update

from attestation.clock import from_micros, to_micros
from attestation.machines import Role
from attestation.machines.dual_control import Proposal, Vote
from attestation.store.codec import binds, codec
from attestation.store.pages import Page, before_id, checked_limit, encode_cursor, page_of
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import OPEN_VOTE, ApprovalRow, table_of

MACHINE_CHANGED: Final = "the machine was changed"

_T = table_of(ApprovalRow)
_C = _T.c


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """One stored vote.

    Args:
        id: Number of the row.
        proposal_digest: What it agrees to, 64 lower-case hex.
        action: The act.
        machine_id: The machine, or None.
        subject: What it is about, in words.
        role: The role asked for, or None.
        hostname: The host name asked for, or None.
        assigned_ip: The address asked for, or None.
        proposal: The canonical JSON whose digest is `proposal_digest`.
        reason: Why, in the words of the voter; or None.
        vote: Whose it is, and until when it counts.
    """

    id: int
    proposal_digest: str
    action: str
    machine_id: str | None
    subject: str
    role: Role | None
    hostname: str | None
    assigned_ip: str | None
    proposal: str
    reason: str | None
    vote: Vote


_SHOWN = [column for column in _C if column.name != "document"]
"""A document may be as long as a request, and is asked for by itself."""
_ROW = codec(Approval, _SHOWN, besides=("lapsed_at",))
_OPEN = text(OPEN_VOTE)
_LIVE = and_(_OPEN, _C.expires_at > bindparam("at"))
_LAPSE = Prepared(
    update(_T)
    .where(
        _C.proposal_digest == bindparam("of_proposal"),
        _C.expires_at <= bindparam("at"),
        _OPEN,
    )
    .values(lapsed_at=bindparam("at"))
)
_CAST = Prepared(lambda insert: insert(_T).values(binds(_C, "id")).on_conflict_do_nothing().returning(_C.id))
_LIVE_FOR = Prepared(
    select(*_SHOWN).where(_C.proposal_digest == bindparam("of_proposal"), _LIVE).order_by(_C.id)
)
_LIVE_ALL = Prepared(select(*_SHOWN).where(_LIVE).order_by(_C.id))
_DOCUMENT = Prepared(
    select(_C.document)
    .where(_C.proposal_digest == bindparam("of_proposal"), _LIVE, _C.document.is_not(None))
    .order_by(_C.id)
    .limit(1)
)
_CONSUME = Prepared(
    update(_T)
    .where(_C.proposal_digest == bindparam("of_proposal"), _LIVE)
    .values(consumed_at=bindparam("at"))
)
_WITHDRAW = Prepared(
    update(_T).where(_C.id == bindparam("of_id"), _LIVE).values(withdrawn_at=bindparam("at"))
)


def _void(*where: ColumnElement[bool]) -> Prepared:
    ended = update(_T).where(*where, _LIVE).values(withdrawn_at=bindparam("at"), void=bindparam("why"))
    return Prepared(ended.returning(*_SHOWN))


_VOID = _void(_C.machine_id == bindparam("of_machine"))
_VOID_ONE = _void(_C.id == bindparam("of_id"))
_VOID_FOR = _void(_C.proposal_digest == bindparam("of_proposal"))
_VOID_BY = _void(_C.operator_sub == bindparam("of_operator"))
_HAS = Prepared(select(_C.id).where(_C.operator_sub == bindparam("of_operator"), _LIVE).limit(1))
_OF_VOTER = Prepared(
    select(func.count(), func.min(_C.expires_at)).where(_C.operator_sub == bindparam("of_operator"), _LIVE)
)
_GET = Prepared(select(*_SHOWN).where(_C.id == bindparam("of_id")))
_PAGE = Prepared(
    select(*_SHOWN)
    .where(_C.machine_id == bindparam("of_machine"), _C.id < bindparam("before"))
    .order_by(_C.id.desc())
    .limit(bindparam("rows"))
)
_FIRST = func.min(_C.id)
_PROPOSALS = Prepared(
    select(_FIRST, _C.proposal_digest)
    .where(_LIVE)
    .group_by(_C.proposal_digest)
    .having(bindparam("before") > _FIRST)
    .order_by(_FIRST.desc())
    .limit(bindparam("rows"))
)


@lru_cache(maxsize=16)
def _live_of(machines: int) -> Prepared:
    named: list[BindParameter[str]] = [bindparam(f"machine_{i}") for i in range(machines)]
    return Prepared(select(*_SHOWN).where(_C.machine_id.in_(named), _LIVE).order_by(_C.id))


class Approvals:
    """The votes, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def cast(
        self, proposal: Proposal, vote: Vote, *, reason: str | None = None, document: str | None = None
    ) -> int | None:
        """Store a vote and return its id; None where this operator has a live one for the same proposal.

        `reason`: why, in the words of the voter; `document`: what was sent where the proposal binds only its digest.
        """
        digest, at = proposal.digest(), to_micros(vote.created_at)
        self._sql.do(_LAPSE, of_proposal=digest, at=at)  # or they would stand in the way of new ones
        row = self._sql.row(
            _CAST,
            proposal_digest=digest,
            action=proposal.action,
            machine_id=proposal.machine_id,
            subject=proposal.subject,
            operator_cn=vote.operator_cn,
            operator_sub=vote.operator_sub,
            role=None if proposal.role is None else proposal.role.value,
            hostname=proposal.hostname,
            assigned_ip=proposal.assigned_ip,
            proposal=proposal.canonical().decode("ascii"),
            created_at=at,
            expires_at=to_micros(vote.expires_at),
            consumed_at=None,
            withdrawn_at=None,
            lapsed_at=None,
            void=None,
            certificate=vote.certificate,
            reason=reason,
            document=document,
        )
        return None if row is None else int(row[0])

    def live(self, proposal_digest: str, at: datetime) -> tuple[Approval, ...]:
        """Return the votes for a proposal that count at *at*, oldest first."""
        return tuple(
            map(_ROW.decode, self._sql.rows(_LIVE_FOR, of_proposal=proposal_digest, at=to_micros(at)))
        )

    def document(self, proposal_digest: str, at: datetime) -> str | None:
        """Return what was sent with a live vote for a proposal, where it binds only its digest."""
        row = self._sql.row(_DOCUMENT, of_proposal=proposal_digest, at=to_micros(at))
        return None if row is None else str(row[0])

    def every_live(self, at: datetime) -> tuple[Approval, ...]:
        """Return the votes that count at *at*, oldest first: those of one window, which people cast by hand."""
        return tuple(map(_ROW.decode, self._sql.rows(_LIVE_ALL, at=to_micros(at))))

    def live_of(self, machine_ids: Sequence[str], at: datetime) -> dict[str, list[Approval]]:
        """Return the live votes about each of *machine_ids* that has any, oldest first, in one query."""
        if not machine_ids:
            return {}
        # Statements are compiled for powers of two; the last id fills up.
        size = 1 << (len(machine_ids) - 1).bit_length()
        padded = [*machine_ids, *[machine_ids[-1]] * (size - len(machine_ids))]
        named = {f"machine_{i}": machine_id for i, machine_id in enumerate(padded)}
        found: dict[str, list[Approval]] = {}
        for approval in map(_ROW.decode, self._sql.rows(_live_of(size), at=to_micros(at), **named)):
            assert approval.machine_id is not None
            found.setdefault(approval.machine_id, []).append(approval)
        return found

    def consume(self, proposal_digest: str, at: datetime) -> int:
        """End the live votes for a proposal, because what they are for is done; return how many."""
        return self._sql.run(_CONSUME, of_proposal=proposal_digest, at=to_micros(at))

    def withdraw(self, approval_id: int, at: datetime) -> bool:
        """Take a vote back; False where it did not live any more. Whose it is, is the caller's rule."""
        return self._sql.run(_WITHDRAW, of_id=approval_id, at=to_micros(at)) == 1

    def void(self, machine_id: str, at: datetime, why: str = MACHINE_CHANGED) -> tuple[Approval, ...]:
        """End the live votes about a machine, because it is not what they were cast about; return them."""
        return self._voided(_VOID, at, why, of_machine=machine_id)

    def void_one(self, approval_id: int, at: datetime, why: str) -> tuple[Approval, ...]:
        """End one vote, if it lives, because its voter may not vote any more; return it."""
        return self._voided(_VOID_ONE, at, why, of_id=approval_id)

    def void_for(self, proposal_digest: str, at: datetime, why: str) -> tuple[Approval, ...]:
        """End the live votes for a proposal, because somebody objects to it; return them."""
        return self._voided(_VOID_FOR, at, why, of_proposal=proposal_digest)

    def void_by(self, operator_sub: str, at: datetime, why: str) -> tuple[Approval, ...]:
        """End the live votes that this subject cast, because it may not vote any more; return them."""
        return self._voided(_VOID_BY, at, why, of_operator=operator_sub)

    def _voided(self, statement: Prepared, at: datetime, why: str, **of: object) -> tuple[Approval, ...]:
        rows = self._sql.rows(statement, at=to_micros(at), why=why, **of)
        return tuple(sorted(map(_ROW.decode, rows), key=lambda approval: approval.id))

    def has_live(self, operator_sub: str, at: datetime) -> bool:
        """Return True if a vote that this subject cast lives."""
        return self._sql.row(_HAS, of_operator=operator_sub, at=to_micros(at)) is not None

    def of_voter(self, operator_sub: str, at: datetime) -> tuple[int, datetime | None]:
        """Return how many votes that this subject cast live, and when the first of them ends."""
        row = self._sql.row(_OF_VOTER, of_operator=operator_sub, at=to_micros(at))
        assert row is not None
        return int(row[0]), None if row[1] is None else from_micros(row[1])

    def get(self, approval_id: int) -> Approval | None:
        """Return a vote, live or not, or None."""
        return _ROW.one(self._sql.row(_GET, of_id=approval_id))

    def page(self, machine_id: str, cursor: str | None, limit: int) -> Page[Approval]:
        """Return the votes about a machine, live or not, newest first.

        Raises:
            RequestInvalid: *cursor* or *limit* cannot be right.
        """
        kind = "approvals"
        rows = self._sql.rows(
            _PAGE, of_machine=machine_id, before=before_id(kind, cursor), rows=checked_limit(limit) + 1
        )
        return page_of(kind, rows, limit, _ROW.decode)

    def proposals(self, cursor: str | None, limit: int, at: datetime) -> Page[tuple[Approval, ...]]:
        """Return the live votes for each proposal that has any, newest proposal first.

        Raises:
            RequestInvalid: *cursor* or *limit* cannot be right.
        """
        kind = "proposals"
        rows = self._sql.rows(
            _PROPOSALS, before=before_id(kind, cursor), rows=checked_limit(limit) + 1, at=to_micros(at)
        )
        return Page(
            items=tuple(self.live(row[1], at) for row in rows[:limit]),
            next_cursor=encode_cursor(kind, str(rows[limit - 1][0])) if len(rows) > limit else None,
        )
