"""The labels of machines. They stand beside the machines: nothing that judges one reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from sqlalchemy import BindParameter, ColumnElement, bindparam, delete, exists, select

from attestation.store.codec import binds
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import MachineLabelRow, table_of

_T = table_of(MachineLabelRow)
_C = _T.c

_OF = Prepared(select(_C.key, _C.value).where(_C.machine_id == bindparam("machine_id")).order_by(_C.key))
_PUT = Prepared(
    lambda insert: (
        insert(_T)
        .values(binds(_C))
        .on_conflict_do_update(index_elements=["machine_id", "key"], set_={"value": bindparam("value")})
    )
)
_REMOVE = Prepared(delete(_T).where(_C.machine_id == bindparam("machine_id"), _C.key == bindparam("key")))


@lru_cache(maxsize=16)
def _of_many(machines: int) -> Prepared:
    named: list[BindParameter[str]] = [bindparam(f"machine_{i}") for i in range(machines)]
    return Prepared(select(_T).where(_C.machine_id.in_(named)).order_by(_C.machine_id, _C.key))


def wears(machine_id: ColumnElement[str], number: int, *, valued: bool) -> ColumnElement[bool]:
    """Return the condition that a machine has label *number* of a selector: its key, and where *valued* its value."""
    found = exists().where(_C.machine_id == machine_id, _C.key == bindparam(f"label_{number}"))
    return found.where(_C.value == bindparam(f"value_{number}")) if valued else found


class Labels:
    """The labels, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def of(self, machine_id: str) -> dict[str, str]:
        """Return the labels of a machine, in the order of their keys."""
        return {row[0]: row[1] for row in self._sql.rows(_OF, machine_id=machine_id)}

    def of_each(self, machine_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the labels of those of *machine_ids* that have any, in one query."""
        if not machine_ids:
            return {}
        # Statements are compiled for powers of two; the last id fills up.
        size = 1 << (len(machine_ids) - 1).bit_length()
        padded = [*machine_ids, *[machine_ids[-1]] * (size - len(machine_ids))]
        named = {f"machine_{i}": machine_id for i, machine_id in enumerate(padded)}
        found: dict[str, dict[str, str]] = {}
        for machine_id, key, value in self._sql.rows(_of_many(size), **named):
            found.setdefault(machine_id, {})[key] = value
        return found

    def replace(self, machine_id: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Make the labels *before* of a machine those *after*; the machine must exist."""
        for key in before.keys() - after.keys():
            self._sql.do(_REMOVE, machine_id=machine_id, key=key)
        for key, value in after.items() - before.items():
            self._sql.do(_PUT, machine_id=machine_id, key=key, value=value)
