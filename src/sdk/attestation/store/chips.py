"""What outlives a machine: which EK an AK belongs to for ever, and what marks its chip (PROTOCOL §8.6)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, bindparam, case, delete, func, or_, select, update

from attestation.clock import from_micros, to_micros
from attestation.machines import Machine, Status
from attestation.machines.chips import Mark, MarkKind, Relative
from attestation.store.codec import binds, codec
from attestation.store.machines import decode
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import AKBindingRow, ChipMarkRow, MachineRow, table_of

MOST_RELATIVES = 20
"""So many machines with one mark are looked at, those that ended first."""

_B = table_of(AKBindingRow)
_BC = _B.c
_K = table_of(ChipMarkRow)
_KC = _K.c
_M = table_of(MachineRow)
_MC = _M.c


@dataclass(frozen=True, slots=True, kw_only=True)
class AKBinding:
    """An AK, by its Name, belongs to one EK for ever; `machine_id` is the machine that activated it first.

    Activating takes the EK alone: the credential names the AK, and software opens it for any Name.
    """

    ak_name: bytes
    ek_fingerprint: str
    machine_id: str
    bound_at: datetime


_BINDING = codec(AKBinding, _BC)
_BIND = Prepared(lambda insert: insert(_B).values(binds(_BC)).on_conflict_do_nothing())
_RELEASE = Prepared(delete(_B).where(_BC.ak_name == bindparam("ak_name")))
_BY_AK = Prepared(select(_B).where(_BC.ak_name == bindparam("ak_name")))
_BY_EK = Prepared(
    select(_BC.machine_id, func.min(_BC.bound_at))
    .where(_BC.ek_fingerprint == bindparam("ek_fingerprint"))
    .group_by(_BC.machine_id)
    .order_by(func.min(_BC.bound_at))
    .limit(MOST_RELATIVES)
)
_ALL_OF_EK = Prepared(
    select(_B)
    .where(_BC.ek_fingerprint == bindparam("ek_fingerprint"))
    .order_by(_BC.bound_at.desc(), _BC.ak_name)
    .limit(MOST_RELATIVES)
)


class AKBindings:
    """The bindings of AKs, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def get(self, ak_name: bytes) -> AKBinding | None:
        """Return what the AK of this Name is bound to, or None."""
        return _BINDING.one(self._sql.row(_BY_AK, ak_name=ak_name))

    def bind(self, binding: AKBinding) -> bool:
        """Bind an AK for ever; return False where it belongs to another EK."""
        self._sql.do(_BIND, **_BINDING.encode(binding))
        held = self.get(binding.ak_name)
        return held is not None and held.ek_fingerprint == binding.ek_fingerprint

    def release(self, ak_name: bytes) -> None:
        """Delete a binding that somebody made who was never admitted. Whether it may go, is the caller's rule."""
        self._sql.do(_RELEASE, ak_name=ak_name)

    def of_ek(self, ek_fingerprint: str) -> list[AKBinding]:
        """Return the AKs that were ever activated for an EK, the newest first; twenty at most."""
        return [*map(_BINDING.decode, self._sql.rows(_ALL_OF_EK, ek_fingerprint=ek_fingerprint))]

    def machines_of(self, ek_fingerprint: str) -> list[tuple[str, datetime]]:
        """Return the ids under which an EK was known, deleted ones too, with when; the oldest first."""
        rows = self._sql.rows(_BY_EK, ek_fingerprint=ek_fingerprint)
        return [(row[0], from_micros(row[1])) for row in rows]


_PUT = Prepared(
    lambda insert: (
        insert(_K)
        .values(
            kind=bindparam("kind"),
            value=bindparam("value"),
            machine_id=bindparam("machine_id"),
            ended_as=None,
            ended_believed=None,
            ended_at=None,
        )
        .on_conflict_do_nothing()
    )
)
_BELIEVED = or_(_MC.ek_chain_ok, _MC.ek_allow_listed, _MC.role.is_not(None))
_status: ColumnElement[str] = func.coalesce(_KC.ended_as, _MC.status)
_ENDED = or_(
    _status == Status.REVOKED.value, _status == Status.REJECTED.value, _status == Status.LOCKED.value
)
_OTHERS = Prepared(
    select(_KC.machine_id, _status, _KC.ended_as, _BELIEVED, _KC.ended_believed, _KC.ended_at)
    .select_from(_K.outerjoin(_M, _KC.machine_id == _MC.machine_id))
    .where(
        _KC.kind == bindparam("kind"),
        _KC.value == bindparam("value"),
        _KC.machine_id != bindparam("machine_id"),
        _status.is_not(None),
    )
    # Nobody hides who ended behind a crowd of newcomers that show the same mark.
    .order_by(
        case((_ENDED, 0), else_=1),
        _KC.machine_id,
    )
    .limit(MOST_RELATIVES)
)
# Anybody can register under any UUID: who was never admitted makes it no less clear whose it is.
_ADMITTED_WITH_UUID = Prepared(
    select(_M)
    .where(
        _MC.machine_id.in_(
            select(_KC.machine_id).where(
                _KC.kind == MarkKind.HW_UUID.value,
                or_(_KC.value == bindparam("one"), _KC.value == bindparam("other")),
            )
        ),
        or_(*(_MC.status == each.value for each in (Status.REGISTERED, Status.ATTESTED, Status.LOCKED))),
    )
    .order_by(_MC.id)
    .limit(2)
)
_OF_MACHINE = Prepared(
    select(_KC.kind, _KC.value).where(_KC.machine_id == bindparam("machine_id")).order_by(_KC.kind, _KC.value)
)
_END = Prepared(
    update(_K)
    .where(_KC.machine_id == bindparam("of_machine"))
    .values(
        ended_as=bindparam("ended_as"),
        ended_believed=bindparam("ended_believed"),
        ended_at=bindparam("ended_at"),
    )
)
_FORGET = Prepared(delete(_K).where(_KC.machine_id == bindparam("machine_id")))


class ChipMarks:
    """The marks of chips, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def put(self, machine_id: str, marks: Iterable[Mark]) -> None:
        """Note marks of a machine; what is noted stays."""
        for mark in marks:
            self._sql.do(_PUT, kind=mark.kind.value, value=mark.value, machine_id=machine_id)

    def of(self, machine_id: str) -> tuple[Mark, ...]:
        """Return the marks of a machine."""
        return tuple(
            Mark(MarkKind(row[0]), row[1]) for row in self._sql.rows(_OF_MACHINE, machine_id=machine_id)
        )

    def admitted_with_uuid(self, one: str, other: str) -> list[Machine]:
        """Return the machines that operators admitted and whose firmware tables say *one* UUID or the *other*.

        Two, where there are more. Both as `telling` returns them: one UUID in both orders of bytes.
        """
        return [*map(decode, self._sql.rows(_ADMITTED_WITH_UUID, one=one, other=other))]

    def relatives(self, machine_id: str, marks: Iterable[Mark]) -> list[Relative]:
        """Return the other machines that have one of *marks*, deleted ones too."""
        found = []
        for mark in marks:
            rows = self._sql.rows(_OTHERS, kind=mark.kind.value, value=mark.value, machine_id=machine_id)
            for other, status, ended_as, believed, ended_believed, ended_at in rows:
                found.append(
                    Relative(
                        mark=mark,
                        machine_id=other,
                        status=Status(status),
                        believed=bool(believed if ended_as is None else ended_believed),
                        deleted_at=None if ended_at is None else from_micros(ended_at),
                    )
                )
        return found

    def end(self, machine_id: str, status: Status, at: datetime, *, believed: bool) -> None:
        """Keep what a machine was, before its row is deleted."""
        self._sql.do(
            _END,
            of_machine=machine_id,
            ended_as=status.value,
            ended_believed=believed,
            ended_at=to_micros(at),
        )

    def forget(self, machine_id: str) -> None:
        """Delete the marks of a machine that nobody ever decided about."""
        self._sql.do(_FORGET, machine_id=machine_id)
