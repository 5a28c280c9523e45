"""Who machines are to kinds of evidence besides their TPM's: one identity of a kind, which no other machine has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, bindparam, exists, select, update

from attestation.errors import AlreadyExists
from attestation.machines import Identity, Machine
from attestation.store.codec import binds, codec
from attestation.store.machines import Machines
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import MachineIdentityRow, table_of

_T = table_of(MachineIdentityRow)
_C = _T.c
_ROW = codec(Identity, _C, besides=("kind", "machine_id"))
_OF = Prepared(select(_T).where(_C.machine_id == bindparam("machine_id")).order_by(_C.kind))
_ADD = Prepared(lambda insert: insert(_T).values(binds(_C)).on_conflict_do_nothing())
_RENEW = Prepared(
    update(_T)
    .where(_C.machine_id == bindparam("of_machine"), _C.kind == bindparam("of_kind"))
    .values(state=bindparam("state"))
)
_APPROVE = Prepared(
    update(_T)
    .where(_C.machine_id == bindparam("of_machine"), _C.kind == bindparam("of_kind"))
    .values(approved_chip=bindparam("approved_chip"), approved_csp_id=bindparam("approved_csp_id"))
)


def has_any(machine_id: ColumnElement[str]) -> ColumnElement[bool]:
    """Return the condition that a machine has any."""
    return exists().where(_C.machine_id == machine_id)


class Identities:
    """The identities, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def of(self, machine_id: str) -> dict[str, Identity]:
        """Return who a machine is to each kind, by the name of the kind."""
        return {row[0]: _ROW.decode(row) for row in self._sql.rows(_OF, machine_id=machine_id)}

    def states(self, machine_ids: Sequence[str]) -> dict[str, dict[str, Mapping[str, Any]]]:
        """Return what the last verified evidence of each machine told, by the name of the kind, where it told any."""
        found: dict[str, dict[str, Mapping[str, Any]]] = {}
        for machine_id in machine_ids:
            states = {k: each.state for k, each in self.of(machine_id).items() if each.state is not None}
            if states:
                found[machine_id] = states
        return found

    def add(self, machine: Machine, kind: str, value: bytes, *, guest: bytes | None = None) -> Machine:
        """Give *machine* an identity of *kind*; return it at its next version.

        Raises:
            AlreadyExists: It has one of this kind, or another machine has this one.
            MachineChanged: Somebody changed the machine since it was read.
        """
        held = {
            "kind": kind,
            "machine_id": machine.machine_id,
            **_ROW.encode(Identity(value=value, guest=guest)),
        }
        if self._sql.run(_ADD, **held) != 1:
            raise AlreadyExists(
                f"this machine has an identity of the kind {kind}, or another machine has this one"
            )
        # What was judged without it is not written any more.
        return Machines(self._sql).update(machine)

    def renew(self, machine_id: str, kind: str, state: Mapping[str, Any]) -> None:
        """Store what verified evidence of *kind* told."""
        self._sql.do(_RENEW, of_machine=machine_id, of_kind=kind, **_ROW.stored({"state": state}))

    def approve(self, machine_id: str, kind: str, *, chip: bytes, csp_id: str | None) -> None:
        """Store what operators approved of the hardware that was seen."""
        approved = _ROW.stored({"approved_chip": chip, "approved_csp_id": csp_id})
        self._sql.do(_APPROVE, of_machine=machine_id, of_kind=kind, **approved)
