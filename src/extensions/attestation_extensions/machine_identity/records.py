"""What is kept: which keys there are, and which tokens were issued. Neither a private key nor a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final

from sqlalchemy import BigInteger, Index, Text, bindparam, delete, func, insert, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from attestation.extension import Executor, Prepared, from_micros, to_micros

MAX_LISTED: Final = 10_000
FORGOTTEN_AT_ONCE: Final = 100


class Base(DeclarativeBase):
    """Base of the tables."""

    type_annotation_map: ClassVar[dict[Any, Any]] = {int: BigInteger(), str: Text()}


class KeyRow(Base):
    """A signing key: its number tells where it is, beside the setting; instants in microseconds."""

    __tablename__ = "extension_machine_identity_keys"

    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kid: Mapped[str]
    published_at: Mapped[int]
    signs_at: Mapped[int]
    withdrawn_at: Mapped[int | None]


class TokenRow(Base):
    """A token that was issued."""

    __tablename__ = "extension_machine_identity_tokens"
    __table_args__ = (
        Index("extension_machine_identity_tokens_machine", "machine_id", "issued_at"),
        Index("extension_machine_identity_tokens_end", "expires_at"),
    )

    jti: Mapped[str] = mapped_column(primary_key=True)
    machine_id: Mapped[str]
    audience: Mapped[str]
    role: Mapped[str]
    cluster_id: Mapped[str]
    kid: Mapped[str]
    issued_at: Mapped[int]
    expires_at: Mapped[int]
    revoked_at: Mapped[int | None]


_K: Final = KeyRow.metadata.tables[KeyRow.__tablename__]
_T: Final = TokenRow.metadata.tables[TokenRow.__tablename__]
_OF_MACHINE: Final = _T.c.machine_id == bindparam("of_machine")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """Which key, and from when to when.

    Args:
        number: 1, 2, …
        kid: Thumbprint of its public key (RFC 7638).
        published_at: Since when it is in the key set.
        signs_at: From when it signs.
        withdrawn_at: Since when nothing signed by it counts; None: it was not withdrawn.
    """

    number: int
    kid: str
    published_at: datetime
    signs_at: datetime
    withdrawn_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A token that was issued, without what it is."""

    jti: str
    machine_id: str
    audience: str
    role: str
    cluster_id: str
    kid: str
    issued_at: datetime
    expires_at: datetime
    revoked_at: datetime | None = None


_KEYS: Final = Prepared(select(_K).order_by(_K.c.number))
_ADD_KEY: Final = Prepared(
    insert(_K).values(
        number=bindparam("number"),
        kid=bindparam("kid"),
        published_at=bindparam("published_at"),
        signs_at=bindparam("signs_at"),
    )
)
_WITHDRAW: Final = Prepared(
    update(_K)
    .where(_K.c.number < bindparam("before"), _K.c.withdrawn_at.is_(None))
    .values(withdrawn_at=bindparam("at"))
)
_ADD: Final = Prepared(
    insert(_T).values(
        {name: bindparam(name) for name in (column.name for column in _T.c) if name != "revoked_at"}
    )
)
_GET: Final = Prepared(select(_T).where(_T.c.jti == bindparam("of_jti")))
_SINCE: Final = Prepared(
    select(func.count(), func.min(_T.c.issued_at)).where(_OF_MACHINE, _T.c.issued_at > bindparam("since"))
)
_FORGET: Final = Prepared(
    delete(_T).where(
        _T.c.jti.in_(
            select(_T.c.jti)
            .where(_T.c.issued_at <= bindparam("before"), _T.c.expires_at <= bindparam("at"))
            .order_by(_T.c.expires_at)
            .limit(FORGOTTEN_AT_ONCE)
        )
    )
)
_REVOKE: Final = Prepared(
    update(_T)
    .where(_OF_MACHINE, _T.c.revoked_at.is_(None), _T.c.issued_at <= bindparam("at"))
    .values(revoked_at=bindparam("at"))
)
_REVOKED: Final = Prepared(
    select(_T.c.jti, _T.c.expires_at)
    .where(_T.c.revoked_at.is_not(None), _T.c.expires_at > bindparam("at"))
    .order_by(_T.c.expires_at)
    .limit(MAX_LISTED + 1)
)

TOKENS: Final = select(
    _T.c.jti,
    _T.c.machine_id,
    _T.c.audience,
    _T.c.role,
    _T.c.cluster_id,
    _T.c.issued_at,
    _T.c.expires_at,
    _T.c.revoked_at,
)
"""What the query language sees of them."""


class Records:
    """The tables, inside one unit of work."""

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    # Keys

    def all_keys(self) -> list[StoredKey]:
        """Return all that there were, the oldest first."""
        return [
            StoredKey(
                number=row[0],
                kid=row[1],
                published_at=from_micros(row[2]),
                signs_at=from_micros(row[3]),
                withdrawn_at=from_micros(row[4]) if row[4] is not None else None,
            )
            for row in self._sql.rows(_KEYS)
        ]

    def add_key(self, key: StoredKey) -> None:
        """Add one."""
        self._sql.run(
            _ADD_KEY,
            number=key.number,
            kid=key.kid,
            published_at=to_micros(key.published_at),
            signs_at=to_micros(key.signs_at),
        )

    def withdraw_before(self, number: int, at: datetime) -> None:
        """Withdraw every key that came before *number*."""
        self._sql.run(_WITHDRAW, before=number, at=to_micros(at))

    # Tokens

    def add(self, token: Issued) -> None:
        """Note one that is given now."""
        self._sql.run(
            _ADD,
            jti=token.jti,
            machine_id=token.machine_id,
            audience=token.audience,
            role=token.role,
            cluster_id=token.cluster_id,
            kid=token.kid,
            issued_at=to_micros(token.issued_at),
            expires_at=to_micros(token.expires_at),
        )

    def get(self, jti: str) -> Issued | None:
        """Return what was noted of one."""
        row = self._sql.row(_GET, of_jti=jti)
        if row is None:
            return None
        return Issued(
            jti=row[0],
            machine_id=row[1],
            audience=row[2],
            role=row[3],
            cluster_id=row[4],
            kid=row[5],
            issued_at=from_micros(row[6]),
            expires_at=from_micros(row[7]),
            revoked_at=from_micros(row[8]) if row[8] is not None else None,
        )

    def issued_since(self, machine_id: str, since: datetime) -> tuple[int, datetime | None]:
        """Return how many tokens a machine was given after *since*, and when the first of them was."""
        row = self._sql.row(_SINCE, of_machine=machine_id, since=to_micros(since))
        assert row is not None
        return row[0], from_micros(row[1]) if row[1] is not None else None

    def forget(self, before: datetime, at: datetime) -> None:
        """Drop some of what any machine was given until *before* and is over: more than comes with each token."""
        self._sql.run(_FORGET, before=to_micros(before), at=to_micros(at))

    def revoke(self, machine_id: str, at: datetime) -> None:
        """End every token that a machine was given until *at*."""
        self._sql.run(_REVOKE, of_machine=machine_id, at=to_micros(at))

    def revoked(self, at: datetime) -> tuple[Sequence[tuple[str, datetime]], bool]:
        """Return those that ended before their time, with that time, but for what is over; and if there are more."""
        found = [(row[0], from_micros(row[1])) for row in self._sql.rows(_REVOKED, at=to_micros(at))]
        return found[:MAX_LISTED], len(found) > MAX_LISTED
