"""Challenges: issued to one machine for one purpose, redeemed at most once whichever worker sees the answer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import bindparam, insert, select, update

from attestation.clock import to_micros
from attestation.errors import ChallengeExpired, ChallengeUnknown, ChallengeUsed
from attestation.store.codec import binds, codec
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import ChallengeRow, table_of

_T = table_of(ChallengeRow)
_C = _T.c

Purpose = Literal["activate", "attest", "certify", "enroll"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """What one machine must answer.

    Args:
        challenge_id: 16 random bytes, 32 lower-case hex.
        purpose: What it may be redeemed for.
        machine_id: Whom it was given to; for `activate` the id may only be reserved.
        ek_fingerprint: EK of that machine, 96 hex.
        nonce: 32 bytes to be quoted (`attest`).
        proof_sha256: SHA-256 of the expected proof (`activate`); the secret itself is never stored.
        pcr_selection: Requested PCRs, JSON (`attest`).
        policy_ref: `name@version` of the policy it was issued under, or None.
        payload: Everything judged at introduction, JSON (`activate`); erased when it is redeemed.
        issued_at: Instant of issue.
        expires_at: From this instant on it cannot be redeemed.
        used_at: When it was redeemed, or None.
        event_log: `required` or `accepted` (`attest`).
        evidence: Kinds of evidence that were offered, JSON list (`attest`).
        ek_challenge: What a second protocol needs to judge its answer; erased when it is redeemed.
    """

    challenge_id: str
    purpose: Purpose
    machine_id: str
    ek_fingerprint: str
    nonce: bytes | None = None
    proof_sha256: bytes | None = None
    pcr_selection: str | None = None
    policy_ref: str | None = None
    payload: str | None = None
    issued_at: datetime
    expires_at: datetime
    used_at: datetime | None = None
    event_log: str | None = None
    evidence: str | None = None
    ek_challenge: bytes | None = None


_ROW = codec(Challenge, _C)
decode = _ROW.decode
_ISSUE = Prepared(insert(_T).values(binds(_C)))
_GET = Prepared(select(_T).where(_C.challenge_id == bindparam("challenge_id")))
_REDEEM = Prepared(
    update(_T)
    .where(
        _C.challenge_id == bindparam("of_challenge"),
        _C.purpose == bindparam("for_purpose"),
        _C.machine_id == bindparam("of_machine"),
        _C.used_at.is_(None),
        _C.expires_at > bindparam("at"),
    )
    .values(used_at=bindparam("at"), ek_challenge=None, payload=None)
)
MOST_OPEN = 5
# By the index of those that have not ended: they are few, however many there were.
_OPEN = Prepared(
    select(_T)
    .where(
        _C.expires_at > bindparam("after"),
        _C.purpose == bindparam("purpose"),
        _C.ek_fingerprint == bindparam("ek_fingerprint"),
        _C.used_at.is_(None),
    )
    .order_by(_C.expires_at.desc())
    .limit(MOST_OPEN)
)


class Challenges:
    """The challenges, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def issue(self, challenge: Challenge) -> None:
        """Store a new challenge."""
        self._sql.do(_ISSUE, **_ROW.encode(challenge))

    def get(self, challenge_id: str) -> Challenge | None:
        """Return the challenge called *challenge_id*, used or not, or None."""
        return _ROW.one(self._sql.row(_GET, challenge_id=challenge_id))

    def open_of(self, ek_fingerprint: str, purpose: Purpose, at: datetime) -> list[Challenge]:
        """Return what an EK was asked and can still answer at *at*, the newest first; five at most."""
        rows = self._sql.rows(_OPEN, ek_fingerprint=ek_fingerprint, purpose=purpose, after=to_micros(at))
        return [decode(row) for row in rows]

    def redeem(self, challenge_id: str, purpose: Purpose, machine_id: str, at: datetime) -> None:
        """Spend a challenge: one atomic statement, so of any number of racers exactly one returns.

        Raises:
            ChallengeUnknown: No such challenge, or not for this purpose and machine.
            ChallengeUsed: Somebody redeemed it before.
            ChallengeExpired: Not redeemed in time.
        """
        if self._sql.one(
            _REDEEM,
            of_challenge=challenge_id,
            for_purpose=purpose,
            of_machine=machine_id,
            at=to_micros(at),
        ):
            return
        challenge = self.get(challenge_id)
        if challenge is None or challenge.purpose != purpose or challenge.machine_id != machine_id:
            raise ChallengeUnknown("no such challenge for this machine")
        if challenge.used_at is not None:
            raise ChallengeUsed("the challenge was redeemed before")
        raise ChallengeExpired("the challenge was not answered in time")
