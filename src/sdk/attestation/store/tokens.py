"""Tokens: 256 random bits in somebody's hand, a SHA-256 digest here.

A *registration token* lets operators admit machines in advance. A *config token* is good for one delivery of
one configuration to one AK; the identical answer may be fetched again for a few minutes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from sqlalchemy import bindparam, func, insert, select, update

from attestation.clock import to_micros
from attestation.errors import (
    ConfigTokenConsumed,
    ConfigTokenUnknown,
    RegistrationTokenInvalid,
    RegistrationTokenUnknown,
)
from attestation.machines import DEFAULT_CLUSTER, Role
from attestation.results import Assurance
from attestation.store.codec import binds, codec
from attestation.store.pages import Page, before_id, checked_limit, page_of
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import ConfigTokenRow, RegistrationTokenRow, table_of
from attestation.store.within import named, size_of, within

_R = table_of(RegistrationTokenRow)
_RC = _R.c
_T = table_of(ConfigTokenRow)
_TC = _T.c


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationToken:
    """What an operator allowed whoever presents the token and proves a TPM.

    Args:
        token_id: Public name of the token.
        token_sha256: SHA-256 of its secret, 32 bytes.
        role: Role given to the machine.
        hostname: Host name given to the machine, or None.
        assigned_ip: Address with prefix length given to the machine, or None.
        cluster_id: Cluster given to the machine; None means `default`.
        uses: Machines that may be admitted.
        uses_left: Machines that may still be admitted.
        created_at: Instant of creation.
        created_by: Operator.
        expires_at: From this instant on it admits nobody.
        revoked_at: When an operator revoked it, or None.
        minimum_assurance: How well the EK of a machine must be vouched for (TPM.md §6).
    """

    token_id: str
    token_sha256: bytes
    role: Role
    hostname: str | None
    assigned_ip: str | None
    cluster_id: str | None
    uses: int
    uses_left: int
    created_at: datetime
    created_by: str
    expires_at: datetime
    revoked_at: datetime | None = None
    minimum_assurance: Assurance = Assurance.EK_CHAIN


_REGISTRATION = codec(RegistrationToken, _RC, besides=("id",))
_R_ADD = Prepared(insert(_R).values(binds(_RC, "id")))
_R_BY_HASH = Prepared(select(_R).where(_RC.token_sha256 == bindparam("token_sha256")))
_R_BY_ID = Prepared(select(_R).where(_RC.token_id == bindparam("token_id")))
_R_USE = Prepared(
    update(_R)
    .where(
        _RC.token_sha256 == bindparam("of_token"),
        _RC.uses_left > 0,
        _RC.revoked_at.is_(None),
        _RC.expires_at > bindparam("at"),
    )
    .values(uses_left=_RC.uses_left - 1)
    .returning(*_RC)
)
_R_REVOKE = Prepared(
    update(_R)
    .where(_RC.token_id == bindparam("of_token"), _RC.revoked_at.is_(None))
    .values(revoked_at=bindparam("at"))
)


@lru_cache(maxsize=16)
def _r_page(clusters: int | None) -> Prepared:
    """Return the statement for a page of tokens: of any cluster, or of so many that are given."""
    rows = select(_R).where(_RC.id < bindparam("before")).order_by(_RC.id.desc()).limit(bindparam("rows"))
    if clusters is not None:
        rows = rows.where(within(func.coalesce(_RC.cluster_id, DEFAULT_CLUSTER), clusters))
    return Prepared(rows)


class RegistrationTokens:
    """The registration tokens, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def add(self, token: RegistrationToken) -> None:
        """Store a new token."""
        self._sql.do(_R_ADD, **_REGISTRATION.encode(token))

    def get_by_hash(self, token_sha256: bytes) -> RegistrationToken | None:
        """Return the token whose secret has this SHA-256, in whatever state, or None."""
        return _REGISTRATION.one(self._sql.row(_R_BY_HASH, token_sha256=token_sha256))

    def get(self, token_id: str) -> RegistrationToken | None:
        """Return the token called *token_id*, in whatever state, or None."""
        return _REGISTRATION.one(self._sql.row(_R_BY_ID, token_id=token_id))

    def use(self, token_sha256: bytes, at: datetime) -> RegistrationToken:
        """Take one use, in one atomic statement, and return the token after it.

        Raises:
            RegistrationTokenInvalid: Unknown, spent, expired or revoked; which of them is not said.
        """
        row = self._sql.row(_R_USE, of_token=token_sha256, at=to_micros(at))
        if row is None:
            raise RegistrationTokenInvalid("the registration token is not valid here")
        return _REGISTRATION.decode(row)

    def revoke(self, token_id: str, at: datetime) -> RegistrationToken:
        """End a token; revoking twice changes nothing.

        Raises:
            RegistrationTokenUnknown: No such token.
        """
        self._sql.do(_R_REVOKE, of_token=token_id, at=to_micros(at))
        token = self.get(token_id)
        if token is None:
            raise RegistrationTokenUnknown("no such registration token")
        return token

    def page(
        self, cursor: str | None, limit: int, within: Collection[str] | None = None
    ) -> Page[RegistrationToken]:
        """Return tokens, newest first; *within*: of these clusters alone.

        Raises:
            RequestInvalid: *cursor* or *limit* cannot be right.
        """
        kind = "registration-tokens"
        statement, given = _r_page(None if within is None else size_of(within)), named(within or ())
        values = {"before": before_id(kind, cursor), "rows": checked_limit(limit) + 1}
        rows = self._sql.rows(statement, **values, **(given if within is not None else {}))
        return page_of(kind, rows, limit, _REGISTRATION.decode)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigToken:
    """The right of one AK to one delivery.

    Args:
        token_id: Public name, 16 lower-case hex.
        token_sha256: SHA-256 of its secret, 32 bytes.
        machine_id: Whose configuration it delivers.
        ak_name: Name of the AK it was issued to.
        issued_at: Instant of issue.
        expires_at: From this instant on it starts no delivery.
        used_at: When it was delivered, or None.
        answer: What was delivered, until the window for repeats closes.
        answer_until: End of that window.
        withdrawn_at: When it lost its right (lock, revoke, AK reset, failed attestation), or None.
    """

    token_id: str
    token_sha256: bytes
    machine_id: str
    ak_name: bytes
    issued_at: datetime
    expires_at: datetime
    used_at: datetime | None = None
    answer: bytes | None = None
    answer_until: datetime | None = None
    withdrawn_at: datetime | None = None

    def repeat(self, at: datetime) -> bytes | None:
        """Return the answer that may be fetched again at *at*, or None."""
        if self.withdrawn_at is not None or self.answer_until is None or at >= self.answer_until:
            return None
        return self.answer

    def is_unused(self, at: datetime) -> bool:
        """Return True if the first delivery is still due at *at*."""
        return self.used_at is None and self.withdrawn_at is None and at < self.expires_at


_CONFIG = codec(ConfigToken, _TC)
_T_ISSUE = Prepared(insert(_T).values(binds(_TC)))
_T_BY_HASH = Prepared(select(_T).where(_TC.token_sha256 == bindparam("token_sha256")))
_T_CONSUME = Prepared(
    update(_T)
    .where(
        _TC.token_sha256 == bindparam("of_token"),
        _TC.ak_name == bindparam("of_ak"),
        _TC.used_at.is_(None),
        _TC.withdrawn_at.is_(None),
        _TC.expires_at > bindparam("at"),
    )
    .values(used_at=bindparam("at"), answer=bindparam("answer"), answer_until=bindparam("answer_until"))
)
_T_WITHDRAW = Prepared(
    update(_T)
    .where(_TC.machine_id == bindparam("of_machine"), _TC.withdrawn_at.is_(None))
    .values(withdrawn_at=bindparam("at"), answer=None, answer_until=None)
)


class ConfigTokens:
    """The config tokens, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def issue(self, token: ConfigToken) -> None:
        """Store a new token; those issued before keep their right unless withdrawn."""
        self._sql.do(_T_ISSUE, **_CONFIG.encode(token))

    def get_by_hash(self, token_sha256: bytes) -> ConfigToken | None:
        """Return the token whose secret has this SHA-256, in whatever state, or None."""
        return _CONFIG.one(self._sql.row(_T_BY_HASH, token_sha256=token_sha256))

    def consume(
        self, token_sha256: bytes, *, ak_name: bytes, answer: bytes, answer_until: datetime, at: datetime
    ) -> tuple[bytes, bool]:
        """Spend the token on *answer*, in one atomic statement, or repeat the answer it was spent on.

        Args:
            token_sha256: SHA-256 of the secret presented.
            ak_name: The AK that *answer* is sealed for; the token must be of the same one.
            answer: What to deliver if this is the first delivery.
            answer_until: Until when the same bytes may be fetched again.
            at: Now.

        Returns:
            The bytes to deliver, and True if this was the first delivery.

        Raises:
            ConfigTokenUnknown: No such token.
            ConfigTokenConsumed: Spent and past its window, withdrawn, expired, or of another AK.
        """
        spent = self._sql.run(
            _T_CONSUME,
            of_token=token_sha256,
            of_ak=ak_name,
            at=to_micros(at),
            answer=answer,
            answer_until=to_micros(answer_until),
        )
        if spent == 1:
            return answer, True
        token = self.get_by_hash(token_sha256)
        if token is None:
            raise ConfigTokenUnknown("no such config token")
        stored = token.repeat(at) if token.ak_name == ak_name else None
        if stored is None:
            raise ConfigTokenConsumed("the config token was used, withdrawn or has expired")
        return stored, False

    def withdraw(self, machine_id: str, at: datetime) -> int:
        """Take the right from all tokens of a machine, and their answers; return how many lost it."""
        return self._sql.run(_T_WITHDRAW, of_machine=machine_id, at=to_micros(at))
