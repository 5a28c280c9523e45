"""The tables: machines' keys, wrapped; what is held; what waits for an operator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final, Literal, get_args

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Index,
    LargeBinary,
    Text,
    bindparam,
    case,
    delete,
    select,
    update,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from attestation.extension import Executor, Prepared, from_micros, to_micros

Scope = Literal["machine", "cluster"]
MOST_LISTED: Final = 500


class Base(DeclarativeBase):
    """Base of the tables; instants are microseconds."""

    type_annotation_map: ClassVar[dict[Any, Any]] = {int: BigInteger(), str: Text(), bytes: LargeBinary()}


class KeyRow(Base):
    """A key of a machine. The newest that is not retired seals; all that are not retired open."""

    __tablename__ = "extension_disk_kms_keys"
    __table_args__ = (Index(None, "machine_id", "created_at"), Index(None, "kek_id"))

    key_id: Mapped[bytes] = mapped_column(primary_key=True)
    machine_id: Mapped[str]
    kek_id: Mapped[str]
    wrapped: Mapped[bytes]
    created_at: Mapped[int]
    retired_at: Mapped[int | None]


class HoldRow(Base):
    """Machines, by themselves or by their cluster, that get nothing without an operator."""

    __tablename__ = "extension_disk_kms_holds"
    __table_args__ = (CheckConstraint("scope IN ('machine', 'cluster')", name="scope"),)

    scope: Mapped[str] = mapped_column(primary_key=True)
    subject: Mapped[str] = mapped_column(primary_key=True)
    placed_at: Mapped[int]
    placed_by: Mapped[str]


class WaitingRow(Base):
    """A machine that is held and has asked; what an operator released of it."""

    __tablename__ = "extension_disk_kms_waiting"

    machine_id: Mapped[str] = mapped_column(primary_key=True)
    source_ip: Mapped[str]
    first_at: Mapped[int]
    last_at: Mapped[int]
    uses: Mapped[int]
    released_until: Mapped[int | None]
    released_by: Mapped[str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A wrapped key of a machine."""

    key_id: bytes
    machine_id: str
    kek_id: str
    wrapped: bytes
    created_at: datetime
    retired_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """What is held: a machine, or all machines of a cluster."""

    scope: Scope
    subject: str
    placed_at: datetime
    placed_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A machine that waits; `uses` disk keys may go to it until `released_until`."""

    machine_id: str
    source_ip: str
    first_at: datetime
    last_at: datetime
    uses: int
    released_until: datetime | None
    released_by: str | None

    def is_released(self, address: str, at: datetime) -> bool:
        """Return True if it may have a disk key at *at*, at the *address* that operators saw."""
        released = self.released_until is not None and at < self.released_until
        return self.uses > 0 and released and address == self.source_ip


_KEYS: Final = Base.metadata.tables[KeyRow.__tablename__]
_K: Final = _KEYS.c
_HOLDS: Final = Base.metadata.tables[HoldRow.__tablename__]
_H: Final = _HOLDS.c
_WAITING: Final = Base.metadata.tables[WaitingRow.__tablename__]
_W: Final = _WAITING.c

_ADD_KEY = Prepared(
    lambda insert: insert(_KEYS).values({name: bindparam(name) for name in _K.keys()})  # noqa: SIM118 -- of columns
)
_KEY = Prepared(
    select(_KEYS).where(_K.key_id == bindparam("key_id"), _K.machine_id == bindparam("machine_id"))
)
_NEWEST = Prepared(
    select(_KEYS)
    .where(_K.machine_id == bindparam("machine_id"), _K.retired_at.is_(None))
    .order_by(_K.created_at.desc(), _K.key_id)
    .limit(1)
)
_KEYS_OF = Prepared(
    select(_KEYS)
    .where(_K.machine_id == bindparam("machine_id"))
    .order_by(_K.created_at.desc(), _K.key_id)
    .limit(MOST_LISTED)
)
_RETIRE = Prepared(
    update(_KEYS)
    .where(
        _K.key_id == bindparam("of_key"), _K.machine_id == bindparam("of_machine"), _K.retired_at.is_(None)
    )
    .values(retired_at=bindparam("at"))
)
_UNDER_OTHERS = Prepared(
    select(_KEYS)
    .where(_K.kek_id != bindparam("kek_id"), _K.key_id > bindparam("after"))
    .order_by(_K.key_id)
    .limit(bindparam("rows"))
)
_REWRAP = Prepared(
    update(_KEYS)
    .where(_K.key_id == bindparam("of_key"), _K.kek_id == bindparam("of_kek"))
    .values(kek_id=bindparam("kek_id"), wrapped=bindparam("wrapped"))
)
_HOLD = Prepared(
    lambda insert: (
        insert(_HOLDS)
        .values({name: bindparam(name) for name in _H.keys()})  # noqa: SIM118 -- of columns
        .on_conflict_do_nothing()
    )
)
_UNHOLD = Prepared(delete(_HOLDS).where(_H.scope == bindparam("scope"), _H.subject == bindparam("subject")))
_IS_HELD = Prepared(
    select(_H.scope)
    .where(
        ((_H.scope == "machine") & (_H.subject == bindparam("machine_id")))
        | ((_H.scope == "cluster") & (_H.subject == bindparam("cluster_id")))
    )
    .limit(1)
)
_ALL_HOLDS = Prepared(select(_HOLDS).order_by(_H.scope, _H.subject).limit(MOST_LISTED))
_WAIT = Prepared(
    lambda insert: (
        insert(_WAITING)
        .values(
            machine_id=bindparam("machine_id"),
            source_ip=bindparam("source_ip"),
            first_at=bindparam("at"),
            last_at=bindparam("at"),
            uses=0,
            released_until=None,
            released_by=None,
        )
        .on_conflict_do_update(
            index_elements=["machine_id"],
            # What was released was released to where it asked from then.
            set_={
                "last_at": bindparam("at"),
                "source_ip": bindparam("source_ip"),
                "uses": case((_W.source_ip == bindparam("source_ip"), _W.uses), else_=0),
            },
        )
    )
)
_RELEASE = Prepared(
    update(_WAITING)
    .where(_W.machine_id == bindparam("of_machine"))
    .values(uses=bindparam("uses"), released_until=bindparam("until"), released_by=bindparam("by"))
)
_USE = Prepared(
    update(_WAITING)
    .where(_W.machine_id == bindparam("of_machine"), _W.uses > 0, _W.released_until > bindparam("at"))
    .values(uses=_W.uses - 1)
)
_WAITING_OF = Prepared(select(_WAITING).where(_W.machine_id == bindparam("machine_id")))
_ALL_WAITING = Prepared(select(_WAITING).order_by(_W.last_at.desc(), _W.machine_id).limit(MOST_LISTED))
_STOP_WAITING = Prepared(
    delete(_WAITING).where(_W.machine_id == bindparam("machine_id"), _W.uses <= bindparam("uses"))
)


class DiskKeys:
    """Keys, holds and who waits, inside one unit of work."""

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    # Keys

    def add(self, key: Key) -> None:
        """Keep a new key."""
        self._sql.do(
            _ADD_KEY,
            key_id=key.key_id,
            machine_id=key.machine_id,
            kek_id=key.kek_id,
            wrapped=key.wrapped,
            created_at=to_micros(key.created_at),
            retired_at=None,
        )

    def key(self, key_id: bytes, machine_id: str) -> Key | None:
        """Return a key of this machine."""
        return _key(self._sql.row(_KEY, key_id=key_id, machine_id=machine_id))

    def newest(self, machine_id: str) -> Key | None:
        """Return the key that seals for this machine."""
        return _key(self._sql.row(_NEWEST, machine_id=machine_id))

    def of_machine(self, machine_id: str) -> list[Key]:
        """Return the keys of this machine, the newest first."""
        return [k for row in self._sql.rows(_KEYS_OF, machine_id=machine_id) if (k := _key(row))]

    def retire(self, key_id: bytes, machine_id: str, at: datetime) -> bool:
        """Let a key open nothing any more; return False where there is none, or it is retired."""
        return self._sql.run(_RETIRE, of_key=key_id, of_machine=machine_id, at=to_micros(at)) == 1

    def under_others(self, kek_id: str, after: bytes, limit: int) -> list[Key]:
        """Return keys that are wrapped under another KEK than *kek_id*, by their ids, those above *after*."""
        rows = self._sql.rows(_UNDER_OTHERS, kek_id=kek_id, after=after, rows=limit)
        return [k for row in rows if (k := _key(row))]

    def rewrap(self, key: Key, *, kek_id: str, wrapped: bytes) -> bool:
        """Keep *key* under another KEK; return False where another worker did."""
        return (
            self._sql.run(_REWRAP, of_key=key.key_id, of_kek=key.kek_id, kek_id=kek_id, wrapped=wrapped) == 1
        )

    # Holds

    def hold(self, hold: Hold) -> None:
        """Hold a machine or a cluster; what is held stays so."""
        self._sql.do(
            _HOLD,
            scope=hold.scope,
            subject=hold.subject,
            placed_at=to_micros(hold.placed_at),
            placed_by=hold.placed_by,
        )

    def unhold(self, scope: Scope, subject: str) -> bool:
        """End a hold; return False where there is none."""
        return self._sql.run(_UNHOLD, scope=scope, subject=subject) == 1

    def is_held(self, machine_id: str, cluster_id: str) -> bool:
        """Return True if a machine of this cluster needs an operator."""
        return self._sql.row(_IS_HELD, machine_id=machine_id, cluster_id=cluster_id) is not None

    def holds(self) -> list[Hold]:
        """Return what is held."""
        return [
            Hold(scope=_scope(scope), subject=subject, placed_at=from_micros(at), placed_by=by)
            for scope, subject, at, by in self._sql.rows(_ALL_HOLDS)
        ]

    # Who waits

    def wait(self, machine_id: str, source_ip: str, at: datetime) -> None:
        """Note that a machine that is held has asked."""
        self._sql.do(_WAIT, machine_id=machine_id, source_ip=source_ip, at=to_micros(at))

    def waiting_of(self, machine_id: str) -> Waiting | None:
        """Return since when a machine waits, and what was released of it."""
        return _waiting(self._sql.row(_WAITING_OF, machine_id=machine_id))

    def waiting(self) -> list[Waiting]:
        """Return the machines that wait, who asked last first."""
        return [w for row in self._sql.rows(_ALL_WAITING) if (w := _waiting(row))]

    def release(self, machine_id: str, *, uses: int, until: datetime, by: str) -> None:
        """Let a machine that waits have *uses* disk keys until *until*."""
        self._sql.do(_RELEASE, of_machine=machine_id, uses=uses, until=to_micros(until), by=by)

    def use(self, machine_id: str, at: datetime) -> bool:
        """Use up one of what was released; of two at the same time, with one left, one gets False."""
        return self._sql.run(_USE, of_machine=machine_id, at=to_micros(at)) == 1

    def stop_waiting(self, machine_id: str, *, held: bool) -> None:
        """Forget that a machine waited: it got its key; while it is *held*, only if that was the last it may have."""
        self._sql.do(_STOP_WAITING, machine_id=machine_id, uses=0 if held else _MOST)


_MOST: Final = (1 << 31) - 1


def _scope(text: str) -> Scope:
    return next(each for each in get_args(Scope) if each == text)


def _key(row: Sequence[Any] | None) -> Key | None:
    if row is None:
        return None
    key_id, machine_id, kek_id, wrapped, created_at, retired_at = row
    return Key(
        key_id=bytes(key_id),
        machine_id=machine_id,
        kek_id=kek_id,
        wrapped=bytes(wrapped),
        created_at=from_micros(created_at),
        retired_at=None if retired_at is None else from_micros(retired_at),
    )


def _waiting(row: Sequence[Any] | None) -> Waiting | None:
    if row is None:
        return None
    machine_id, source_ip, first_at, last_at, uses, until, by = row
    return Waiting(
        machine_id=machine_id,
        source_ip=source_ip,
        first_at=from_micros(first_at),
        last_at=from_micros(last_at),
        uses=uses,
        released_until=None if until is None else from_micros(until),
        released_by=by,
    )
